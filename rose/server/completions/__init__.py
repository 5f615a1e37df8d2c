"""`/v1/completions`: text or token ids continued, without a chat."""
