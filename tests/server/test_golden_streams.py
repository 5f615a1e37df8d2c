"""The bytes that clients of the younger APIs get, ids, times and prompt counts aside.

`WRITE_GOLDEN=1` writes them anew.
`test_chat_completions` has those of the chat API.
"""

import os
import re
from pathlib import Path
from typing import Any

import pytest

from tests.server.conftest import Serve

pytestmark = pytest.mark.anyio

GOLDEN = Path(__file__).parent.parent / "golden" / "server"
CALL = (
    "<|channel|>analysis<|message|>Need the tide.<|end|><|start|>assistant"
    "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant"
    '<|channel|>commentary to=functions.tide <|constrain|>json<|message|>{"port":"Oban"}<|call|>'
)
PLAIN = "High at 4.<|return|>"
BODIES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "responses": ("/v1/responses", CALL, {"input": "tide?", "tools": [{"type": "function", "name": "tide"}]}),
    "messages": (
        "/v1/messages",
        CALL,
        {
            "messages": [{"role": "user", "content": "tide?"}],
            "tools": [{"name": "tide", "input_schema": {"type": "object"}}],
            "max_tokens": 100,
            "thinking": {"type": "adaptive"},
        },
    ),
    "completions": ("/v1/completions", PLAIN, {"prompt": "The tide is", "stream_options": {"include_usage": True}}),
}


@pytest.mark.parametrize("api", BODIES)
async def test_golden_streams(serve: Serve, api: str) -> None:
    path, sampled, body = BODIES[api]
    async with serve(sampled) as server:
        response = await server.http.post(path, json=body | {"stream": True})
    text = re.sub(r"\b(resp|rs|msg|fc|call|toolu|cmpl)([-_])[0-9a-f]{32}", r"\1\2ID", response.text)
    text = re.sub(r'"(created|created_at|completed_at)":\d+', r'"\1":0', text)
    text = re.sub(r'"rose-[0-9.]+-', '"rose-VERSION-', text)
    text = re.sub(r'"(prompt|input|total|cached|cache_read_input)_tokens":\d+', r'"\1_tokens":0', text)
    golden = GOLDEN / f"{api}_stream.txt"
    if os.environ.get("WRITE_GOLDEN"):
        golden.write_text(text)
    assert text == golden.read_text()
