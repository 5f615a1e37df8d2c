"""Requests with a grammar: whatever the logits, the output follows it."""

import gc
import json
from pathlib import Path

import jsonschema
import pytest
from llguidance import LLMatcher

from rose.chat.answer_format import JsonFormat, ToolChoice
from rose.chat.conversation import Conversation, FunctionTool, Message
from rose.chat.harmony.format import HarmonyFormat
from rose.chat.merge import merge
from rose.chat.tokenizer import Tokenizer
from rose.engine.core import EngineCore
from rose.engine.sampling_params import SamplingParams
from rose.engine.scheduler_output import NewRequest
from rose.engine.worker.grammar_tokenizer import TokenizerFile
from rose.errors import CheckpointError
from tests.chat.tokenizers_for_tests import tiny_tokenizer
from tests.engine.engines import GREEDY, Result, Results, add, check_tokens, generate, make_core, run
from tests.fake_model import FakeModel

VOCAB_SIZE = 512
SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer", "maximum": 99, "minimum": 0}, "b": {"enum": ["x", "y", None]}},
    "required": ["a", "b"],
    "additionalProperties": False,
}
TOOL = FunctionTool("tide", parameters=SCHEMA, strict=True)
ASK = (Message("user", "hi"),)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer(tiny_tokenizer())


@pytest.fixture(scope="module")
def harmony(tokenizer: Tokenizer) -> HarmonyFormat:
    return HarmonyFormat(tokenizer)


@pytest.fixture(scope="module")
def tokenizer_file(tmp_path_factory) -> Path:
    file = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    tiny_tokenizer().save(str(file))
    return file


@pytest.fixture
def model(harmony: HarmonyFormat) -> FakeModel:
    return FakeModel(vocab_size=VOCAB_SIZE, max_position=512, eos_token_ids=harmony.stop_token_ids)


@pytest.fixture
def core(model: FakeModel, tokenizer_file: Path) -> EngineCore:
    return make_core(model, tokenizer_file=tokenizer_file)


@pytest.mark.parametrize("added", [[], ["<|endoftext|>"]])
def test_every_ordinary_token_is_text_to_a_grammar(added: list[str], tmp_path: Path) -> None:
    """The end of a text is none, and llguidance takes token 0 for it where it does not find a name that it knows."""
    made = tiny_tokenizer()
    made.add_special_tokens(added)
    made.save(str(tmp_path / "tokenizer.json"))
    tokenizer = Tokenizer(made)
    added_ids = made.get_added_tokens_decoder()
    ordinary = [token for token in range(tokenizer.vocab_size) if token not in added_ids]
    ordinary = [token for token in ordinary if "\ufffd" not in tokenizer.decode([token])]  # no character by itself
    assert 0 in ordinary
    vocabulary = TokenizerFile(tmp_path / "tokenizer.json", VOCAB_SIZE).load()
    assert tokenizer.is_special(vocabulary.eos_token)
    matcher = LLMatcher(vocabulary, "start: TEXT\nTEXT: /(?s:.*)/\n", log_level=0)
    refused = [token for token in ordinary if not matcher.deep_copy().consume_token(token)]
    assert not refused


@pytest.fixture
def params(harmony: HarmonyFormat, tokenizer: Tokenizer) -> SamplingParams:
    """A turn that ends in JSON of the schema; the bias lets reasoning end before long."""
    grammar = harmony.grammar(Conversation(messages=ASK, answer_format=JsonFormat(SCHEMA)), ToolChoice())
    bias = {tokenizer.special_id("<|end|>"): 6.0}
    return SamplingParams(grammar=grammar, max_tokens=300, seed=1, logit_bias=bias)


def with_(params: SamplingParams, **changes: object) -> SamplingParams:
    return SamplingParams(**{name: getattr(params, name) for name in params.__struct_fields__} | changes)


def answer(harmony: HarmonyFormat, result: Result):
    parser = harmony.parser()
    events = [event for token_id in result.token_ids for event in parser.push(token_id)]
    return merge([*events, *parser.finish(result.finish_reason)])


def check_answer(harmony: HarmonyFormat, result: Result) -> None:
    assert result.finish_reason == "stop"
    merged = answer(harmony, result)
    jsonschema.validate(json.loads(merged.content), SCHEMA)
    assert set(merged.recovered) <= {"bare_content_type"}, "a way of writing it that the model has, too"


