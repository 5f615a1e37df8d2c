"""What constrained decoding costs: `python -m rose.bench.constraints MODEL [TOKENIZER]`.

First the grammars alone, over turns written out here, with the model's tokenizer or the one of a file: compiling, the
mask before each token, taking the token. Then the engine stepped with and without a grammar, in turns. Its times are of
the processor, all threads together, since a busy machine says nothing by the clock.
"""

import argparse
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from llguidance import LLMatcher, LLTokenizer
from llguidance.numpy import allocate_token_bitmask, fill_next_token_bitmask

from rose.bench.as_module import run_as_module
from rose.chat.answer_format import JsonFormat, ToolChoice
from rose.chat.conversation import Conversation, FunctionTool, Message
from rose.chat.registry import get_format
from rose.chat.tokenizer import Tokenizer, load_tokenizer
from rose.engine.config import EngineConfig
from rose.engine.core import EngineCore
from rose.engine.messages import AddRequest
from rose.engine.sampling_params import SamplingParams
from rose.engine.worker.grammar_tokenizer import TokenizerFile
from rose.engine.worker.worker import build_core
from rose.weights.resolve import resolve_tokenizer

_USER = (Message("user", "When is high tide?"),)
_THINK = "<|channel|>analysis<|message|>The user wants a tide. 12:40, I would say, at Oban.<|end|><|start|>assistant"
_SMALL = {
    "type": "object",
    "properties": {"place": {"type": "string"}, "high": {"type": "integer"}, "sure": {"type": "boolean"}},
    "required": ["place", "high", "sure"],
    "additionalProperties": False,
}
_MEDIUM = {
    "type": "object",
    "$defs": {"point": {"type": "object", "properties": {"x": {"type": "number"}}, "required": ["x"]}},
    "properties": {
        "id": {"type": "string", "format": "uuid"},
        "mail": {"type": "string", "format": "email"},
        "level": {"type": "integer", "minimum": 1, "maximum": 1000},
        "track": {"type": "array", "items": {"$ref": "#/$defs/point"}, "maxItems": 8},
    },
    "required": ["id", "mail", "level", "track"],
    "additionalProperties": False,
}
_SMALL_TEXT = '{"place": "Oban in Argyll", "high": 1240, "sure": true}'
_MEDIUM_TEXT = (
    '{"id": "8c5b3d0e-5f43-4c8e-9d25-0a4f3f6f2b11", "mail": "tide@oban.example", "level": 412, '
    '"track": [{"x": 1.5}, {"x": -20.25}]}'
)
_FINAL = "<|channel|>final<|message|>"
_CALL = "<|channel|>commentary to=functions.tool_7 <|constrain|>json<|message|>"
_ENDLESS = 'start: <|channel|> "analysis" <|message|> /(?s:.*)/ <|return|>\n'


def _turns() -> list[tuple[str, Conversation, ToolChoice, str]]:
    tools = tuple(FunctionTool(f"tool_{i}", parameters=_SMALL | {"title": f"Tool {i}"}, strict=True) for i in range(10))
    return [
        ("small schema", _asking(_SMALL), ToolChoice(), f"{_THINK}{_FINAL}{_SMALL_TEXT}<|return|>"),
        ("medium schema", _asking(_MEDIUM), ToolChoice(), f"{_THINK}{_FINAL}{_MEDIUM_TEXT}<|return|>"),
        ("10 tools", Conversation(_USER, tools), ToolChoice("required"), f"{_THINK}{_CALL}{_SMALL_TEXT}<|call|>"),
    ]


def _asking(schema: dict[str, Any]) -> Conversation:
    return Conversation(_USER, answer_format=JsonFormat(schema))


