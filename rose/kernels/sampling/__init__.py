"""The next token of each row of logits."""
