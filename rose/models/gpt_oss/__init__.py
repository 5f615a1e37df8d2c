"""OpenAI's gpt-oss: its config, its layers, and the names of its weights."""
