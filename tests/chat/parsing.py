"""Parsing written-out samples in tests."""

from rose.chat.events import ChatEvent
from rose.chat.harmony.format import HarmonyFormat
from rose.chat.merge import MergedAnswer, merge
from rose.chat.tokenizer import Tokenizer

# How most samples begin: a reasoning message, and the header of the next.
A = "<|channel|>analysis<|message|>Need the tide.<|end|><|start|>assistant"


def events_of(tokenizer: Tokenizer, tokens: list[int], reason: str = "stop") -> list[ChatEvent]:
    parser = HarmonyFormat(tokenizer).parser()
    events = [event for token in tokens for event in parser.push(token)]
    return events + parser.finish(reason)


def parse(tokenizer: Tokenizer, text: str, reason: str = "stop") -> MergedAnswer:
    """Parse a sample in which `<|...|>` stands for the control tokens."""
    return merge(events_of(tokenizer, tokenizer.encode_with_special(text), reason))


def calls(answer: MergedAnswer) -> list[tuple[str, str]]:
    return [(call.name, call.arguments) for call in answer.tool_calls]
