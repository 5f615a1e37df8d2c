"""What a built-in tool answers."""

from dataclasses import dataclass

MAX_CHARS = 32_000


@dataclass(frozen=True, slots=True)
class ToolResult:
    """text: what the model is told. failed: the tool did not do what was asked. sources: addresses it has looked at."""

    text: str
    failed: bool = False
    sources: tuple[str, ...] = ()


def shortened(text: str, max_chars: int = MAX_CHARS) -> str:
    """The text, without its middle if it is too long: how it begins and how it ends tells most."""
    if len(text) <= max_chars:
        return text
    half = max_chars // 2
    return f"{text[:half]}\n[… {len(text) - 2 * half} characters left out …]\n{text[-half:]}"
