import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, models, pre_tokenizers

from rose.chat.registry import get_format
from rose.chat.tokenizer import Tokenizer, as_tokenizer, load_tokenizer
from rose.errors import CheckpointError
from tests.chat.tokenizers_for_tests import SPECIALS

TEXTS = st.lists(st.one_of(st.text(max_size=8), st.sampled_from([*SPECIALS, "<|note|>", "tideline", "<|start"]))).map(
    "".join
)


@settings(max_examples=100)
@given(text=TEXTS)
def test_text_never_becomes_an_added_token_and_comes_back_whole(tokenizer, text):
    ids = tokenizer.encode(text)
    assert not any(tokenizer.is_special(token_id) for token_id in ids)
    assert tokenizer.special_id("<|note|>") not in ids or tokenizer.special_id("<|note|>") is None
    assert tokenizer.decode(ids) == text


def test_encodes_as_the_reference_does(o200k, oracle):
    text = "I'll   look\n\n  at 12345 naïve 你好 😀 <|start|>user<|end|> HTTPServer's\t\r\n x"
    assert o200k.encode(text) == oracle.encode(text, disallowed_special=())


def test_special_ids_are_found_by_name(tiny, o200k):
    assert tiny.special_id("<|call|>") == 401
    assert o200k.special_id("<|call|>") == 200012
    assert tiny.special_id("<|missing|>") is None
    assert tiny.special_id("a") is None, "a token of the vocabulary is not a special token"


def test_encode_with_special_mixes_both(tiny):
    start, note = tiny.special_id("<|start|>"), tiny.special_id("<|note|>")
    ids = tiny.encode_with_special("<|start|>user<|note|><|starts|>")
    assert ids == [start, *tiny.encode("user"), note, *tiny.encode("<|starts|>")]
    assert tiny.decode(ids) == "user<|note|><|starts|>"
    assert tiny.decode(ids, keep_special=True) == "<|start|>user<|note|><|starts|>"


def test_half_a_surrogate_pair_is_replaced(tiny):
    assert tiny.decode(tiny.encode("a\ud83d")) == "a\ufffd"
    assert tiny.decode(tiny.encode("\ud83d\ude00")) == "😀"


@pytest.mark.parametrize("token_id", [-1, -500, 412, 10**12])
def test_an_id_outside_the_vocabulary_has_no_bytes(tiny, token_id):
    assert tiny.vocab_size == 412
    assert tiny.token_bytes(token_id) == b""
    assert not tiny.is_special(token_id)


def test_the_bytes_of_all_single_byte_tokens(tiny, tiny_backend):
    single = {tiny.token_bytes(tiny_backend.token_to_id(char)) for char in pre_tokenizers.ByteLevel.alphabet()}
    assert single == {bytes([byte]) for byte in range(256)}


def test_the_callers_tokenizer_is_left_as_it_is(tiny_backend):
    as_tokenizer(tiny_backend)
    assert tiny_backend.encode("<|start|>").ids == [tiny_backend.token_to_id("<|start|>")]


def test_a_template_and_truncation_of_the_file_do_not_reach_prompts(tiny_backend):
    backend = tokenizers.Tokenizer.from_str(tiny_backend.to_str())
    backend.post_processor = tokenizers.processors.TemplateProcessing(
        single="<|start|> $A", special_tokens=[("<|start|>", backend.token_to_id("<|start|>"))]
    )
    backend.enable_truncation(4)
    backend.enable_padding(length=8)
    assert Tokenizer(backend).encode("High at 4. Low at 10.") == as_tokenizer(tiny_backend).encode(
        "High at 4. Low at 10."
    )


def test_loads_a_folder_or_a_file(tmp_path, tiny_backend):
    tiny_backend.save(str(tmp_path / "tokenizer.json"))
    assert load_tokenizer(tmp_path).vocab_size == load_tokenizer(str(tmp_path / "tokenizer.json")).vocab_size == 412


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(CheckpointError, match=r"tokenizer\.json: no such"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize("content", ["", "{", "{}", "[]", '{"model": {"type": "BPE"}}', "\x00\xff"])
def test_a_damaged_file_is_named(tmp_path, content):
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(CheckpointError, match=r"tokenizer\.json: not a readable tokenizer"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize("missing", [name for name in SPECIALS if name != "<|endoftext|>"])
def test_harmony_needs_its_control_tokens(missing):
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.add_special_tokens([AddedToken(name, special=True) for name in SPECIALS if name != missing])
    with pytest.raises(CheckpointError, match="harmony"):
        get_format("harmony", backend)


def test_harmony_refuses_a_tokenizer_that_reads_control_tokens_from_text():
    vocab = {name: n for n, name in enumerate(SPECIALS)}
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=[], ignore_merges=True))
    backend.add_special_tokens([AddedToken(name, special=True) for name in SPECIALS])
    with pytest.raises(CheckpointError, match="cannot tell the text"):
        get_format("harmony", backend)