def test_random_logits_always_give_what_is_demanded(core, harmony, params) -> None:
    for seed in range(24):
        add(core, str(seed), [seed + 1, 2], with_(params, seed=seed))
    results = run(core)
    assert len(results) == 24
    for result in results.values():
        check_answer(harmony, result)
    assert len({tuple(result.token_ids) for result in results.values()}) > 20


def test_random_logits_always_call_a_forced_tool(core, harmony, tokenizer, params) -> None:
    chat = Conversation(messages=ASK, tools=(FunctionTool("wind"), TOOL))
    grammar = harmony.grammar(chat, ToolChoice("required", ("tide",)))
    for seed in range(8):
        add(core, str(seed), [3, 4], with_(params, grammar=grammar, seed=seed))
    for result in run(core).values():
        (call,) = answer(harmony, result).tool_calls
        assert call.name == "tide"
        jsonschema.validate(json.loads(call.arguments), SCHEMA)
        assert result.token_ids[-1] == tokenizer.special_id("<|call|>")


@pytest.mark.parametrize(
    "options", [{"top_k": 5}, {"top_p": 0.3}, {"min_p": 0.5}, {"temperature": 0.0}, {"logprobs": 3}]
)
def test_with_every_way_of_sampling(core, harmony, params, options) -> None:
    for seed in range(3):
        add(core, str(seed), [7 * seed, 9], with_(params, seed=seed, **options))
    for result in run(core).values():
        check_answer(harmony, result)
        assert len(result.logprobs) == (len(result.token_ids) if "logprobs" in options else 0)


def test_seeded_tokens_are_the_same_alone_in_a_batch_and_after_preemption(model, tokenizer_file, params) -> None:
    prompts = {f"grammar {i}": [i + 1, 5, 6] for i in range(4)}
    params = with_(params, max_tokens=50)
    alone = {
        name: generate(make_core(model, tokenizer_file=tokenizer_file), prompt, params)
        for name, prompt in prompts.items()
    }
    crowded = make_core(model, tokenizer_file=tokenizer_file, num_blocks=30, max_num_batched_tokens=16)
    free = with_(params, grammar=None, max_tokens=40, logit_bias=None, ignore_eos=True)
    for name, prompt in prompts.items():
        add(crowded, name, prompt, params)
        add(crowded, f"free {name}", prompt, free)
    results = run(crowded)
    assert crowded.scheduler.stats.num_preemptions > 0
    assert {name: results[name, 0].token_ids for name in prompts} == alone
    for name, prompt in prompts.items():
        check_tokens(model, prompt, results[f"free {name}", 0].token_ids, free)


def test_each_of_n_completions_follows_it(core, harmony, params) -> None:
    add(core, "n", [1, 2, 3], with_(params, n=4))
    results = run(core)
    for index in range(4):
        check_answer(harmony, results["n", index])
    assert len({tuple(results["n", index].token_ids) for index in range(4)}) == 4


def test_a_cut_is_a_cut(core, params) -> None:
    add(core, "cut", [1], with_(params, max_tokens=3))
    result = run(core)["cut", 0]
    assert (result.finish_reason, len(result.token_ids)) == ("length", 3)


@pytest.mark.parametrize(
    "options", [{"ignore_eos": True}, {"min_tokens": 250}, {"ignore_eos": True, "min_tokens": 250}]
)
def test_where_nothing_can_follow_the_request_ends(core, harmony, params, options) -> None:
    add(core, "full", [1, 2], with_(params, **options))
    result = run(core)["full", 0]
    check_answer(harmony, result)
    assert len(result.token_ids) < 250


@pytest.mark.parametrize(
    ("grammar", "texts"),
    [
        ('start: "yes" | "no"', {"yes", "no"}),
        ('start: "yes" "!"{0,2}', {"yes", "yes!", "yes!!"}),
        (r"start: /[ab]{3}/", {x + y + z for x in "ab" for y in "ab" for z in "ab"}),
    ],
)
def test_a_grammar_without_control_tokens_ends_by_itself(core, tokenizer, grammar: str, texts: set[str]) -> None:
    for seed in range(6):
        add(core, str(seed), [seed], SamplingParams(grammar=grammar, max_tokens=40, seed=seed))
    for result in run(core).values():
        assert result.finish_reason == "stop"
        assert tokenizer.decode(result.token_ids) in texts


