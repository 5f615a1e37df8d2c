"""What went wrong, in the command line's words: the rest of rose names settings, as a caller of it in Python does."""

import re
from collections.abc import Sequence

import cyclopts


def with_option_names(message: str, app: cyclopts.App, arguments: Sequence[str]) -> str:
    """`message` with the options of the command in `arguments` as they are typed: `block_size` as `--block-size`.

    A name of one word, which may be only a word, is taken for an option where it begins the message, as in `device must
    be ...`, and with a value, as in `device=cpu`. What stands in quotes or in a path is left alone.
    """
    options = _options(app, arguments)
    if not options:
        return message
    anywhere = "|".join(map(re.escape, sorted(options, key=len, reverse=True)))
    message = re.sub(rf"{_BEFORE}({anywhere})=(?=\w)", lambda m: f"{options[m[1]]} ", message)
    message = re.sub(rf"^({anywhere})(?= must |\ \S+: )", lambda m: options[m[1]], message)
    return re.sub(rf"{_BEFORE}({anywhere}){_AFTER}", lambda m: options[m[1]] if "_" in m[1] else m[1], message)


_BEFORE = r"""(?<![\w./\\'"`=-])"""
_AFTER = r"""(?![\w/\\'"`=-]|\.\w)"""


def _options(app: cyclopts.App, arguments: Sequence[str]) -> dict[str, str]:
    """Of the command that is meant, each option's setting and how it is typed."""
    _, apps, _ = app.parse_commands(list(arguments))
    if apps[-1].default_command is None:
        return {}
    return {
        argument.field_info.name: argument.name
        for argument in apps[-1].assemble_argument_collection()
        if argument.name.startswith("--")
    }
