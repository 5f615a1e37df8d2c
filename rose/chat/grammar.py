"""What a client demands of a text, as rules of a grammar in llguidance's Lark.

Each piece is compiled here once, by itself, so that what llguidance cannot enforce is refused under the name of the
client's own field before a token is sampled. A chat format puts the pieces in their place in its turn.
"""

import json
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from llguidance import LLMatcher, LLTokenizer, regex_to_lark
from llguidance.gbnf_to_lark import any_to_lark

from rose.chat.answer_format import AnswerFormat, ChoiceFormat, GrammarFormat, JsonFormat, RegexFormat, ToolChoice
from rose.chat.conversation import Conversation, FunctionTool
from rose.errors import RequestError

ANY_OBJECT: Mapping[str, Any] = {"type": "object"}
_NO_PARAMETERS = {"type": "object", "additionalProperties": False}

# Between two tokens of JSON: a line break and its indentation, or a blank or two. Without a bound, a model whose mask
# leaves it nothing it likes writes blanks until it runs out of tokens.
_WHITESPACE = r"\r?\n[ \t]{0,40}|[ \t]{1,2}"

# Texts in which `<` is an ordinary character: strings, comments, regular expressions.
_LARK_QUOTED = re.compile(r'"(?:\\.|[^"\\\n])*"|//[^\n]*|#[^\n]*|/(?:\\.|[^/\\\n])+/')
_REGEX_SYNTAX = re.compile(r"[\\.+*?()|\[\]{}^$#&~-]")  # what means more than itself in Rust's regular expressions
_MAX_REASON_CHARS = 400
# Rust shows the regex above a caret, which would point nowhere in one line.
_REGEX_FAULT = re.compile(
    r"(?P<is_named> \(in regex\): )?regex parse error:\n +(?P<regex>[^\n]*)\n.*\nerror: ", re.DOTALL
)
_NO_BEGINNING = "NoExtensionBias"  # llguidance's word for a mask that allows nothing


class GrammarRefused(Exception):
    """llguidance cannot enforce this, for the reason in the text."""


def answer_rule(wanted: AnswerFormat) -> str:
    """The right-hand side of a rule for texts of the wanted form.

    Raises `RequestError` with the client's name of the field if the form is invalid or cannot be enforced.
    """
    try:
        match wanted:
            case JsonFormat(schema):
                return json_rule(ANY_OBJECT if schema is None else schema)
            case RegexFormat(pattern):
                return _regex_rule(pattern)
            case ChoiceFormat(choices):
                # One terminal: thousands of them that part at their first letter are more than the parser takes.
                return _regex_rule("|".join(_REGEX_SYNTAX.sub(r"\\\g<0>", choice) for choice in choices))
            case GrammarFormat(grammar):
                return _nested(grammar)
    except GrammarRefused as refused:
        raise RequestError(
            f"{wanted.param} cannot be enforced: {refused}", param=wanted.param, code="unsupported_grammar"
        ) from None


def json_rule(schema: Mapping[str, Any]) -> str:
    """The right-hand side of a rule for JSON that `schema` describes. Raises `GrammarRefused`."""
    # The key is llguidance's own, and a client's could switch keywords off in silence.
    options = {"x-guidance": {"whitespace_pattern": _WHITESPACE}}
    try:
        return _checked(f"%json {json.dumps({**schema, **options})}")
    except RecursionError:
        raise GrammarRefused("the schema is nested too deeply") from None


def arguments_rule(i: int, tool: FunctionTool) -> str:
    """The right-hand side of a rule for the arguments of a call to the conversation's tool number `i`.

    Raises `RequestError` if the tool is strict and its parameters cannot be enforced.
    """
    schema = _NO_PARAMETERS if tool.parameters is None else tool.parameters
    try:
        return json_rule(schema)
    except GrammarRefused as refused:
        if not tool.strict:
            return json_rule(ANY_OBJECT)  # nothing was promised but JSON
        param = f"tools[{i}]"
        message = f"{param}: the parameters of the strict function {tool.name!r} cannot be enforced: {refused}"
        raise RequestError(message, param=param, code="unsupported_grammar") from None


def callable_tools(conversation: Conversation, choice: ToolChoice) -> list[tuple[int, FunctionTool]]:
    """The functions that may be called, with their places among the conversation's.

    Raises `RequestError` if the choice demands what is not there.
    """
    tools = conversation.tools
    known = {tool.name for tool in tools} | {tool.name for tool in conversation.builtin_tools}
    missing = [name for name in choice.names or () if name not in known]
    if missing or (choice.mode == "required" and not (known if choice.names is None else choice.names)):
        what = (
            f"the function {missing[0]!r}, which is not among the tools"
            if missing
            else "a call, but there are no tools"
        )
        raise RequestError(f"tool_choice demands {what}", param="tool_choice", code="invalid_value")
    return [(i, tool) for i, tool in enumerate(tools) if choice.names is None or tool.name in choice.names]


def json_text(text: str) -> str:
    """A text as JSON has it, as models mostly write it."""
    return json.dumps(text, ensure_ascii=False)


def literal(text: str) -> str:
    """A terminal for `text` and nothing else."""
    return json.dumps(text)


def control(token_id: int) -> str:
    """A terminal for a control token. By its id: in a grammar's vocabulary control tokens have no names."""
    return f"<[{token_id}]>"


def _regex_rule(pattern: str) -> str:
    return _checked(f"/{regex_to_lark(pattern, '')}/")


def _nested(grammar: str) -> str:
    try:
        lark = any_to_lark(grammar)
    except Exception as error:  # its converter raises whatever its parser stumbles over
        raise GrammarRefused(f"neither Lark nor GBNF: {error}") from None
    # Control tokens structure the turn: inside the answer they would end it, or begin another message.
    if "<" in _LARK_QUOTED.sub("", lark):
        raise GrammarRefused("special tokens have no place in the grammar of an answer")
    _check(lark)  # by itself first: then its braces are known to match
    return _checked(f"%lark {{\n{lark}\n}}")


def _checked(rule: str) -> str:
    _check(f"start: {rule}\n")
    return rule


def _check(grammar: str) -> None:
    if error := _validate(grammar):
        raise GrammarRefused(_reason(error))


@lru_cache(maxsize=256)
def _validate(grammar: str) -> str:
    """Compile a grammar; return what is wrong with it. Agents send the same tools with every turn: once is enough.

    A grammar that no text follows is sound for llguidance, which finds nothing to begin with only when it is asked.
    """
    if error := LLMatcher.validate_grammar(grammar):
        return error
    matcher = LLMatcher(_bytes(), grammar, log_level=0)
    matcher.compute_bitmask()
    if matcher.get_error().startswith(_NO_BEGINNING):
        return "there is no text that follows it"
    return ""


@lru_cache(maxsize=1)
def _bytes() -> LLTokenizer:
    """A vocabulary of bytes, with which every text can be written."""
    return LLTokenizer("byte")


def _reason(error: str) -> str:
    """llguidance's message without the place in our own text and the excerpt of it."""
    first = re.sub(r"^at \d+\(\d+\): ", "", error.strip()).partition("\n   1 |")[0].strip()
    first = _REGEX_FAULT.sub(lambda m: ": " if m["is_named"] else f'invalid regex "{m["regex"]}": ', first)
    return re.sub(r"\s*\n\s*", "; ", first)[:_MAX_REASON_CHARS]
