from hypothesis import given, settings
from hypothesis import strategies as st

from rose.chat.detokenizer import Detokenizer


def test_a_split_character_is_held_back_until_whole(tiny):
    ids = tiny.encode("é😀")
    assert len(ids) == 6
    detokenizer = Detokenizer(tiny)
    assert [detokenizer.push(i) for i in ids] == ["", "é", "", "", "", "😀"]
    assert detokenizer.flush() == ""


def test_an_incomplete_character_becomes_one_replacement(tiny):
    detokenizer = Detokenizer(tiny)
    assert [detokenizer.push(i) for i in tiny.encode("😀")[:3]] == ["", "", ""]
    assert detokenizer.flush() == "\ufffd"
    assert [detokenizer.push(i) for i in tiny.encode("a")] == ["a"], "flushing begins a new text"


def test_ids_without_bytes_do_not_tear_a_character_apart(tiny):
    first, second = tiny.encode("é")
    detokenizer = Detokenizer(tiny)
    assert [detokenizer.push(i) for i in (first, tiny.special_id("<|start|>"), 10**9, -1, second)][-1] == "é"


@settings(max_examples=100)
@given(data=st.binary(max_size=12))
def test_agrees_with_decoding_at_once(tiny, data):
    of_byte = {tiny.token_bytes(i): i for i in range(tiny.vocab_size) if len(tiny.token_bytes(i)) == 1}
    detokenizer = Detokenizer(tiny)
    pieces = [detokenizer.push(of_byte[bytes([byte])]) for byte in data]
    assert "".join(pieces) + detokenizer.flush() == data.decode("utf-8", errors="replace")
