"""The tasks `rose-demo` is trained on: each module writes conversations and the one right reply to them."""
