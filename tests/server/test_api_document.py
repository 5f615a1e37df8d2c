"""`docs/api.md` lists what the code does."""

import re
from pathlib import Path

from rose.server.chat_completions.fields import HARMLESS_FIELDS, UNSUPPORTED_FIELDS
from rose.server.chat_completions.schema import ChatCompletionRequest

TEXT = (Path(__file__).parents[2] / "docs" / "api.md").read_text()


def section(title: str) -> str:
    return TEXT.split(f"### {title}\n", 1)[1].split("\n#", 1)[0]


def test_every_field_is_listed_under_its_kind() -> None:
    rows = re.findall(r"^\| (`[^|]+) \|", section("Honoured"), re.MULTILINE)
    honoured = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert honoured == set(ChatCompletionRequest.model_fields)
    accepted = section("Accepted, without effect on the answer").strip().split("\n\n")[0]
    assert set(re.findall(r"`(\w+)`", accepted)) == HARMLESS_FIELDS
    refused = section("Refused").split("\n\n")[1]
    assert set(re.findall(r"`(\w+)`(?!\])", refused)) == set(UNSUPPORTED_FIELDS)
