"""From the request body to what the generator takes; refusals name their field."""

import msgspec

from rose.chat.plain_text import plain_text_grammar
from rose.chat.tokenizer import Tokenizer
from rose.errors import RequestError
from rose.server.completions.schema import CompletionRequest
from rose.server.errors import unsupported
from rose.server.generation import GenerationRequest, TokenPrompt
from rose.server.guided import wanted_form
from rose.server.sampling import sampling_params, stop_strings

DEFAULT_MAX_TOKENS = 16  # OpenAI's
MAX_PROMPTS = 2048


def to_generation_requests(body: CompletionRequest, tokenizer: Tokenizer, vocab_size: int) -> list[GenerationRequest]:
    """One request for each prompt. Raises `RequestError` for what cannot be honoured."""
    if body.best_of is not None and body.best_of != (body.n or 1):
        raise unsupported("best_of", f"best_of is not supported, except as n, which is {body.n or 1}")
    form = wanted_form(body)
    params = sampling_params(
        body,
        n=body.n,
        max_tokens=DEFAULT_MAX_TOKENS if body.max_tokens is None else body.max_tokens,
        logprobs=body.logprobs,
        grammar=None if form is None else plain_text_grammar(form),
    )
    if body.echo:
        params = msgspec.structs.replace(params, prompt_logprobs=body.logprobs)
    stop = stop_strings(body.stop)
    return [
        GenerationRequest(conversation=TokenPrompt(ids), sampling_params=params, stop=stop)
        for ids in _prompts(body, tokenizer, vocab_size)
    ]


def _prompts(body: CompletionRequest, tokenizer: Tokenizer, vocab_size: int) -> list[list[int]]:
    prompt = body.prompt
    if isinstance(prompt, str):
        return [_encode(prompt, tokenizer, "prompt")]
    if not prompt:
        raise RequestError("prompt must not be an empty list", param="prompt", code="invalid_value")
    if isinstance(prompt[0], int):
        return [_checked(prompt, vocab_size, "prompt")]
    if len(prompt) > MAX_PROMPTS:
        raise RequestError(f"prompt may have {MAX_PROMPTS} entries, not {len(prompt)}", param="prompt")
    return [
        _encode(each, tokenizer, f"prompt[{i}]")
        if isinstance(each, str)
        else _checked(each, vocab_size, f"prompt[{i}]")
        for i, each in enumerate(prompt)
    ]


def _encode(text: str, tokenizer: Tokenizer, param: str) -> list[int]:
    if text:
        return tokenizer.encode(text)
    start = tokenizer.special_id("<|endoftext|>")  # a text with nothing before it begins after this one
    if start is None:
        raise RequestError(f"{param} must not be empty", param=param, code="invalid_value")
    return [start]


def _checked(ids: object, vocab_size: int, param: str) -> list[int]:
    assert isinstance(ids, list)
    if not ids:
        raise RequestError(f"{param} must not be empty", param=param, code="invalid_value")
    for i, token_id in enumerate(ids):
        if not 0 <= token_id < vocab_size:
            message = f"{token_id} is no token id; this model's are 0 to {vocab_size - 1}"
            raise RequestError(message, param=f"{param}[{i}]", code="invalid_token_id")
    return ids


def as_client_named_it(error: RequestError) -> RequestError:
    """The error with the name that this API has for the parameter at fault."""
    if error.param != "messages":
        return error
    return RequestError(error.message, param="prompt", code=error.code)
