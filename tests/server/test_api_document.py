"""`docs/api.md` lists what the code does."""

import re
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from openai.types.chat.completion_create_params import CompletionCreateParamsBase as ChatParamsBase
from openai.types.completion_create_params import CompletionCreateParamsBase as CompletionParamsBase
from openai.types.responses.response_create_params import ResponseCreateParamsBase

from rose.server.chat_completions.kinds import CHAT_FIELDS
from rose.server.chat_completions.schema import ChatCompletionRequest
from rose.server.completions.kinds import COMPLETION_FIELDS
from rose.server.completions.schema import CompletionRequest
from rose.server.fields import FieldKinds
from rose.server.intake import RequestBody
from rose.server.messages.kinds import MESSAGES_FIELDS
from rose.server.messages.schema import MessagesRequest
from rose.server.responses.kinds import RESPONSES_FIELDS
from rose.server.responses.schema import ResponsesRequest

HARMLESS_FIELDS, UNSUPPORTED_FIELDS = CHAT_FIELDS.harmless, CHAT_FIELDS.unsupported
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


@pytest.mark.parametrize(
    ("params", "schema", "kinds"),
    [
        (ResponseCreateParamsBase, ResponsesRequest, RESPONSES_FIELDS),
        (ChatParamsBase, ChatCompletionRequest, CHAT_FIELDS),
        (CompletionParamsBase, CompletionRequest, COMPLETION_FIELDS),
    ],
)
def test_every_field_of_openais_own_client_has_its_kind(params: Any, schema: type[RequestBody], kinds: Any) -> None:
    """With the tests above, each has its row in the document."""
    known = set(schema.model_fields) | kinds.harmless | set(kinds.unsupported)
    assert set(get_type_hints(params)) - known - {"stream"} == set()
    assert "stream" in schema.model_fields


@pytest.mark.parametrize(
    ("api", "schema", "kinds"),
    [
        ("Responses", ResponsesRequest, RESPONSES_FIELDS),
        ("Completions", CompletionRequest, COMPLETION_FIELDS),
        ("Messages", MessagesRequest, MESSAGES_FIELDS),
    ],
)
def test_every_field_of_the_other_apis_is_listed_too(api: str, schema: type[RequestBody], kinds: FieldKinds) -> None:
    rows = re.findall(r"^\| (`[^|]+) \|", section(f"{api}: honoured"), re.MULTILINE)
    assert {name for row in rows for name in re.findall(r"`(\w+)`", row)} == set(schema.model_fields)
    accepted = section(f"{api}: accepted").strip().split("\n\n")[0]
    assert set(re.findall(r"`(\w+)`", accepted)) == kinds.harmless
    refused = section(f"{api}: refused").strip().split("\n\n")[0]
    assert set(re.findall(r"`(\w+)`", refused)) == set(kinds.unsupported)
    assert not set(schema.model_fields) & (kinds.harmless | set(kinds.unsupported))
