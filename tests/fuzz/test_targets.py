"""The fuzzer's targets without the fuzzer: every run of the suite tries some streams of bytes."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.chat.promises import merged
from tests.chat.subjects import SUBJECTS, subject
from tests.fuzz.targets import ParserTarget


@pytest.mark.parametrize("name", SUBJECTS)
def test_every_stream_keeps_the_promises(name: str) -> None:
    target = ParserTarget(subject(name))

    @settings(max_examples=1000)
    @given(data=st.binary(max_size=40))
    def check(data: bytes) -> None:
        target(data)

    check()


@pytest.mark.parametrize("name", SUBJECTS)
def test_bytes_reach_every_piece_and_every_id(name: str) -> None:
    target, tried = ParserTarget(subject(name)), subject(name)
    assert [target.tokens(bytes([i])) for i in range(len(tried.pieces))] == [list(piece) for piece in tried.pieces]
    ids = {target.tokens(b"\xff" + i.to_bytes(2))[0] for i in range(1 << 16)}
    assert ids == set(range(-2, tried.tokenizer.vocab_size + 2))


@pytest.mark.parametrize("name", SUBJECTS)
def test_it_is_known_which_streams_have_text(name: str) -> None:
    tried = subject(name)
    content = tried.sample(tried.answer, reasoning="", content="High at 4.")
    assert merged(tried.chat.parser(), content).content == "High at 4."
    assert tried.has_text(tried.tokenizer, content, "length")
    assert not tried.has_text(tried.tokenizer, tried.tokenizer.encode_with_special("<|endoftext|>"), "stop")
