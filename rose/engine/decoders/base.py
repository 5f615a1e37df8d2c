"""What the scheduler asks of a decoder: how many tokens to leave room for."""

from typing import Protocol

from rose.engine.request import Request


class Decoder(Protocol):
    """A way to propose tokens that the model then verifies, several in one step."""

    def num_draft_slots(self, request: Request) -> int:
        """Tokens beyond the known ones to schedule for a request that has caught up."""
        ...
