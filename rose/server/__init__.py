"""The HTTP frontend: OpenAI-compatible JSON APIs over an `EngineClient` and a `ChatFormat`."""
