"""The tools of a conversation as the section of the developer message that declares them."""

from collections.abc import Iterator, Sequence

from rose.chat.conversation import FunctionTool
from rose.chat.harmony.typescript import schema_to_type

NAMESPACE = "functions"
PREFIX = f"{NAMESPACE}."


def render_tools(tools: Sequence[FunctionTool]) -> str:
    """Write the `# Tools` section. Names and descriptions are text like any other: they can hold anything."""
    lines = ["# Tools", "", f"## {NAMESPACE}", "", f"namespace {NAMESPACE} {{", ""]
    for tool in tools:
        lines.extend(_declaration(tool))
    lines.append(f"}} // namespace {NAMESPACE}")
    return "\n".join(lines)


def _declaration(tool: FunctionTool) -> Iterator[str]:
    # Only line feeds count as line ends: a description may hold other characters that `splitlines` would split at.
    text = (tool.description or "").replace("\r\n", "\n").removesuffix("\n")
    if text:
        yield from (f"// {line}" for line in text.split("\n"))
    arguments = "" if tool.parameters is None else f"_: {schema_to_type(tool.parameters)}"
    yield f"type {tool.name} = ({arguments}) => any;"
    yield ""
