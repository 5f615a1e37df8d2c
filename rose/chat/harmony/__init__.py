"""Harmony, the chat format of the gpt-oss models: rendering prompts, and reading what the model samples."""
