"""The checkpoint's tokenizer, with a hard line between text and control tokens.

Text that a user sends is encoded with every added token switched off: `<|start|>` in a message is nine characters,
whatever the checkpoint calls its control tokens. Control tokens are reached only through `special_id`, by name.
"""

import json
import re
from pathlib import Path
from typing import Any

import tokenizers

from rose.errors import CheckpointError


class Tokenizer:
    """A byte-level BPE tokenizer read from a `tokenizer.json`."""

    def __init__(
        self, backend: tokenizers.Tokenizer, source: str = "the tokenizer", folder: Path | None = None
    ) -> None:
        """Take over `backend`, which is set to encode text only.

        source: its name in errors. folder: where the checkpoint's other files are, such as its chat template.
        """
        self.source = source
        self.folder = folder
        added = backend.get_added_tokens_decoder()
        self._added_ids = {token.content: token_id for token_id, token in added.items()}
        self._added_names = {token_id: token.content.encode() for token_id, token in added.items()}
        self._specials = frozenset(token_id for token_id, token in added.items() if token.special)
        self._bytes = _byte_table(backend, self._specials)
        self._backend = _text_only(backend)
        self._added_pattern = _alternatives(self._added_ids)

    @property
    def vocab_size(self) -> int:
        """One more than the highest id the tokenizer knows. A model's embedding may have more rows than that."""
        return len(self._bytes)

    def encode(self, text: str) -> list[int]:
        """Encode `text` as ordinary text: no id of a special or added token can come out."""
        # A batch of one: unlike `encode` it works without the interpreter lock, so a long prompt stops no other stream.
        batch = self._backend.encode_batch_fast([without_surrogates(text)], add_special_tokens=False)
        ids: list[int] = batch[0].ids
        return ids

    @property
    def added_names(self) -> tuple[str, ...]:
        """The names of all special and added tokens."""
        return tuple(self._added_ids)

    def encode_with_special(self, text: str, *, guard: str = "") -> list[int]:
        """Encode `text` with special and added tokens switched on. For trusted text, or text with guards in it.

        guard: a character that is left out once the names were found, so one in the midst of a name keeps it text.
        """
        ids: list[int] = []
        # The pattern has one group, so names and the text between them alternate.
        for part in self._added_pattern.split(text):
            added = self._added_ids.get(part)
            ids.extend(self.encode(part.replace(guard, "") if guard else part) if added is None else (added,))
        return ids

    def decode(self, ids: list[int], *, keep_special: bool = False) -> str:
        """The text of `ids`; invalid UTF-8 becomes U+FFFD. Special tokens are left out, or spelled when kept."""
        if not keep_special:
            return b"".join(map(self.token_bytes, ids)).decode("utf-8", errors="replace")
        names = self._added_names
        return b"".join(names.get(i) or self.token_bytes(i) for i in ids).decode("utf-8", errors="replace")

    def special_id(self, name: str) -> int | None:
        """The id of the special (or otherwise added) token called `name`, such as `<|start|>`; None without one."""
        return self._added_ids.get(name)

    def control_id(self, name: str) -> int | None:
        """Likewise, for a token that structures chats. Raises `CheckpointError` if plain text could be taken for it."""
        token_id = self.special_id(name)
        if token_id is not None and token_id in self.encode(name):
            raise CheckpointError(f"{self.source}: cannot tell the text {name} from the control token")
        return token_id

    def is_special(self, token_id: int) -> bool:
        """Whether the checkpoint marks this id as special."""
        return token_id in self._specials

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes a token stands for; none for a special token or an id outside the vocabulary."""
        # A negative index would count from the end.
        return self._bytes[token_id] if 0 <= token_id < len(self._bytes) else b""


def load_tokenizer(path: str | Path) -> Tokenizer:
    """Read the tokenizer of a checkpoint: a folder with a `tokenizer.json`, or such a file.

    Raises `CheckpointError` if it is missing or damaged.
    """
    file = Path(path)
    if file.is_dir():
        file = file / "tokenizer.json"
    if not file.is_file():
        raise CheckpointError(f"{file}: no such tokenizer file")
    try:
        backend = tokenizers.Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises bare Exception, whatever is wrong with the file
        raise CheckpointError(f"{file}: not a readable tokenizer: {error}") from None
    return Tokenizer(backend, str(file), file.parent)


def as_tokenizer(tokenizer: "Tokenizer | tokenizers.Tokenizer | str | Path") -> Tokenizer:
    """Accept a tokenizer in any of the forms callers hold one in."""
    if isinstance(tokenizer, Tokenizer):
        return tokenizer
    if isinstance(tokenizer, tokenizers.Tokenizer):
        return Tokenizer(tokenizers.Tokenizer.from_str(tokenizer.to_str()))  # a copy: the caller's stays as it is
    return load_tokenizer(tokenizer)


def _text_only(backend: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """Make `backend` treat the names of all added tokens as text.

    `encode_special_tokens` switches off the matching of tokens flagged special, but not of other added tokens, so
    where there are such they get the flag.
    """
    if not all(token.special for token in backend.get_added_tokens_decoder().values()):
        definition: dict[str, Any] = json.loads(backend.to_str())
        for token in definition["added_tokens"]:
            token["special"] = True
        backend = tokenizers.Tokenizer.from_str(json.dumps(definition))
    backend.encode_special_tokens = True
    backend.no_padding()
    backend.no_truncation()
    return backend


def _byte_table(backend: tokenizers.Tokenizer, specials: frozenset[int]) -> list[bytes]:
    """The bytes of every id, from 0 to the highest; empty for special tokens and for gaps."""
    vocab = backend.get_vocab(with_added_tokens=False)
    added = backend.get_added_tokens_decoder()
    table = [b""] * (max(max(vocab.values(), default=-1), max(added, default=-1)) + 1)
    alphabet = _byte_alphabet()
    for token, token_id in vocab.items():
        try:
            table[token_id] = token.translate(alphabet).encode("latin-1")
        except UnicodeEncodeError:  # not written in the byte alphabet: the token is its own text
            table[token_id] = token.encode()
    for token_id, added_token in added.items():
        table[token_id] = b"" if token_id in specials else added_token.content.encode()
    return table


def _byte_alphabet() -> dict[int, int]:
    """Map each character of byte-level BPE's alphabet to the byte it stands for.

    Bytes that Latin-1 prints stand for themselves; the others are numbered upwards from U+0100 in order.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: byte for byte in printable} | {0x100 + n: byte for n, byte in enumerate(others)}


def _alternatives(names: dict[str, int]) -> re.Pattern[str]:
    longest_first = sorted(names, key=len, reverse=True)
    return re.compile("(" + "|".join(map(re.escape, longest_first)) + ")" if names else "(?!)")


def without_surrogates(text: str) -> str:
    """Text that UTF-8 can hold: JSON may carry half a surrogate pair, which the tokenizer refuses."""
    if text.isascii():
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
