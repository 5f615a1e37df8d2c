"""The fuzzer's target for each chat format."""

from collections.abc import Callable, Mapping

from rose.chat.registry import get_format
from rose.chat.tokenizer import as_tokenizer
from tests.chat import chatml_streams, harmony_streams
from tests.chat.tokenizers_for_tests import chatml_tokenizer, tiny_tokenizer
from tests.fuzz.targets import ParserTarget


def _harmony() -> ParserTarget:
    tokenizer = as_tokenizer(tiny_tokenizer())
    pieces = harmony_streams.pieces(tokenizer)
    return ParserTarget(get_format("harmony", tokenizer), tokenizer, pieces, harmony_streams.has_text)


def _chatml(*, has_tags: bool) -> ParserTarget:
    tokenizer = as_tokenizer(chatml_tokenizer(has_tags=has_tags))
    pieces = chatml_streams.pieces(tokenizer)
    return ParserTarget(get_format("chatml", tokenizer), tokenizer, pieces, chatml_streams.has_text)


TARGETS: Mapping[str, Callable[[], ParserTarget]] = {
    "harmony": _harmony,
    "chatml": lambda: _chatml(has_tags=True),
    "chatml-spelled": lambda: _chatml(has_tags=False),
}
