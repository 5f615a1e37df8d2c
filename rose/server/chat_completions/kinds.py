"""The fields of a chat completion request that its schema does not name. `docs/api.md` lists them for users."""

from rose.server.fields import FieldKinds

CHAT_FIELDS = FieldKinds(
    harmless=frozenset(
        {
            "client_metadata",
            "metadata",
            "parallel_tool_calls",  # gpt-oss ends its turn at a call, so false is kept to and true is a permission
            "prediction",
            "priority",
            "prompt_cache_key",
            "prompt_cache_options",
            "prompt_cache_retention",
            "safety_identifier",
            "service_tier",
            "skip_special_tokens",
            "spaces_between_special_tokens",
            "store",
            "user",
        }
    ),
    unsupported={
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
        "moderation": (),
        "prompt_logprobs": (0,),
        "truncate_prompt_tokens": (),
        "use_beam_search": (False,),
        "verbosity": ("medium",),
        "web_search_options": (),
    },
)
