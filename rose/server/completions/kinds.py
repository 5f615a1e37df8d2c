"""The fields of a completion request that its schema does not name. `docs/api.md` lists them for users."""

from rose.server.fields import FieldKinds

COMPLETION_FIELDS = FieldKinds(
    harmless=frozenset({"client_metadata", "metadata", "priority", "prompt_cache_key", "safety_identifier", "user"}),
    unsupported={
        "add_special_tokens": (False,),
        "prompt_embeds": (),
        "prompt_logprobs": (0,),
        "suffix": ("",),
        "truncate_prompt_tokens": (),
        "use_beam_search": (False,),
    },
)
