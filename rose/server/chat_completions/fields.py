"""What becomes of the body's fields that `schema` does not name. `docs/api.md` lists them for users.

Three kinds: harmless ones are accepted; those that would change the answer and cannot be honoured are refused, unless
they ask for what happens anyway; those that nobody knows are ignored and reported.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from rose.errors import RequestError
from rose.server.errors import unsupported

IGNORED_FIELDS_HEADER = "x-rose-ignored-fields"
_MAX_REPORTED = 32
_UNSAFE_IN_HEADER = re.compile(r"[^A-Za-z0-9_.-]")

# They change nothing about the answer: labels, billing, caching, storage, or a hint that costs nothing to leave.
HARMLESS_FIELDS = frozenset(
    {
        "client_metadata",
        "metadata",
        "parallel_tool_calls",  # gpt-oss ends its turn at a call, so false is kept to and true is a permission
        "prediction",
        "priority",
        "prompt_cache_key",
        "prompt_cache_retention",
        "safety_identifier",
        "service_tier",
        "skip_special_tokens",
        "spaces_between_special_tokens",
        "store",
        "user",
    }
)

# Each with the values that ask for nothing beyond what happens anyway; null always does.
UNSUPPORTED_FIELDS: Mapping[str, tuple[Any, ...]] = {
    "add_generation_prompt": (True,),
    "allowed_token_ids": (),
    "audio": (),
    "bad_words": ([],),
    "best_of": (1,),
    "cache_salt": (),
    "chat_template": (),
    "continue_final_message": (False,),
    "documents": ([],),
    "echo": (False,),
    "function_call": ("none",),
    "functions": ([],),
    "include_stop_str_in_output": (False,),
    "kv_transfer_params": (),
    "logits_processors": ([],),
    "mm_processor_kwargs": ({},),
    "modalities": (["text"],),
    "prompt_logprobs": (0,),
    "truncate_prompt_tokens": (),
    "use_beam_search": (False,),
    "verbosity": ("medium",),
    "web_search_options": (),
}


def review_fields(extra: Mapping[str, Any], *, strict: bool) -> list[str]:
    """The names of the fields that are ignored, in the body's order.

    Raises `RequestError` for a field that is meaningful and unsupported, and under `strict` for an unknown one.
    """
    ignored = []
    for name, value in extra.items():
        if name in UNSUPPORTED_FIELDS:
            if value is not None and not any(value == harmless for harmless in UNSUPPORTED_FIELDS[name]):
                raise unsupported(name, f"{name} is not supported")
        elif name not in HARMLESS_FIELDS:
            ignored.append(name)
    if ignored and strict:
        raise RequestError(
            f"unknown fields: {', '.join(ignored[:_MAX_REPORTED])}", param=ignored[0], code="unknown_parameter"
        )
    return ignored


def ignored_fields_header(ignored: Iterable[str]) -> dict[str, str]:
    """The response header that names ignored fields; no header without any. Clients' text is made safe for it."""
    names = [_UNSAFE_IN_HEADER.sub("_", name)[:64] for name in ignored][:_MAX_REPORTED]
    return {IGNORED_FIELDS_HEADER: ", ".join(names)} if names else {}
