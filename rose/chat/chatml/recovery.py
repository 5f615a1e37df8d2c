"""The names of the recovery rules, as they are reported in `Finished.recovered` and counted in `/metrics`."""

from enum import Enum


class Recovery(Enum):
    """What the parser had to put right. docs/chatml.md has the rules."""

    STRAY_TAG = "stray_tag"  # a tag without meaning where it stood was dropped
    STRAY_CONTROL = "stray_control"  # so was any other control, reserved or unknown id
    STRAY_TEXT = "stray_text"  # text between the end of a call's JSON and that of the call was dropped
    MISSING_THINK_END = "missing_think_end"  # a call, a message or the end of the turn ended the reasoning
    MISSING_CALL_END = "missing_call_end"  # another call or the end of the turn ended a call
    MISSING_END = "missing_end"  # a message ended by the beginning of the next
    FOREIGN_ROLE = "foreign_role"  # the model began to speak for somebody else: the turn ended there
    ODD_CALL = "odd_call"  # other keys, or their other order: the call was read once it was whole
    NOT_A_CALL = "not_a_call"  # what stood between the tags names no function: it is text, tags and all
    CUT_IN_TOOL_CALL = "cut_in_tool_call"  # the output was cut inside a tool call, which must not be run
    ARGUMENTS_NOT_JSON = "arguments_not_json"  # passed on as they are
    ONLY_REASONING = "only_reasoning"  # the turn ended without an answer or a call
    INCOMPLETE_CHARACTER = "incomplete_character"  # text ended inside a character, which became U+FFFD
    KEPT_AS_TEXT = "kept_as_text"  # nothing could be made of it: the text is the content
