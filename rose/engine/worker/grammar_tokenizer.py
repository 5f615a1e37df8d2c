"""The vocabulary as grammars see it: the bytes of each token, and which are control tokens. No text is encoded."""

from dataclasses import dataclass
from pathlib import Path

import llguidance


@dataclass(frozen=True, slots=True)
class TokenizerFile:
    """Where the vocabulary is. vocab_size: of the model's logits, which may have more columns than there are tokens."""

    path: Path
    vocab_size: int

    def load(self) -> llguidance.LLTokenizer:
        """Read it: a second and more for 200,000 tokens. Raises what llguidance raises for a file it cannot use."""
        return llguidance.LLTokenizer(str(self.path), n_vocab=self.vocab_size)