def _time_grammars(tokenizer: Tokenizer, vocabulary: TokenizerFile) -> None:
    begin = time.perf_counter()
    tokens = vocabulary.load()
    print(f"tokenizer: {vocabulary.vocab_size} tokens, {time.perf_counter() - begin:.3f} s")
    print("| grammar | write and check, ms | compile, ms | mask p50 / p99 / max, us | take p50 / p99, us |")
    print("|---|---:|---:|---:|---:|")
    chat_format = get_format("harmony", tokenizer)
    for name, conversation, choice, turn in _turns():
        begin = time.perf_counter()
        grammar = chat_format.grammar(conversation, choice)
        check_s = time.perf_counter() - begin
        assert grammar is not None
        compile_s: list[float] = []
        masks: list[float] = []
        takes: list[float] = []
        for _ in range(10):
            begin = time.perf_counter()
            matcher = LLMatcher(tokens, grammar)
            compile_s.append(time.perf_counter() - begin)
            _walk(matcher, tokenizer.encode_with_special(turn), tokens, masks, takes)
        mask = " / ".join(f"{value * 1e6:.0f}" for value in (*np.percentile(masks, (50, 99)), max(masks)))
        take = " / ".join(f"{value * 1e6:.0f}" for value in np.percentile(takes, (50, 99)))
        print(f"| {name} | {check_s * 1e3:.1f} | {statistics.median(compile_s) * 1e3:.1f} | {mask} | {take} |")


def _walk(
    matcher: LLMatcher, token_ids: Sequence[int], tokens: LLTokenizer, masks: list[float], takes: list[float]
) -> None:
    words = allocate_token_bitmask(1, tokens.vocab_size)
    for token_id in token_ids:
        begin = time.perf_counter()
        fill_next_token_bitmask(matcher, words)
        masks.append(time.perf_counter() - begin)
        begin = time.perf_counter()
        taken = matcher.consume_token(token_id)
        takes.append(time.perf_counter() - begin)
        assert taken, matcher.get_error()


def _time_steps(core: EngineCore, batch: int, return_id: int, *, num_steps: int = 60) -> None:
    """Steps of decode with and without a grammar, of equal length, `batch` requests each."""
    free: list[float] = []
    bound: list[float] = []
    for turn in range(6):
        grammar = _ENDLESS if turn % 2 else None
        params = SamplingParams(
            ignore_eos=True, max_tokens=num_steps + 1, seed=turn, grammar=grammar, logit_bias={return_id: -100.0}
        )
        for i in range(batch):
            core.add(AddRequest(request_id=f"{turn}.{i}", prompt_token_ids=[5, 6, 7], sampling_params=params))
        core.step()
        while core.has_work:
            begin = time.process_time()
            core.step()
            (bound if turn % 2 else free).append(time.process_time() - begin)
    free_ms, bound_ms = statistics.median(free) * 1e3, statistics.median(bound) * 1e3
    print(f"| {batch} | {free_ms:.2f} | {bound_ms:.2f} | {bound_ms - free_ms:+.2f} |")


def main() -> None:
    """Print both tables for a model; the first for another vocabulary, if there is one."""
    parser = argparse.ArgumentParser(description="What constrained decoding costs.")
    parser.add_argument("model")
    parser.add_argument("tokenizer", type=Path, nargs="?", help="file of another vocabulary, for the grammars alone")
    options = parser.parse_args()
    model, tokenizer_file = options.model, options.tokenizer
    folder = resolve_tokenizer(model, "auto")
    tokenizer = load_tokenizer(folder)
    core = build_core(EngineConfig(model=model, max_model_len=256, max_num_seqs=64, num_blocks=2048, seed=0))
    if tokenizer_file is None:
        _time_grammars(tokenizer, TokenizerFile(folder / "tokenizer.json", core.info.vocab_size))
    else:
        other = load_tokenizer(tokenizer_file)
        _time_grammars(other, TokenizerFile(tokenizer_file, other.vocab_size))
    return_id = tokenizer.special_id("<|return|>")
    assert return_id is not None
    print("\n| requests | free step, CPU ms | constrained step, CPU ms | difference |")
    print("|---:|---:|---:|---:|")
    for batch in (1, 8, 32, 64):
        _time_steps(core, batch, return_id)


if __name__ == "__main__":
    run_as_module(main)
