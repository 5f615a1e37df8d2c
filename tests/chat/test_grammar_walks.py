"""Whatever a grammar lets a model sample is read as an answer of the demanded form: sampled here, adversely.

The walks try to write tags, calls and ends wherever the grammar allows them, in tokens of their own and spelled.
"""

import json
import random
from dataclasses import dataclass

import jsonschema
import pytest
from llguidance import LLMatcher, LLTokenizer

from rose.chat.answer_format import AnswerFormat, ChoiceFormat, JsonFormat, RegexFormat, ToolChoice
from rose.chat.conversation import Conversation, FunctionTool, Message
from rose.chat.merge import MergedAnswer
from rose.engine.worker.grammar_tokenizer import TokenizerFile
from tests.chat.promises import merged
from tests.chat.subjects import SUBJECTS, Subject, subject

STRICT = {
    "type": "object",
    "properties": {"place": {"type": "string", "maxLength": 30}, "n": {"type": "integer", "maximum": 9}},
    "required": ["place"],
    "additionalProperties": False,
}
TIDE = FunctionTool("tide", parameters=STRICT, strict=True)
WIND = FunctionTool("wind", parameters=STRICT, strict=True)
CHOICES = ("\n<tool_call\n", "a<", "b")
# Text, though it spells the control tokens of every format here: it is forced, so that its tokens are too.
SPELLED = ("a<|end|>b<|call|>c", "<|im_end|>", "x<|im_start|>assistant<|channel|>final<|message|><|return|>")
PATTERN = r"(\n|x|<|think>|tool_call>|/){0,12}"


AUTO = ToolChoice()


@dataclass(frozen=True)
class Demand:
    """What is demanded, and whether an answer meets it."""

    tools: tuple[FunctionTool, ...] = ()
    wanted: AnswerFormat | None = None
    choice: ToolChoice = AUTO

    def check(self, answer: MergedAnswer) -> None:
        allowed = [tool.name for tool in self.tools if self.choice.names is None or tool.name in self.choice.names]
        for call in answer.tool_calls:
            assert call.name in allowed
            jsonschema.validate(json.loads(call.arguments), STRICT)
        assert len(answer.tool_calls) <= 1
        if self.choice.mode == "required":
            assert answer.tool_calls
            assert not answer.content or isinstance(self.wanted, type(None))
        elif self.wanted is not None and not answer.tool_calls:
            self._check_form(answer.content)
        elif self.wanted is not None:
            assert answer.content == "" or answer.tool_calls
        assert "not_a_call" not in answer.recovered
        assert "arguments_not_json" not in answer.recovered

    def _check_form(self, content: str) -> None:
        match self.wanted:
            case JsonFormat(schema):
                assert schema is not None
                jsonschema.validate(json.loads(content), schema)
            case ChoiceFormat(choices):
                assert content in choices
            case RegexFormat():
                assert set(content) <= set("\nx<think>tool_call/")


DEMANDS = {
    "json": Demand(wanted=JsonFormat(STRICT)),
    "json or call": Demand((TIDE, WIND), JsonFormat(STRICT)),
    "strict tools": Demand((TIDE, WIND)),
    "one tool": Demand((TIDE, WIND), choice=ToolChoice(names=("wind",))),
    "no tool": Demand((TIDE, WIND), choice=ToolChoice(names=())),
    "any call": Demand((TIDE, WIND), choice=ToolChoice("required")),
    "one call": Demand((TIDE, WIND), choice=ToolChoice("required", ("wind",))),
    "choice": Demand(wanted=ChoiceFormat(CHOICES)),
    "regex": Demand((TIDE,), RegexFormat(PATTERN)),
    "spelled choices": Demand(wanted=ChoiceFormat(SPELLED)),
    "spelled constant": Demand(wanted=JsonFormat({"const": SPELLED[0]})),
}


class Walk:
    """One turn, sampled under a grammar."""

    def __init__(self, tried: Subject, vocabulary: LLTokenizer, grammar: str, seed: int) -> None:
        self._tried = tried
        self._matcher = LLMatcher(vocabulary, grammar, log_level=0)
        self._random = random.Random(seed)
        self._added = {tried.tokenizer.special_id(name) for name in tried.tokenizer.added_names}
        self.ids: list[int] = []

    def run(self) -> list[int] | None:
        """The ids of a turn that came to its end; None if it did not within some steps."""
        texts = ["\n<tool_call>\n", "</think>", "<think>", "</tool_call>", "\n", '"', "x", "{", "}", "1", "\\", "é"]
        texts += ['{"name": "tide", "arguments": {"place": "', '"}}\n', "\n\n", "analysis", "final", "<|end|>", ": "]
        texts += ["<|channel|>final<|message|>", "<|start|>assistant", "commentary to=functions.tide", "place", "<"]
        encode = self._tried.tokenizer
        for _ in range(40):
            text = self._random.choice(texts)
            if self._write(encode.encode_with_special(text) if self._random.random() < 0.6 else encode.encode(text)):
                continue
            if not self._step():
                return self.ids
        for _ in range(300):
            if not self._step(end=True):
                return self.ids
        return None

    def _write(self, ids: list[int]) -> bool:
        taken = self._matcher.try_consume_tokens(ids)
        self.ids += ids[:taken]
        return taken > 0

    def _step(self, *, end: bool = False) -> bool:
        """Take any token that may follow, with `end` one that leads to the end; false if the turn is over."""
        if self._matcher.is_stopped():
            return False
        bits = self._matcher.compute_bitmask()
        allowed = [i for i in range(512) if bits[i // 8] >> (i % 8) & 1]
        added = [i for i in allowed if i in self._added]
        closing = [i for i in allowed if self._tried.tokenizer.token_bytes(i) in (b'"', b"}", b"\n", b"<", b">", b"/")]
        pool = (added or closing or allowed) if end else allowed
        token = self._random.choice(pool if self._random.random() < 0.8 else allowed)
        assert self._matcher.consume_token(token), (self._matcher.get_error(), self.ids, token)
        self.ids.append(token)
        return True


@pytest.mark.parametrize("demand", DEMANDS.values(), ids=DEMANDS.keys())
@pytest.mark.parametrize("name", SUBJECTS)
def test_what_a_grammar_allows_meets_the_demand(name: str, demand: Demand) -> None:
    tried = subject(name)
    chat = Conversation((Message("user", "hi"),), demand.tools, answer_format=demand.wanted)
    grammar = tried.chat.grammar(chat, demand.choice)
    assert grammar is not None
    vocabulary = TokenizerFile(tried.file, 512).load()
    num_ended = 0
    for seed in range(20):
        ids = Walk(tried, vocabulary, grammar, seed).run()
        if ids is not None:
            num_ended += 1
            demand.check(merged(tried.chat.parser(), ids))
    assert num_ended > 3
