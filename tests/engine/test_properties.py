"""Random traffic against the definition: batching, chunks, cache, windows and preemption must not show."""

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from rose.engine.messages import Abort
from rose.engine.sampling_params import SamplingParams
from tests.engine.engines import Results, add, check_tokens, make_core, run
from tests.fake_model import FULL, FakeModel, sliding

MODELS = {
    "full": FakeModel(attention_specs=(FULL, FULL)),
    "sliding": FakeModel(attention_specs=(sliding(5),)),
    "unequal groups": FakeModel(attention_specs=(FULL, sliding(5), sliding(5))),
    "window of one": FakeModel(attention_specs=(sliding(1), FULL)),
    "window of a block and one": FakeModel(attention_specs=(FULL, sliding(5))),
    "two windows": FakeModel(attention_specs=(sliding(3), sliding(9), FULL)),
    "wide window": FakeModel(attention_specs=(FULL, sliding(100))),
}

# Few stems and few tokens, so that prompts share beginnings of every length.
prompts = st.builds(
    lambda stem, length, tail: [stem + i % 7 for i in range(length)] + tail,
    st.integers(0, 1),
    st.integers(0, 24),
    st.lists(st.integers(0, 3), min_size=1, max_size=3),
)
params = st.builds(
    SamplingParams,
    temperature=st.sampled_from((0.0, 1.0)),
    top_p=st.sampled_from((1.0, 0.5)),
    seed=st.integers(0, 3),
    n=st.sampled_from((1, 1, 1, 3)),
    max_tokens=st.integers(1, 14),
    stop_token_ids=st.sampled_from(((), (1, 2, 3, 4, 5))),
    frequency_penalty=st.sampled_from((0.0, 1.0)),
)


class Traffic(RuleBasedStateMachine):
    """Requests come and are aborted between steps of an engine with little memory."""

    @initialize(
        model=st.sampled_from(sorted(MODELS)),
        spare_blocks=st.integers(0, 20),
        block_size=st.sampled_from((1, 4)),
        max_num_seqs=st.integers(1, 5),
        extra_budget=st.integers(0, 20),
        caching=st.booleans(),
    )
    def start(
        self, model: str, spare_blocks: int, block_size: int, max_num_seqs: int, extra_budget: int, caching: bool
    ) -> None:
        self.model = MODELS[model]
        longest = 24 + 3 + 14
        groups = len(set(self.model.attention_specs))
        self.core = make_core(
            self.model,
            num_blocks=1 + groups * (-(-longest // block_size) + 1) + spare_blocks,
            block_size=block_size,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_seqs + extra_budget,
            max_model_len=longest,
            enable_prefix_caching=caching,
        )
        self.requests: dict[str, tuple[list[int], SamplingParams]] = {}
        self.results = Results()

    @rule(prompt=prompts, params=params)
    def arrive(self, prompt: list[int], params: SamplingParams) -> None:
        request_id = f"r{len(self.requests)}"
        self.requests[request_id] = (prompt, params)
        add(self.core, request_id, prompt, params)

    @precondition(lambda self: self.requests)
    @rule(data=st.data(), index=st.sampled_from((None, 0, 1)))
    def abort(self, data: st.DataObject, index: int | None) -> None:
        request_id = data.draw(st.sampled_from(sorted(self.requests)))
        self.core.abort(Abort(request_id=request_id, index=index))

    @rule(count=st.integers(1, 6))
    def step(self, count: int) -> None:
        for _ in range(count):
            self.results.take(self.core.step().outputs)
            self.core.scheduler.check_integrity()

    @invariant()
    def books_balance(self) -> None:
        if hasattr(self, "core"):
            self.core.scheduler.check_integrity()

    def teardown(self) -> None:
        if not hasattr(self, "core"):
            return
        run(self.core, self.results)
        for request_id, (prompt, params) in self.requests.items():
            for index in range(params.n):
                result = self.results[request_id, index]
                assert len(result.finals) == 1
                check_tokens(self.model, prompt, result.token_ids, params, index)
                self.check_end(result.token_ids, result.finish_reason, params)

    def check_end(self, token_ids: list[int], reason: str | None, params: SamplingParams) -> None:
        assert not any(token_id in params.stop_token_ids for token_id in token_ids[:-1])
        if reason == "stop":
            assert token_ids[-1] in params.stop_token_ids
        elif reason == "length":
            assert len(token_ids) == params.max_tokens
        else:
            assert reason == "abort"


Traffic.TestCase.settings = settings(max_examples=100, stateful_step_count=25, suppress_health_check=list(HealthCheck))
TestTraffic = Traffic.TestCase
