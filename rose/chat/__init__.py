"""Text to tokens and back: conversations, chat formats and their stream parsers. No engine, no HTTP, no torch."""
