"""The control tokens of Harmony, found by name in the checkpoint's own tokenizer."""

from dataclasses import dataclass

from rose.chat.tokenizer import Tokenizer
from rose.errors import CheckpointError

CHANNELS = ("analysis", "commentary", "final")
REQUIRED_NAMES = tuple(f"<|{name}|>" for name in ("start", "channel", "constrain", "message", "end", "return", "call"))


@dataclass(frozen=True, slots=True)
class ControlTokens:
    """Ids of the tokens that structure a chat. `end_of_text` is the only one a tokenizer may lack."""

    start: int
    channel: int
    constrain: int
    message: int
    end: int
    return_: int
    call: int
    end_of_text: int | None

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> "ControlTokens":
        """Look the tokens up; `CheckpointError` if one is missing, or if plain text could be taken for one."""
        start, channel, constrain, message, end, return_, call = (_required(tokenizer, name) for name in REQUIRED_NAMES)
        return cls(start, channel, constrain, message, end, return_, call, tokenizer.special_id("<|endoftext|>"))

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """Ids that end the assistant's turn."""
        ends = (self.return_, self.call)
        return ends if self.end_of_text is None else (*ends, self.end_of_text)


def _required(tokenizer: Tokenizer, name: str) -> int:
    token_id = tokenizer.control_id(name)
    if token_id is None:
        raise CheckpointError(f"{tokenizer.source}: no token {name}, which the harmony chat format needs")
    return token_id
