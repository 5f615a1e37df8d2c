"""The tools of a conversation as the section that declares them: functions in the developer message, built-in tools in
the system message.
"""

from collections.abc import Iterator, Sequence

from rose.chat.conversation import BuiltinTool, FunctionTool
from rose.chat.harmony.typescript import schema_to_type

NAMESPACE = "functions"
PREFIX = f"{NAMESPACE}."


def render_tools(tools: Sequence[FunctionTool]) -> str:
    """Write the `# Tools` section. Names and descriptions are text like any other: they can hold anything."""
    return "\n".join(["# Tools", "", f"## {NAMESPACE}", "", *_namespace(NAMESPACE, tools)])


def render_builtin_tools(tools: Sequence[BuiltinTool]) -> str:
    """Write the `# Tools` section of built-in tools. One without functions is a description and nothing else."""
    lines = ["# Tools"]
    for tool in tools:
        lines += ["", f"## {tool.name}", ""]
        if tool.functions:
            lines += [*_comment(tool.description), *_namespace(tool.name, tool.functions)]
        else:
            lines.append(tool.description)
    return "\n".join(lines)


def _namespace(name: str, tools: Sequence[FunctionTool]) -> Iterator[str]:
    yield from (f"namespace {name} {{", "")
    for tool in tools:
        yield from _declaration(tool)
    yield f"}} // namespace {name}"


def _comment(text: str | None) -> Iterator[str]:
    # Only line feeds count as line ends: a description may hold other characters that `splitlines` would split at.
    text = (text or "").replace("\r\n", "\n").removesuffix("\n")
    if text:
        yield from (f"// {line}" for line in text.split("\n"))


def _declaration(tool: FunctionTool) -> Iterator[str]:
    yield from _comment(tool.description)
    arguments = "" if tool.parameters is None else f"_: {schema_to_type(tool.parameters)}"
    yield f"type {tool.name} = ({arguments}) => any;"
    yield ""
