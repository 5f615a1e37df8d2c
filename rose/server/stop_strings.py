"""Finding stop strings in text that arrives in pieces."""

from collections.abc import Sequence


class StopScanner:
    """Passes text on up to the first stop string; holds back what may be the beginning of one.

    The result does not depend on how the text is cut into pieces: the stop string that is complete first wins, and of
    two complete at the same character the longer one.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.found: str | None = None
        """The stop string that ended the text, once there was one."""

    def push(self, text: str) -> tuple[str, bool]:
        """Take more text; return what may be shown, and whether a stop string was found right after it."""
        if not self._stops:
            return text, False
        buffer = self._held + text
        found = [(at + len(stop), at) for stop in self._stops if (at := buffer.find(stop)) >= 0]
        if found:
            end, start = min(found)
            self._held, self.found = "", buffer[start:end]
            return buffer[:start], True
        num_held = max(_overlap(buffer, stop) for stop in self._stops)
        shown = buffer[: len(buffer) - num_held]
        self._held = buffer[len(shown) :]
        return shown, False

    def flush(self) -> str:
        """The text held back, which turned out to be no stop string."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that is a beginning of `stop`, short of all of it."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
