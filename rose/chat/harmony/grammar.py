"""One grammar over the assistant's whole turn, from right after `<|start|>assistant`.

Control tokens are terminals of their own: the same characters in ordinary tokens are text, in reasoning as anywhere.
Reasoning stays free; what is demanded holds in the body of the final message and in the arguments of calls. The
tokens that end the turn are written in the grammar, so that it is complete exactly where the turn is.
"""

from rose.chat.answer_format import AnswerFormat, ToolChoice
from rose.chat.conversation import BuiltinTool, Conversation, FunctionTool
from rose.chat.grammar import ANY_OBJECT, answer_rule, arguments_rule, callable_tools, control, json_rule, literal
from rose.chat.harmony.control import ControlTokens
from rose.chat.harmony.tools import PREFIX


def _common_rules(c: ControlTokens) -> list[str]:
    begin = f'{control(c.start)} "assistant"'
    return [
        f'reasoning: {control(c.channel)} "analysis" {control(c.message)} TEXT {control(c.end)} {begin}',
        f'preamble: {control(c.channel)} "commentary" {control(c.message)} TEXT {control(c.end)} {begin}',
        f'json_type: " "? {control(c.constrain)} "json" | " json"',
        "TEXT: /(?s:.*)/",
    ]


def turn_grammar(conversation: Conversation, choice: ToolChoice, tokens: ControlTokens) -> str | None:
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
    rules = [f"start: {_turn(wanted, has_calls=bool(names), must_call=must_call)}", *_common_rules(tokens)]
    if not must_call:
        rules += _final(wanted, tokens)
    if names:
        rules.append("call: " + " | ".join(names))
    rules += [_builtin_call(i, recipient, tool, tokens) for i, (recipient, tool) in enumerate(builtins)]
    for i, tool in tools:
        rules += _call(i, tool, tokens)
    return "\n".join(rules) + "\n"


def _turn(wanted: AnswerFormat | None, *, has_calls: bool, must_call: bool) -> str:
    if must_call:
        return "(reasoning | preamble)* call"
    if wanted is None:
        return "(reasoning | preamble)* (final | call)" if has_calls else "(reasoning | preamble)* final"
    # A preamble is content too, and would spoil the form of the final message's; before a call there is no such.
    return "reasoning* final" + (" | (reasoning | preamble)* call" if has_calls else "")


def _final(wanted: AnswerFormat | None, c: ControlTokens) -> list[str]:
    body = "TEXT" if wanted is None else answer_rule(wanted)
    ends = f'{control(c.channel)} "final" json_type? {control(c.message)} final_body {control(c.return_)}'
    return [f"final: {ends}", f"final_body: {body}"]


def _call(i: int, tool: FunctionTool, c: ControlTokens) -> list[str]:
    """A call in both orders that the model writes: the recipient behind the channel, or before it."""
    recipient, channel = f" to={PREFIX}{tool.name}", control(c.channel)
    return [
        f"call_{i}: ({channel} {literal('commentary' + recipient)} | {literal(recipient)} {channel} "
        f'"commentary") json_type? {control(c.message)} arguments_{i} {control(c.call)}',
        f"arguments_{i}: {arguments_rule(i, tool)}",
    ]


def _builtin_call(i: int, recipient: str, tool: BuiltinTool, c: ControlTokens) -> str:
    """The same for a built-in tool, whose calls are part of the analysis."""
    to, channel = f" to={recipient}", control(c.channel)
    arguments = json_rule(ANY_OBJECT) if tool.functions else "TEXT"
    return (
        f"builtin_{i}: ({channel} {literal('analysis' + to)} | {literal(to)} {channel} "
        f'"analysis") (json_type | " "? {control(c.constrain)} "code" | " code")? '
        f"{control(c.message)} builtin_arguments_{i} {control(c.call)}\n"
        f"builtin_arguments_{i}: {arguments}"
    )
