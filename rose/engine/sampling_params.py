"""How the next token of a request is chosen, and when the request ends. Token ids only, no text."""

import msgspec

from rose.errors import RequestError

MAX_TOP_LOGPROBS = 20
MAX_N = 128
_MAX_INT = 2**63 - 1  # what the messages to the engine can hold


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Sampling and stopping rules of one request.

    The order of the steps: penalties and logit bias on the raw logits, the grammar's mask, `min_tokens` masking,
    temperature, then top-k, top-p and min-p on the distribution that temperature left. Reported logprobs are those of
    the raw logits.

    n: completions to make of the one prompt; the outputs carry their `index`.
    temperature: 0 is greedy. top_k: 0 is off. top_p: nucleus mass in (0, 1]. min_p: share of the best
    token's probability below which a token is dropped, in [0, 1].
    presence_penalty, frequency_penalty: subtracted once, or per occurrence, for tokens already generated
    (OpenAI's definition). repetition_penalty: 0.01 to 100; divides positive and multiplies negative logits of tokens
    seen in prompt or output (Keskar et al. 2019, CTRL).
    logit_bias: token id -> added to its logit, -100 to 100. seed: same seed, same tokens, alone or in a batch;
    completion `i` of n uses `seed + i`.
    logprobs: None for none, 0 for the chosen token's, k for the top k besides. prompt_logprobs: the same of the
    prompt's tokens but the first, which nothing foretells; told once for all n.
    max_tokens: None for as many as fit the context. min_tokens: stop ids are masked until then.
    stop_token_ids: end the request; the stopping id is the last of its output ids. ignore_eos: pay them no heed.
    grammar: what the output must follow, one of llguidance's grammars in Lark. The request ends with `stop` where
    nothing can follow. Where only a stop id can, `min_tokens` does not hold it back.
    """

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[int, float] | None = None
    seed: int | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    max_tokens: int | None = None
    min_tokens: int = 0
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    grammar: str | None = None

    def validate(self) -> None:
        """Raise `RequestError`, naming the field, for a value outside its range."""
        for name, value, low, high in (
            ("n", self.n, 1, MAX_N),
            ("temperature", self.temperature, 0.0, 2.0),
            ("top_k", self.top_k, 0, _MAX_INT),
            ("min_p", self.min_p, 0.0, 1.0),
            ("presence_penalty", self.presence_penalty, -2.0, 2.0),
            ("frequency_penalty", self.frequency_penalty, -2.0, 2.0),
            ("repetition_penalty", self.repetition_penalty, 0.01, 100.0),
            ("logprobs", self.logprobs or 0, 0, MAX_TOP_LOGPROBS),
            ("prompt_logprobs", self.prompt_logprobs or 0, 0, MAX_TOP_LOGPROBS),
            ("max_tokens", 1 if self.max_tokens is None else self.max_tokens, 1, _MAX_INT),
            ("min_tokens", self.min_tokens, 0, _MAX_INT),
            ("seed", self.seed or 0, -_MAX_INT - 1, _MAX_INT),
        ):
            if not low <= value <= high:  # NaN fails every comparison, so it is refused here too
                bounds = f"at least {low}" if high == _MAX_INT and value < low else f"between {low} and {high}"
                raise RequestError(f"{name} must be {bounds}, not {value}", param=name)
        if not 0.0 < self.top_p <= 1.0:
            raise RequestError(f"top_p must be above 0 and at most 1, not {self.top_p}", param="top_p")
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise RequestError(
                f"min_tokens ({self.min_tokens}) is larger than max_tokens ({self.max_tokens})", param="min_tokens"
            )
        for name, ids in (("logit_bias", self.logit_bias or ()), ("stop_token_ids", self.stop_token_ids)):
            if any(abs(token_id) > _MAX_INT for token_id in ids):  # the engine knows its vocabulary and checks the rest
                raise RequestError(f"{name} has a token id that is none of any model", param=name)
        if not all(-100.0 <= bias <= 100.0 for bias in (self.logit_bias or {}).values()):
            raise RequestError("logit_bias values must be between -100 and 100", param="logit_bias")
