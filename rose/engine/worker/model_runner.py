"""One step on the device: inputs, forward pass, sampling."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager

import msgspec
import torch
from torch import Tensor

from rose.engine.messages import MODEL_ERROR, RequestFailure, TokenLogprobs
from rose.engine.scheduler_output import SampledTokens, ScheduledRequest, SchedulerOutput
from rose.engine.worker.cuda_graph import ForwardGraphs
from rose.engine.worker.grammar import NO_MASKS, Grammars, Masks, Progress
from rose.engine.worker.input_batch import InputBatch, PromptRows
from rose.engine.worker.input_buffers import StepInputs
from rose.engine.worker.sampler import Sampled, as_sampled, sample, token_logprobs
from rose.kernels.sampling.op import sample_tokens
from rose.models.base import CausalLM

_NOT_FINITE = RequestFailure(message="the model gave logits that are not finite numbers", code=MODEL_ERROR)
_PROMPT_ROWS = 64  # of a prompt whose logits are in memory together


class ModelRunner:
    """Runs the model over what the scheduler chose."""

    def __init__(
        self,
        model: CausalLM,
        inputs: InputBatch,
        grammars: Grammars | None = None,
        graphs: ForwardGraphs | None = None,
    ) -> None:
        """graphs: of the model, with the same inputs; without them every step is launched kernel by kernel."""
        self._model = model
        self._inputs = inputs
        self._grammars = grammars
        self._graphs = graphs

    @torch.inference_mode()
    def execute(self, output: SchedulerOutput, meanwhile: Callable[[], None] = lambda: None) -> list[SampledTokens]:
        """Compute one step; an entry for each request that reached the end of its tokens or tells of its prompt.

        meanwhile: called when the device has been given its work, before anything waits for it.
        """
        self._inputs.apply(output)
        if self._grammars is not None:
            self._grammars.apply(output)
        keys = self._inputs.sampling_keys(output.scheduled)
        pending = None if self._grammars is None else self._grammars.begin_masks(keys)
        prompts = self._inputs.prompt_rows(output.scheduled)
        eager = self._forward_eagerly(output.scheduled) if prompts else None
        computed = self._forward(output.scheduled, len(keys)) if eager is None else self._logits(*eager, len(keys))
        self._inputs.draw_ahead(keys)
        meanwhile()
        told = {} if eager is None else {rows.key: self._prompt_logprobs(eager[1], rows) for rows in prompts}
        results = self._sample(keys, computed, pending)
        if not told:
            return results
        results = [msgspec.structs.replace(each, prompt_logprobs=told.pop(each.key, None)) for each in results]
        return results + [SampledTokens(key=key, token_ids=[], prompt_logprobs=each) for key, each in told.items()]

    @contextmanager
    def without_graphs(self) -> Iterator[None]:
        """While the block runs, every step calls the model's layers and has no padding."""
        graphs, self._graphs = self._graphs, None
        try:
            yield
        finally:
            self._graphs = graphs

    def _forward(self, scheduled: Sequence[ScheduledRequest], num_sampling: int) -> tuple[Tensor, Tensor] | None:
        """Compute a step. Of the requests that sample: logits, [num_sampling, vocab_size], and `sample_tokens` of them.

        None if no request samples.
        """
        if self._graphs is not None and (padded := self._graphs.choose(self._inputs.shape(scheduled))) is not None:
            inputs = self._graphs.inputs(padded)
            self._inputs.fill(inputs, scheduled)
            logits, chosen = self._graphs.run(padded, inputs)
            return (logits[:num_sampling], chosen[:, :num_sampling]) if num_sampling else None
        return self._logits(*self._forward_eagerly(scheduled), num_sampling)

    def _forward_eagerly(self, scheduled: Sequence[ScheduledRequest]) -> tuple[StepInputs, Tensor]:
        """A step's inputs and the last hidden states, [num_tokens, hidden_size]."""
        inputs = self._inputs.buffers.inputs(self._inputs.shape(scheduled))
        self._inputs.fill(inputs, scheduled)
        return inputs, self._model.forward(inputs.batch)

    def _logits(self, inputs: StepInputs, hidden: Tensor, num_sampling: int) -> tuple[Tensor, Tensor] | None:
        """What `_forward` returns."""
        if not num_sampling:
            return None
        logits = self._model.compute_logits(hidden[inputs.sampling_rows[:num_sampling]])
        return logits, sample_tokens(logits, inputs.temperatures[:num_sampling], inputs.uniforms[:num_sampling])

    def _prompt_logprobs(self, hidden: Tensor, rows: PromptRows) -> list[TokenLogprobs]:
        """A few rows at a time: the logits of a whole prompt would take more memory than the model."""
        told: list[TokenLogprobs] = []
        for start in range(0, len(rows.targets), _PROMPT_ROWS):
            targets = torch.from_numpy(rows.targets[start : start + _PROMPT_ROWS]).to(hidden.device)
            first = rows.first_row + start
            logits = self._model.compute_logits(hidden[first : first + len(targets)])
            told += token_logprobs(logits, targets, [rows.num_top] * len(targets))
        return told

    def _sample(
        self, keys: list[int], computed: tuple[Tensor, Tensor] | None, pending: Future[Masks] | None
    ) -> list[SampledTokens]:
        """The tokens of a step. computed: what `_forward` returned; pending: the masks of grammars."""
        if computed is None:
            return []
        logits, chosen = computed
        if self._inputs.all_plain(keys):
            return self._take(keys, as_sampled(chosen), {})
        rows = [self._inputs.sampling_row(key) for key in keys]
        masks = NO_MASKS if pending is None else pending.result()
        return self._take(keys, sample(logits, rows, masks.mask), masks.failures)

    def _take(
        self, keys: list[int], sampled: list[Sampled], refused: Mapping[int, RequestFailure]
    ) -> list[SampledTokens]:
        """The results of a step, when the grammars have heard of them. refused: as `Masks.failures`."""
        results = [
            _result(key, one, refused.get(place)) for place, (key, one) in enumerate(zip(keys, sampled, strict=True))
        ]
        if self._grammars is not None:
            results = _heard_by(self._grammars, results)
        for result in results:
            if result.failure is None:
                self._inputs.append_token(result.key, result.token_ids[0])
        return results


def _heard_by(grammars: Grammars, results: list[SampledTokens]) -> list[SampledTokens]:
    """The results, with what the grammars say to them."""
    taken = {result.key: result.token_ids[0] for result in results if result.failure is None}
    for place, progress in enumerate(map(grammars.advance(taken).get, (result.key for result in results))):
        match progress:
            case Progress.FAILED:
                results[place] = _failed(results[place].key, grammars.failure(results[place].key))
            case Progress.COMPLETE:
                results[place] = msgspec.structs.replace(results[place], is_complete=True)
    return results


def _result(key: int, sampled: Sampled, refused: RequestFailure | None) -> SampledTokens:
    if refused is not None:
        return _failed(key, refused)
    if not sampled.is_valid:
        return _failed(key, _NOT_FINITE)
    logprobs = None if sampled.logprobs is None else [sampled.logprobs]
    return SampledTokens(key=key, token_ids=[sampled.token_id], logprobs=logprobs)


def _failed(key: int, failure: RequestFailure) -> SampledTokens:
    return SampledTokens(key=key, token_ids=[], failure=failure)
