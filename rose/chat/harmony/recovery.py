"""The names of the recovery rules, as they are reported in `Finished.recovered` and counted in `/metrics`.

docs/harmony.md explains each with an example. Two of the rules there have no name here, since they hold always: that
streamed and unstreamed answers agree, and that control text in a prompt is ordinary text.
"""

from enum import Enum


class Recovery(Enum):
    """What the parser had to put right."""

    # the header
    RECIPIENT_ROUTES_CALL = "recipient_routes_call"  # a function was called from another channel than commentary
    REPEATED_RECIPIENT = "repeated_recipient"  # a header named its recipient more than once
    NAME_CUT = "name_cut"  # punctuation, control text or other letters stuck to a channel or tool name
    BARE_CONTENT_TYPE = "bare_content_type"  # `json` without `<|constrain|>` before it
    UNKNOWN_CHANNEL = "unknown_channel"  # reasoning if more follows, content on the last message
    MISSING_CHANNEL = "missing_channel"  # likewise
    # where messages begin and end
    MISSING_START = "missing_start"  # a message without `<|start|>assistant`
    MISSING_MESSAGE = "missing_message"  # a header that runs into its body without `<|message|>`
    MISSING_END = "missing_end"  # a message ended by the beginning of the next
    STRAY_TEXT = "stray_text"  # a word between messages was dropped
    STRAY_CONTROL = "stray_control"  # a control, reserved or unknown id without meaning where it stood was dropped
    FOREIGN_ROLE = "foreign_role"  # the model began to speak for somebody else: the turn ended there
    END_OF_TEXT = "end_of_text"  # `<|endoftext|>` ended the turn
    # the answer
    CUT_IN_HEADER = "cut_in_header"  # the output was cut inside a header, which says nothing yet
    CUT_IN_TOOL_CALL = "cut_in_tool_call"  # the output was cut inside a tool call, which must not be run
    ARGUMENTS_NOT_JSON = "arguments_not_json"  # passed on as they are
    SEVERAL_FINALS = "several_finals"  # joined in order
    ONLY_REASONING = "only_reasoning"  # the turn ended without an answer or a call
    INCOMPLETE_CHARACTER = "incomplete_character"  # a message ended inside a character, which became U+FFFD
    KEPT_AS_TEXT = "kept_as_text"  # nothing could be made of it: the text is the content
