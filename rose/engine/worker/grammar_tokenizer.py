"""The vocabulary as grammars see it: the bytes of each token, and which are control tokens."""

import json
import secrets
from dataclasses import dataclass
from pathlib import Path

import llguidance

from rose.errors import CheckpointError

_ENDS = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>")  # of plain text, as models call it


@dataclass(frozen=True, slots=True)
class TokenizerFile:
    """Where the vocabulary is. vocab_size: of the model's logits, which may have more columns than there are tokens."""

    path: Path
    vocab_size: int

    def load(self) -> llguidance.LLTokenizer:
        """Read it: a second and more for 200,000 tokens. Raises CheckpointError for a file that cannot be used.

        Grammars can name control tokens by their ids only. Where a grammar leaves one text, llguidance encodes it to
        find the token that comes next, and would take the spelling of a control token, in the name of a tool or a
        constant of a schema, for the token itself; so here these tokens have names that nobody can spell.
        """
        try:
            return self._load()
        except BaseException as error:  # where llguidance panics, that is no Exception
            reason = f"{type(error).__name__}: {error}".partition("\n")[0]
            raise CheckpointError(f"{self.path} cannot be used for grammars: {reason}") from error

    def _load(self) -> llguidance.LLTokenizer:
        document = json.loads(self.path.read_text(encoding="utf-8"))
        nonce = secrets.token_hex(16)
        ids: dict[str, int] = {}
        for added in document.get("added_tokens") or ():
            # Tags too, which some models' files do not call special. The rest, such as runs of blanks, is text.
            if added["special"] or (added["content"].startswith("<") and added["content"].endswith(">")):
                ids[added["content"]] = added["id"]
                added |= {"content": f"{nonce}-{added['id']}", "special": True}
        # By itself llguidance finds the end of a text by its name, else takes token 0, which then is no text any more.
        end = next((ids[name] for name in (*_ENDS, *ids) if name in ids), None)
        return llguidance.LLTokenizer(json.dumps(document), n_vocab=self.vocab_size, eos_token=end)
