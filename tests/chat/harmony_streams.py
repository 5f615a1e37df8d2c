"""Streams of ids as a model that has lost its way with Harmony might sample them, and what must not be lost of them."""

from collections.abc import Sequence

from rose.chat.tokenizer import Tokenizer
from tests.chat.tokenizers_for_tests import SPECIALS

WORDS = [
    *("assistant", "user", "system", "tool", "analysis", "commentary", "final", " to=functions.tide", " to=", "json"),
    *(" json", "{", '{"p":1}', "High at 4.", " ", "\n", "é", "😀", "––", "functions.tide", "<|message|>", "thoughts"),
    *("t", "o", "=", "I'm sorry"),
]
WHOLE = [
    "<|start|>assistant",
    "<|channel|>final<|message|>",
    "<|channel|>analysis<|message|>",
    "<|channel|>commentary to=functions.tide <|constrain|>json<|message|>",
    "<|channel|>thoughts<|message|>",
    "<|end|><|start|>assistant",
]


def pieces(tokenizer: Tokenizer) -> list[list[int]]:
    """Control tokens, words of headers, and whole headers."""
    specials = [[tokenizer.special_id(name)] for name in SPECIALS]
    return [*specials, *map(tokenizer.encode, WORDS), *map(tokenizer.encode_with_special, WHOLE)]


def has_text(tokenizer: Tokenizer, tokens: Sequence[int], reason: str) -> bool:
    """Whether the promise of docs/harmony.md forbids an empty answer."""
    in_bodies = bool(text_in_bodies(tokenizer, tokens))
    return in_bodies or (reason == "stop" and text_outside_whole_headers(tokenizer, tokens))


def text_in_bodies(tokenizer: Tokenizer, tokens: Sequence[int]) -> str:
    """The text between `<|message|>` and whatever ends a body, by a reader much simpler than the parser."""
    names = {tokenizer.special_id(name): name for name in SPECIALS}
    in_body, ids = False, []
    for token in tokens:
        name = names.get(token)
        if name in ("<|return|>", "<|endoftext|>"):
            break
        if name == "<|message|>":
            in_body = True
        elif name not in (None, "<|constrain|>"):
            in_body = False
        elif in_body:
            ids.append(token)
    return tokenizer.decode(ids)


def text_outside_whole_headers(tokenizer: Tokenizer, tokens: Sequence[int]) -> bool:
    """Whether there is text that is neither in a body nor in a header that `<|message|>` closes."""
    names = {tokenizer.special_id(name): name for name in SPECIALS}
    in_body, ids = False, []
    for token in [*tokens, tokenizer.special_id("<|return|>")]:
        name = names.get(token)
        if name == "<|message|>":
            in_body, ids = True, []
        elif name in ("<|start|>", "<|end|>", "<|call|>", "<|return|>", "<|endoftext|>"):
            if tokenizer.decode(ids).strip():
                return True
            if name in ("<|return|>", "<|endoftext|>"):
                return False
            in_body, ids = False, []
        elif name == "<|channel|>":
            in_body = False
        elif name is None and not in_body:
            ids.append(token)
    return False
