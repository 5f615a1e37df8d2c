"""One streamed request, timed."""

import itertools
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import httpx

Endpoint = Literal["chat/completions", "completions"]


@dataclass(slots=True)
class Exchange:
    """What became of a request. Times are of one monotonic clock, in seconds.

    due_s: when it was to be sent; sent_s: when it was. chunk_times: arrival of each chunk that brought text, reasoning
    or a piece of a call. input_tokens, output_tokens: by the server's own count, or else the output's chunks. error:
    why it failed; then the other fields tell how far it came.
    """

    due_s: float
    sent_s: float = 0.0
    chunk_times: list[float] = field(default_factory=list)
    input_tokens: int = 0
    output_tokens: int = 0
    error: str | None = None

    @property
    def is_complete(self) -> bool:
        """Whether it ended well, with at least one token."""
        return self.error is None and bool(self.chunk_times)

    @property
    def ttft_s(self) -> float:
        """Time to first token."""
        return self.chunk_times[0] - self.sent_s

    @property
    def latency_s(self) -> float:
        """Time to the last token."""
        return self.chunk_times[-1] - self.sent_s

    @property
    def tpot_s(self) -> float | None:
        """Time per output token after the first; None if there is none after it."""
        if self.output_tokens < 2:
            return None
        return (self.latency_s - self.ttft_s) / (self.output_tokens - 1)

    @property
    def gaps_s(self) -> list[float]:
        """Times between chunks: inter-token latencies, where a chunk holds one token."""
        return [later - earlier for earlier, later in itertools.pairwise(self.chunk_times)]


@dataclass(frozen=True, slots=True)
class RequestShape:
    """What every request asks for. extra: more fields of the body, such as `temperature`."""

    model: str
    endpoint: Endpoint
    output_len: int
    ignore_eos: bool = True
    extra: Mapping[str, Any] = field(default_factory=dict)

    def body(self, prompt: str) -> dict[str, Any]:
        """The JSON body for a prompt."""
        body: dict[str, Any] = {
            "model": self.model,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self.endpoint == "completions":
            body |= {"prompt": prompt, "max_tokens": self.output_len}
        else:
            messages = [{"role": "user", "content": prompt}]
            body |= {"messages": messages, "max_completion_tokens": self.output_len}
        if self.ignore_eos:
            body["ignore_eos"] = True
        return body | dict(self.extra)


async def exchange(client: httpx.AsyncClient, shape: RequestShape, prompt: str, due_s: float) -> Exchange:
    """Send one request and read its stream to the end. Never raises for what a server does."""
    record = Exchange(due_s=due_s, sent_s=time.perf_counter())
    try:
        async with client.stream("POST", shape.endpoint, json=shape.body(prompt)) as response:
            if response.is_error:
                await response.aread()
                record.error = f"{response.status_code}: {_message(response)}"
                return record
            async for line in response.aiter_lines():
                _take_line(record, line)
    except (httpx.HTTPError, ValueError) as error:
        record.error = f"{type(error).__name__}: {error}".strip(": ")
        return record
    if record.error is None and not record.chunk_times:
        if record.output_tokens == 0:
            record.error = "the stream ended without a token"
        else:  # tokens that made no text, such as a chat format's own: all that is known is when they were done
            record.chunk_times.append(time.perf_counter())
    record.output_tokens = record.output_tokens or len(record.chunk_times)
    return record


def _take_line(record: Exchange, line: str) -> None:
    if not line.startswith("data:"):
        return
    now = time.perf_counter()
    data = line[5:].strip()
    if data == "[DONE]":
        return
    chunk = json.loads(data)
    if not isinstance(chunk, dict):
        raise ValueError(f"the server sent {data[:80]}")
    if error := chunk.get("error"):
        record.error = str(error.get("message", error) if isinstance(error, dict) else error)
    try:
        if usage := chunk.get("usage"):
            record.input_tokens = int(usage.get("prompt_tokens") or record.input_tokens)
            record.output_tokens = int(usage.get("completion_tokens") or record.output_tokens)
        if any(_has_output(choice) for choice in chunk.get("choices") or ()):
            record.chunk_times.append(now)
    except (AttributeError, TypeError) as error:
        raise ValueError(f"the server sent {data[:80]}") from error


def _has_output(choice: Mapping[str, Any]) -> bool:
    delta = choice.get("delta") or {}
    return bool(
        choice.get("text")
        or delta.get("content")
        or delta.get("reasoning")
        or delta.get("reasoning_content")
        or delta.get("tool_calls")
    )


def _message(response: httpx.Response) -> str:
    try:
        return str(response.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return response.text[:200]
