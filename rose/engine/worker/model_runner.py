"""One step on the device: inputs, forward pass, sampling."""

import torch

from rose.engine.scheduler_output import SampledTokens, SchedulerOutput
from rose.engine.worker.input_batch import InputBatch
from rose.engine.worker.sampler import Sampled, sample
from rose.models.base import CausalLM


class ModelRunner:
    """Runs the model over what the scheduler chose."""

    def __init__(self, model: CausalLM, inputs: InputBatch) -> None:
        self._model = model
        self._inputs = inputs

    @torch.inference_mode()
    def execute(self, output: SchedulerOutput) -> list[SampledTokens]:
        """Compute one step; an entry for each request that reached the end of its known tokens."""
        self._inputs.apply(output)
        step = self._inputs.build(output.scheduled)
        hidden = self._model.forward(step.batch)  # [num_tokens, hidden_size]
        if not step.sampling_keys:
            return []
        logits = self._model.compute_logits(hidden[step.sampling_rows])  # [num_sampling, vocab_size] f32
        sampled = sample(logits, [self._inputs.sampling_row(key) for key in step.sampling_keys])
        return [self._take(key, token) for key, token in zip(step.sampling_keys, sampled, strict=True)]

    def _take(self, key: int, sampled: Sampled) -> SampledTokens:
        if not sampled.is_valid:
            return SampledTokens(key=key, token_ids=[], error="the model gave logits that are not finite numbers")
        self._inputs.append_token(key, sampled.token_id)
        logprobs = None if sampled.logprobs is None else [sampled.logprobs]
        return SampledTokens(key=key, token_ids=[sampled.token_id], logprobs=logprobs)
