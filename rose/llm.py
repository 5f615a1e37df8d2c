"""Generation without a server: prompts in, completions out, in this process."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, cast

from rose.engine.config import EngineConfig
from rose.engine.messages import AddRequest, EngineReady, FinishReason, RequestOutput, TokenLogprobs
from rose.engine.sampling_params import SamplingParams
from rose.errors import EngineDead, RequestError

if TYPE_CHECKING:
    from rose.chat.tokenizer import Tokenizer
    from rose.engine.core import EngineCore

Prompt = str | list[int]


@dataclass(slots=True)
class Completion:
    """One completion of a prompt.

    text: None if the model was loaded by a loader of your own and has no tokenizer. logprobs: one entry for each
    token, if they were asked for. error: why there is no more of it, if `finish_reason` is `error`.
    """

    index: int
    token_ids: list[int] = field(default_factory=list)
    text: str | None = None
    logprobs: list[TokenLogprobs] | None = None
    finish_reason: FinishReason | None = None
    error: str | None = None


@dataclass(slots=True)
class Generation:
    """All completions of one prompt. prompt: the text, if it was one. num_cached_tokens: from the prefix cache.

    prompt_logprobs: one entry for each token of the prompt but the first, if they were asked for.
    """

    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[Completion]
    num_cached_tokens: int = 0
    prompt_logprobs: list[TokenLogprobs] | None = None


class LLM:
    """A loaded model. Use it in a `with` statement, or call `close`, to give its memory back.

        with LLM("openai/gpt-oss-20b") as llm:
            [generation] = llm.generate("The capital of France is", SamplingParams(max_tokens=8))
            print(generation.outputs[0].text)

    Not thread-safe.
    """

    def __init__(self, model: str, *, progress: Callable[[int, int], None] | None = None, **options: Any) -> None:
        """Load `model`; `options` are the other fields of `EngineConfig`.

        progress: called with the bytes of weights loaded, and those in all. Raises `ConfigError`, `CheckpointError`.
        """
        from rose.engine.worker.worker import build_core  # imports torch

        config = EngineConfig(model=model, **options)
        self._open_core: EngineCore | None = build_core(config, progress)
        self._tokenizer = _find_tokenizer(model, config.load_format)
        self._ids = itertools.count()

    @property
    def info(self) -> EngineReady:
        """Facts about the model and the engine."""
        return self._core.info

    @property
    def _core(self) -> "EngineCore":
        if self._open_core is None:
            raise EngineDead("this LLM was closed")
        return self._open_core

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> list[Generation]:
        """Complete prompts, together, and return the completions in the prompts' order.

        prompts: one or several; each a text, in which no special token is recognised, or a list of token ids.
        sampling_params: for all, or one for each prompt. Raises `RequestError` for parameters out of range; a prompt
        that cannot be served, such as one too long, gets completions with an `error` and leaves the others alone.
        """
        core = self._core
        prompt_list = _as_list(prompts)
        params_list = _match_params(sampling_params, len(prompt_list))
        for params in params_list:
            params.validate()
        generations: dict[str, Generation] = {}
        try:
            for prompt, params in zip(prompt_list, params_list, strict=True):
                request_id = str(next(self._ids))
                generations[request_id] = self._start(request_id, prompt, params)
            while core.has_work:
                for output in core.step().outputs:
                    _take(generations[output.request_id], output)
        finally:
            core.abort_all()  # nothing is open, unless an interrupt or an error brought us here
        results = list(generations.values())
        for completion in (completion for result in results for completion in result.outputs):
            if self._tokenizer is not None:
                completion.text = self._tokenizer.decode(completion.token_ids)
        return results

    def close(self) -> None:
        """Give the model's memory back. Calling it twice is harmless."""
        self._open_core = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _start(self, request_id: str, prompt: Prompt, params: SamplingParams) -> Generation:
        token_ids = self._encode(prompt) if isinstance(prompt, str) else list(prompt)
        self._core.add(AddRequest(request_id=request_id, prompt_token_ids=token_ids, sampling_params=params))
        return Generation(
            prompt=prompt if isinstance(prompt, str) else None,
            prompt_token_ids=token_ids,
            outputs=[Completion(index=index) for index in range(params.n)],
        )

    def _encode(self, text: str) -> list[int]:
        if self._tokenizer is None:
            raise RequestError("this model has no tokenizer: give token ids instead of text", param="prompt")
        return self._tokenizer.encode(text)


def _find_tokenizer(model: str, load_format: str) -> "Tokenizer | None":
    from rose.chat.tokenizer import load_tokenizer
    from rose.weights.resolve import resolve_tokenizer

    if load_format not in ("auto", "dummy"):
        return None  # only the loader knows the model
    return load_tokenizer(resolve_tokenizer(model, load_format))


def _as_list(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    if isinstance(prompts, str) or (len(prompts) > 0 and all(isinstance(item, int) for item in prompts)):
        return [cast("Prompt", prompts)]
    return list(cast("Sequence[Prompt]", prompts))


def _match_params(given: SamplingParams | Sequence[SamplingParams] | None, count: int) -> list[SamplingParams]:
    if given is None or isinstance(given, SamplingParams):
        return [given or SamplingParams()] * count
    if len(given) != count:
        raise RequestError(f"{len(given)} sampling_params for {count} prompts", param="sampling_params")
    return list(given)


def _take(generation: Generation, output: RequestOutput) -> None:
    completion = generation.outputs[output.index]
    completion.token_ids += output.token_ids
    if output.prompt_logprobs is not None:
        generation.prompt_logprobs = output.prompt_logprobs
    if output.logprobs is not None:
        completion.logprobs = completion.logprobs or []
        completion.logprobs += output.logprobs
    if output.finish_reason is not None:
        completion.finish_reason = output.finish_reason
        completion.error = None if output.error is None else output.error.message
        if output.index == 0:
            generation.num_cached_tokens = output.num_cached_tokens
