"""One token a step: the decoder that proposes nothing."""

from rose.engine.request import Request


class PlainDecoder:
    """The null object among decoders."""

    def num_draft_slots(self, request: Request) -> int:
        """None, ever."""
        return 0
