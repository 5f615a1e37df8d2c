"""The fields of a Responses request that its schema does not name. `docs/api.md` lists them for users."""

from rose.server.fields import FieldKinds

RESPONSES_FIELDS = FieldKinds(
    harmless=frozenset(
        {
            "access_programs",  # which of OpenAI's own models are used
            "client_metadata",
            "image",  # how images are treated, and there are none
            "prompt_cache_options",
            "prompt_cache_retention",
            "service_tier",
            "stream_options",  # what it can ask for pads events against eavesdroppers
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
