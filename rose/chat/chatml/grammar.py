"""One grammar over the assistant's whole turn, from right after the prompt.

Reasoning stays free; what is demanded holds in the content, or in the name and arguments of the call that ends the
turn. A tag with a token of its own is a terminal. One that is spelled is kept out of all free text, for there the
parser would take it for a tag.
"""

import re
from collections.abc import Sequence

from rose.chat.answer_format import AnswerFormat, ChoiceFormat, GrammarFormat, RegexFormat, ToolChoice
from rose.chat.chatml.markup import Markup, Tag
from rose.chat.conversation import Conversation, FunctionTool
from rose.chat.grammar import answer_rule, arguments_rule, callable_tools, control, json_text, literal
from rose.errors import RequestError

_OPENING = (Tag.THINK, Tag.CALL)  # those that mean something in content


class TurnGrammar:
    """Writes grammars for one tokenizer's marks."""

    def __init__(self, markup: Markup) -> None:
        self._markup = markup

    def write(self, conversation: Conversation, choice: ToolChoice, *, opens_reasoning: bool) -> str | None:
        """The grammar of the turn that answers `conversation`; None if nothing is demanded of it.

        opens_reasoning: the prompt ends in `<think>`. Raises `RequestError`, naming the client's field, for what cannot
        be enforced or met.
        """
        wanted = conversation.answer_format
        tools = callable_tools(conversation, choice)
        is_free = choice == ToolChoice() and not any(tool.strict for _, tool in tools)
        if wanted is None and is_free:
            return None
        turn = self._turn(wanted, has_calls=bool(tools), must_call=choice.mode == "required")
        before = "thought" if opens_reasoning else f"({self._tag(Tag.THINK)} thought)?"
        rules = [
            f"start: {before} ({turn})",
            f"end: {' | '.join(map(control, self._markup.ends))}",
            f"TEXT: {_text_without(self._spelled(_OPENING))}",
            *self._text_and_tag("thought", Tag.THINK_END, (Tag.THINK_END, Tag.CALL), behind='"\\n\\n"'),
        ]
        if wanted is not None and choice.mode != "required":
            rules.append(self._answer(wanted))
        if tools:
            rules += self._text_and_tag("preamble", Tag.CALL, _OPENING, line_feed="\n")
            rules.append("call: " + " | ".join(f"call_{i}" for i, _ in tools))
        for i, tool in tools:
            rules += self._call(i, tool)
        return "\n".join(rules) + "\n"

    def _turn(self, wanted: AnswerFormat | None, *, has_calls: bool, must_call: bool) -> str:
        opened = f"{self._tag(Tag.CALL)} call"
        if must_call:
            return opened
        if wanted is not None:
            # Words before a call are content too, and would spoil the form of an answer's.
            return f"answer end | {opened}" if has_calls else "answer end"
        return f"TEXT end | {opened} | preamble call" if has_calls else "TEXT end"

    def _answer(self, wanted: AnswerFormat) -> str:
        rule = answer_rule(wanted)
        spelled = self._spelled(_OPENING)
        if not spelled:
            return f"answer: {rule}"
        match wanted:
            case RegexFormat() | ChoiceFormat():
                return f"answer: ANSWER\nANSWER: {rule} & {_text_without(spelled)}"
            case GrammarFormat():
                raise RequestError(
                    f"{wanted.param} cannot be enforced: the model has no token for {spelled[0].value}, "
                    "so a text of any grammar could not be told from it",
                    param=wanted.param,
                    code="unsupported_grammar",
                )
            case _:
                return f"answer: {rule}"  # in JSON, no line begins with a tag

    def _call(self, i: int, tool: FunctionTool) -> list[str]:
        head = '\n{"name": ' + json_text(tool.name) + ', "arguments": '
        return [
            f'call_{i}: {literal(head)} arguments_{i} "}}\\n" {self._tag(Tag.CALL_END)}',
            f"arguments_{i}: {arguments_rule(i, tool)}",
        ]

    def _tag(self, tag: Tag) -> str:
        token_id = self._markup.id_of(tag)
        return literal(tag.value) if token_id is None else control(token_id)

    def _text_and_tag(
        self, name: str, tag: Tag, without: Sequence[Tag], *, line_feed: str = "", behind: str = ""
    ) -> list[str]:
        """Rules for text that holds none of some tags, and a tag after it; line_feed: in front of one that is spelled.

        The two are one terminal where the tag is spelled: else the text would take its characters.
        """
        text, terminal = _text_without(self._spelled(without)), name.upper()
        if self._markup.id_of(tag) is not None:
            return [f"{name}: {terminal} {self._tag(tag)} {behind}", f"{terminal}: {text}"]
        return [f"{name}: {terminal} {behind}", f"{terminal}: ({text}) {literal(line_feed + tag.value)}"]

    def _spelled(self, tags: Sequence[Tag]) -> list[Tag]:
        return [tag for tag in tags if tag in self._markup.spelled]


def _text_without(tags: Sequence[Tag]) -> str:
    """A regular expression for any text that holds none of some tags."""
    if not tags:
        return "/(?s:.*)/"
    names = "|".join(re.escape(tag.value).replace("/", r"\/") for tag in tags)
    return f"/(?s:.*)/ & ~/(?s:.*)({names})(?s:.*)/"