def failures(core: EngineCore, results: Results, name: str) -> tuple[str, str]:
    (final,) = results[name, 0].finals
    assert final.finish_reason == "error"
    return final.error.code, final.error.message


def test_a_grammar_that_does_not_compile_ends_its_request_only(core, model, harmony, params) -> None:
    add(core, "bad", [1, 2], with_(params, grammar="start: nothing_of_the_sort"))
    add(core, "free", [1, 2])
    add(core, "good", [1, 2], params)
    results = run(core)
    code, message = failures(core, results, "bad")
    assert code == "grammar_error"
    assert "nothing_of_the_sort" in message
    check_tokens(model, [1, 2], results["free", 0].token_ids, GREEDY)
    check_answer(harmony, results["good", 0])


def test_a_matcher_that_gives_up_ends_its_request_only(core, model, harmony, params) -> None:
    # It compiles, but where the many rules part, the parser has more to keep in mind than its limits allow.
    rules = range(3000)
    lines = [f"start: {' | '.join(f'r{i}' for i in rules)}", *(f"r{i}: /[a-z ]+/ /{i}/" for i in rules)]
    add(core, "stuck", [1, 2], with_(params, grammar="\n".join(lines)))
    add(core, "free", [1, 2])
    add(core, "good", [1, 2], params)
    results = run(core)
    code, message = failures(core, results, "stuck")
    assert code == "grammar_error"
    assert "3001 items" in message
    assert len(message) < 300
    check_tokens(model, [1, 2], results["free", 0].token_ids, GREEDY)
    check_answer(harmony, results["good", 0])
    add(core, "after", [1, 2], params)
    check_answer(harmony, run(core)["after", 0])


def test_bad_logits_are_still_the_models_fault(tokenizer_file, params) -> None:
    core = make_core(FakeModel(vocab_size=VOCAB_SIZE, max_position=512, poison_token=9), tokenizer_file=tokenizer_file)
    add(core, "poisoned", [9], params)
    assert failures(core, run(core), "poisoned")[0] == "model_error"


def test_without_a_tokenizer_it_is_refused(model, params) -> None:
    core = make_core(model)
    assert not core.info.takes_grammars
    add(core, "refused", [1], params)
    assert failures(core, run(core), "refused")[0] == "no_grammars"


@pytest.mark.parametrize(
    ("text", "vocab_size", "reason"),
    [
        ("{", VOCAB_SIZE, "JSONDecodeError"),
        ("[" * 100_000, VOCAB_SIZE, "RecursionError"),
        ('{"added_tokens": ["a"]}', VOCAB_SIZE, "TypeError"),
        ("{}", VOCAB_SIZE, "ValueError"),
        (None, 100, "vocab size too small"),  # another model's
        (None, 1 << 23, "PanicException"),
    ],
)
def test_a_tokenizer_that_cannot_be_used_is_told_in_one_line(text, vocab_size, reason, tokenizer_file, tmp_path):
    if text is not None:
        tokenizer_file = tmp_path / "tokenizer.json"
        tokenizer_file.write_text(text)
    with pytest.raises(CheckpointError, match=rf"{tokenizer_file} cannot be used for grammars: .*{reason}"):
        TokenizerFile(tokenizer_file, vocab_size).load()


def test_a_tokenizer_that_cannot_be_used_fails_every_request_with_a_grammar_and_no_other(model, params, tmp_path):
    """Always in the same words, and without keeping anything of the requests."""
    file = tmp_path / "tokenizer.json"
    file.write_text("{}")
    core = make_core(model, tokenizer_file=file)
    told = set()
    for number in range(20):
        add(core, "broken", [1, 2], with_(params, grammar=f'start: "{number}"'))
        add(core, "free", [1, 2])
        results = run(core)
        check_tokens(model, [1, 2], results["free", 0].token_ids, GREEDY)
        told.add(failures(core, results, "broken"))
    ((code, message),) = told
    assert code == "vocabulary_error"
    assert "tokenizer.json cannot be used for grammars: ValueError" in message
    assert str(tmp_path) not in message, "of no use to a client"
    gc.collect()
    kept = [new for new in gc.get_objects() if type(new) is NewRequest and new.params.grammar is not None]
    assert len(kept) <= 1, "the first is in the record of the log"
