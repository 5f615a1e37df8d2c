"""One step on the device: inputs, forward pass, sampling."""

from collections.abc import Mapping

import msgspec
import torch

from rose.engine.scheduler_output import SampledTokens, SchedulerOutput
from rose.engine.worker.grammar import NO_MASKS, Grammars, Progress
from rose.engine.worker.input_batch import InputBatch
from rose.engine.worker.sampler import Sampled, sample
from rose.models.base import CausalLM


class ModelRunner:
    """Runs the model over what the scheduler chose."""

    def __init__(self, model: CausalLM, inputs: InputBatch, grammars: Grammars | None = None) -> None:
        self._model = model
        self._inputs = inputs
        self._grammars = grammars

    @torch.inference_mode()
    def execute(self, output: SchedulerOutput) -> list[SampledTokens]:
        """Compute one step; an entry for each request that reached the end of its known tokens."""
        self._inputs.apply(output)
        if self._grammars is not None:
            self._grammars.apply(output)
        step = self._inputs.build(output.scheduled)
        pending = None if self._grammars is None else self._grammars.begin_masks(step.sampling_keys)
        hidden = self._model.forward(step.batch)  # [num_tokens, hidden_size]
        if not step.sampling_keys:
            return []
        logits = self._model.compute_logits(hidden[step.sampling_rows])  # [num_sampling, vocab_size] f32
        masks = NO_MASKS if pending is None else pending.result()
        sampled = sample(logits, [self._inputs.sampling_row(key) for key in step.sampling_keys], masks.mask)
        return self._take(step.sampling_keys, sampled, masks.failures)

    def _take(self, keys: list[int], sampled: list[Sampled], refused: Mapping[int, str]) -> list[SampledTokens]:
        """The results of a step, when the grammars have heard of them. refused: as `Masks.failures`."""
        results = [
            _result(key, one, refused.get(place)) for place, (key, one) in enumerate(zip(keys, sampled, strict=True))
        ]
        taken = {result.key: result.token_ids[0] for result in results if result.error is None}
        progress = {} if self._grammars is None else self._grammars.advance(taken)
        for place, result in enumerate(results):
            match progress.get(result.key):
                case Progress.FAILED if self._grammars is not None:
                    results[place] = _failed(result.key, self._grammars.reason(result.key))
                case Progress.COMPLETE:
                    results[place] = msgspec.structs.replace(result, is_complete=True)
            if results[place].error is None:
                self._inputs.append_token(result.key, result.token_ids[0])
        return results


def _result(key: int, sampled: Sampled, refused: str | None) -> SampledTokens:
    if refused is not None:
        return _failed(key, refused)
    if not sampled.is_valid:
        return SampledTokens(key=key, token_ids=[], error="the model gave logits that are not finite numbers")
    logprobs = None if sampled.logprobs is None else [sampled.logprobs]
    return SampledTokens(key=key, token_ids=[sampled.token_id], logprobs=logprobs)


def _failed(key: int, reason: str) -> SampledTokens:
    return SampledTokens(key=key, token_ids=[], error=f"the grammar failed: {reason}", error_code="grammar_error")
