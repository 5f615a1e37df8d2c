"""The fields of a Responses request that its schema does not name. `docs/api.md` lists them for users."""

from rose.server.fields import FieldKinds

RESPONSES_FIELDS = FieldKinds(
    harmless=frozenset(
        {
            "client_metadata",
            "prompt_cache_options",
            "prompt_cache_retention",
            "service_tier",
            "stream_options",  # what it can ask for pads events against eavesdroppers
            "max_tool_calls",  # counts built-in tools' calls, and there are none
        }
    ),
    unsupported={
        "background_options": ({},),
        "context_management": ([],),
        "conversation": (),
        "moderation": (),
        "prompt": (),
    },
)
