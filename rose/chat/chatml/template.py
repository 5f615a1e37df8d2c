"""Chat templates in Jinja, as checkpoints bring them along, with the functions that they count on.

The environment is the one that Hugging Face's documentation of chat templates describes. A template comes from whoever
made the checkpoint, so it runs in Jinja's sandbox, on plain data.
"""

import json
import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import jinja2
import jinja2.ext
from jinja2.exceptions import SecurityError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from rose.errors import CheckpointError, RequestError

_MAX_REASON_CHARS = 400
_NOT_ASCII = re.compile(r"[^\x00-\x7f\ufdd0-\ufdef]")


class Template:
    """A compiled template. Rendering it twice with the same variables gives the same text."""

    def __init__(self, source: str, where: str) -> None:
        """Compile it. Raises `CheckpointError`, which calls it `where`."""
        self.source = source
        try:
            self._template = _environment().from_string(source)
        except jinja2.TemplateError as error:
            raise CheckpointError(f"{where}: not a usable chat template: {error}") from None

    def render(self, variables: Mapping[str, Any]) -> str:
        """Render it. Raises `RequestError` if it refuses these variables or fails on them."""
        try:
            return self._template.render(variables)
        except RequestError:
            raise
        except Exception as error:  # whatever the template's own mistakes raise
            reason = " ".join(str(error).split())[:_MAX_REASON_CHARS] or type(error).__name__
            raise RequestError(
                f"the model's chat template cannot write this conversation: {reason}", param="messages"
            ) from None


class Arguments(dict[str, Any]):
    """The arguments of a call as templates expect them. As JSON they are what the model wrote, to the letter.

    So a prompt repeats what was sampled, and is found in the prefix cache.
    """

    def __init__(self, values: Mapping[str, Any], written: str) -> None:
        super().__init__(values)
        self.written = written


def clock(date: str) -> Any:
    """The `strftime_now` of templates, at midnight of a `YYYY-MM-DD`."""

    def strftime_now(form: str) -> str:
        try:
            return datetime.fromisoformat(date).strftime(form)
        except ValueError as error:
            raise RequestError(f"the date {date!r} cannot be written: {error}") from None

    return strftime_now


class _Namespace(jinja2.utils.Namespace):
    """Templates' `namespace`, without a way to names that Python gives a meaning."""

    def __init__(self, /, *args: Any, **kwargs: Any) -> None:
        attributes = dict(*args, **kwargs)
        for name in attributes:
            _check_name(name)
        super().__init__(attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


class _Generation(jinja2.ext.Extension):
    """`{% generation %}`: marks for training what the assistant says; here its body as it is."""

    tags = {"generation"}  # noqa: RUF012 - as Jinja declares it

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        """Read the block and leave its statements."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols, _Generation]
    )
    environment.filters["tojson"] = _to_json
    environment.globals |= {"raise_exception": _raise_exception, "namespace": _Namespace, "dict": _make_dict}
    return environment


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Without the HTML escapes of Jinja's own."""
    if isinstance(value, Arguments) and indent is None and separators is None:
        text = value.written
    else:
        text = json.dumps(value, ensure_ascii=False, indent=indent, separators=separators, sort_keys=sort_keys)
    # Noncharacters stay: one of them is the guard, which must be found again.
    return _NOT_ASCII.sub(lambda found: json.dumps(found[0])[1:-1], text) if ensure_ascii else text


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _make_dict(*args: Any, **kwargs: Any) -> dict[str, Any]:
    return dict(*args, **kwargs)


def _check_name(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a namespace cannot hold {name!r}")
