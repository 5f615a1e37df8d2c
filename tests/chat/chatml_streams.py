"""Streams of ids as a model that has lost its way with ChatML might sample them, and what must not be lost of them."""

from collections.abc import Sequence

from rose.chat.tokenizer import Tokenizer
from tests.chat.tokenizers_for_tests import CHATML_SPECIALS, CHATML_TAGS

WORDS = [
    *("assistant", "assistant\n", "user\n", "High at 4.", " ", "\n", "\n\n", "é", "😀", "<", "</", "think>"),
    *("tool_call>", "{", "}", '"', "\\", "[", "]", ":", ",", "null", "1", '"name"', '"arguments"', ' "tide"'),
    *('"p": 1', '"', "\u3000", '{"name": "tide", "arguments": {', '{"arguments": {}, "name": "x"}'),
    *('{"name": "tide", "parameters": "{}"}', '"\\ud800"', '{"name": "\\ud800", ', '"arguments": {}}', "\\n"),
    *("<|im_end|>", "<tool_call", "</think", '<tool_call>{"name": "tide", "arguments": {"p": "\\"', '\\"'),
    *('\\\\"}}', '<tool_call>{"name": "\n"'),
]
WHOLE = [
    "<|im_start|>assistant\n",
    "<think>\nNeed the tide.\n</think>\n\n",
    '<tool_call>\n{"name": "tide", "arguments": {"p": "',
    '<tool_call>\n{"name": "tide", "arguments": {"p": 1}}\n</tool_call>',
    "\n<tool_call>\n",
    "}\n</tool_call>",
]


def pieces(tokenizer: Tokenizer) -> list[list[int]]:
    """Control tokens, tags, words of calls, and whole ones."""
    marks = [*CHATML_SPECIALS, *CHATML_TAGS, *WHOLE]
    return [*map(tokenizer.encode_with_special, marks), *map(tokenizer.encode, WORDS)]


def has_text(tokenizer: Tokenizer, tokens: Sequence[int], reason: str) -> bool:
    """Whether there is text before the turn's end but blanks, and but the lines that open messages."""
    del reason
    start, *ends = map(tokenizer.special_id, CHATML_SPECIALS)
    tags = set(map(tokenizer.special_id, CHATML_TAGS))
    in_role, runs = False, [b""]
    for token in tokens:
        data = tokenizer.token_bytes(token)
        if token in ends:
            break
        if token == start or (in_role and token in tags):
            runs.append(b"")
            in_role = token == start
        elif in_role and b"\n" in data:
            in_role = False
            runs[-1] = data.partition(b"\n")[2]
        elif not in_role and token not in tags:
            runs[-1] += data
    return any(_without_tags(run.decode(errors="replace")).strip() for run in runs)


def _without_tags(text: str) -> str:
    for tag in CHATML_TAGS:
        text = text.replace(tag, "")
    return text
