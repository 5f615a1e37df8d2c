"""One grammar over the assistant's whole turn, from right after `<|start|>assistant`.

Control tokens are terminals of their own: the same characters in ordinary tokens are text, in reasoning as anywhere.
Reasoning stays free; what is demanded holds in the body of the final message and in the arguments of calls. The
tokens that end the turn are written in the grammar, so that it is complete exactly where the turn is.
"""

from rose.chat.answer_format import AnswerFormat, ToolChoice
from rose.chat.conversation import BuiltinTool, Conversation, FunctionTool
from rose.chat.grammar import ANY_OBJECT, answer_rule, arguments_rule, callable_tools, json_rule, literal
from rose.chat.harmony.tools import PREFIX

_COMMON_RULES = (
    'reasoning: <|channel|> "analysis" <|message|> TEXT <|end|> <|start|> "assistant"',
    'preamble: <|channel|> "commentary" <|message|> TEXT <|end|> <|start|> "assistant"',
    'json_type: " "? <|constrain|> "json" | " json"',
    "TEXT: /(?s:.*)/",
)


def turn_grammar(conversation: Conversation, choice: ToolChoice) -> str | None:
    """The grammar of the turn that answers `conversation`; None if nothing is demanded of it.

    Raises `RequestError`, naming the client's field, for what cannot be enforced or met.
    """
    wanted = conversation.answer_format
    tools = callable_tools(conversation, choice)
    builtins = [
        (recipient, tool)
        for tool in conversation.builtin_tools
        for recipient in tool.recipients
        if choice.names is None or tool.name in choice.names
    ]
    is_free = choice == ToolChoice() and not any(tool.strict for _, tool in tools)
    if wanted is None and is_free:
        return None
    must_call = choice.mode == "required"
    names = [f"call_{i}" for i, _ in tools] + [f"builtin_{i}" for i in range(len(builtins))]
    rules = [f"start: {_turn(wanted, has_calls=bool(names), must_call=must_call)}", *_COMMON_RULES]
    if not must_call:
        rules += _final(wanted)
    if names:
        rules.append("call: " + " | ".join(names))
    rules += [_builtin_call(i, recipient, tool) for i, (recipient, tool) in enumerate(builtins)]
    for i, tool in tools:
        rules += _call(i, tool)
    return "\n".join(rules) + "\n"


def _turn(wanted: AnswerFormat | None, *, has_calls: bool, must_call: bool) -> str:
    if must_call:
        return "(reasoning | preamble)* call"
    if wanted is None:
        return "(reasoning | preamble)* (final | call)" if has_calls else "(reasoning | preamble)* final"
    # A preamble is content too, and would spoil the form of the final message's; before a call there is no such.
    return "reasoning* final" + (" | (reasoning | preamble)* call" if has_calls else "")


def _final(wanted: AnswerFormat | None) -> list[str]:
    body = "TEXT" if wanted is None else answer_rule(wanted)
    return ['final: <|channel|> "final" json_type? <|message|> final_body <|return|>', f"final_body: {body}"]


def _call(i: int, tool: FunctionTool) -> list[str]:
    """A call in both orders that the model writes: the recipient behind the channel, or before it."""
    recipient = f" to={PREFIX}{tool.name}"
    return [
        f"call_{i}: (<|channel|> {literal('commentary' + recipient)} | {literal(recipient)} <|channel|> "
        f'"commentary") json_type? <|message|> arguments_{i} <|call|>',
        f"arguments_{i}: {arguments_rule(i, tool)}",
    ]


def _builtin_call(i: int, recipient: str, tool: BuiltinTool) -> str:
    """The same for a built-in tool, whose calls are part of the analysis."""
    to = f" to={recipient}"
    arguments = json_rule(ANY_OBJECT) if tool.functions else "TEXT"
    return (
        f"builtin_{i}: (<|channel|> {literal('analysis' + to)} | {literal(to)} <|channel|> "
        f'"analysis") (json_type | " "? <|constrain|> "code" | " code")? <|message|> builtin_arguments_{i} <|call|>\n'
        f"builtin_arguments_{i}: {arguments}"
    )
