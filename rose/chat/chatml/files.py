"""What a checkpoint's files say about its chats: templates, and the names of tokens that these use."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rose.errors import CheckpointError

TEMPLATE_FILE = "chat_template.jinja"
CONFIG_FILE = "tokenizer_config.json"
_DEFAULT = "default"
_WITH_TOOLS = "tool_use"


@dataclass(frozen=True, slots=True)
class TemplateFiles:
    """template: the source of the chat template, or None without one. template_with_tools: likewise, for a chat with
    tools. where: the file it is from. tokens: names of special tokens under their names in templates, as `bos_token`.
    """

    template: str | None
    template_with_tools: str | None
    where: str
    tokens: Mapping[str, str]


def has_template(folder: Path | None) -> bool:
    """Whether the folder of a checkpoint has a chat template."""
    return read_template_files(folder).template is not None


def read_template_files(folder: Path | None) -> TemplateFiles:
    """Read the files beside the tokenizer. Raises `CheckpointError` for one that cannot be read."""
    if folder is None:
        return TemplateFiles(None, None, "", {})
    config_file, template_file = folder / CONFIG_FILE, folder / TEMPLATE_FILE
    config = _read_json(config_file)
    tokens = {key: text for key, value in config.items() if key.endswith("_token") and (text := _content(value))}
    if template_file.is_file():
        template = _read(template_file)
        return TemplateFiles(template, template, str(template_file), tokens)
    templates = _templates(config.get("chat_template"), config_file)
    default = templates.get(_DEFAULT)
    return TemplateFiles(default, templates.get(_WITH_TOOLS, default), str(config_file), tokens)


def _templates(value: object, file: Path) -> dict[str, str]:
    """The templates by name: there may be one without a name, or a list of some with theirs."""
    match value:
        case None:
            return {}
        case str():
            return {_DEFAULT: value}
        case list() if all(isinstance(each, dict) and isinstance(each.get("template"), str) for each in value):
            return {str(each.get("name")): each["template"] for each in value}
        case _:
            raise CheckpointError(f"{file}: chat_template is neither a template nor a list of templates with names")


def _content(value: object) -> str:
    """The text of a token, which may stand alone or be described."""
    text = value.get("content") if isinstance(value, dict) else value
    return text if isinstance(text, str) else ""


def _read_json(file: Path) -> dict[str, Any]:
    if not file.is_file():
        return {}
    try:
        config = json.loads(_read(file))
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{file}: not JSON: {error}") from None
    if not isinstance(config, dict):
        raise CheckpointError(f"{file}: not a JSON object")
    return config


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{file}: cannot be read: {error}") from None
