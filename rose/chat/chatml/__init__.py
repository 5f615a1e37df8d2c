"""ChatML and its kin: prompts by the checkpoint's own Jinja template, answers with `<think>` and `<tool_call>`."""
