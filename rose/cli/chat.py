"""`rose chat`: talk to a running server in the terminal. Needs only HTTP, so it works with any such server."""

import json
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import httpx
from cyclopts import Parameter
from rich.console import Console
from rich.markup import escape
from rich.text import Text

from rose.cli.places import api_url
from rose.errors import RoseError

_EFFORTS = ("low", "medium", "high")
_HELP = "/reset forgets the chat  /system TEXT  /effort low|medium|high  /quit"


class ChatError(RoseError):
    """The server could not be reached, or refused. The text says what to do."""


def chat(
    prompt: str | None = None,
    *,
    base_url: Annotated[str, Parameter(help="The server's API; without a path it is under /v1.")] = (
        "http://127.0.0.1:8000/v1"
    ),
    model: Annotated[str | None, Parameter(help="A name the server serves; its first one by default.")] = None,
    api_key: Annotated[str | None, Parameter(help="The server's key, if it wants one.")] = None,
    system: Annotated[str | None, Parameter(help="Instructions for the model.")] = None,
    tools: Annotated[Path | None, Parameter(help="JSON file with the list of tools that the model may call.")] = None,
    effort: Annotated[str, Parameter(help="How long to reason: low, medium or high.")] = "medium",
    temperature: Annotated[float | None, Parameter(help="0 is greedy.")] = None,
    max_tokens: Annotated[int | None, Parameter(help="Longest answer, in tokens, reasoning included.")] = None,
) -> None:
    """Chat with a running server; with PROMPT, or text on standard input, answer once and end.

    The reasoning is shown dimmed, tool calls in yellow and the answer plain. When output is not a terminal the
    reasoning is left out. In a chat you are asked for the result of each tool call; the answer to PROMPT ends there.
    """
    if prompt is None and not sys.stdin.isatty():
        prompt = sys.stdin.read().strip()
    if prompt == "":
        raise ChatError("nothing to say: give a PROMPT, or text on standard input")
    sampling = {"temperature": temperature, "max_completion_tokens": max_tokens}
    headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
    timeout = httpx.Timeout(10.0, read=None)
    base_url = api_url(base_url)
    with httpx.Client(base_url=base_url, headers=headers, timeout=timeout) as client:
        session = ChatSession(
            server=ChatServer(client, base_url),
            model=model or "",
            effort=effort,
            system=system,
            tools=[] if tools is None else read_tools(tools),
            sampling={name: value for name, value in sampling.items() if value is not None},
        )
        if model is None:
            session.model = session.server.first_model()
        if prompt is not None:
            session.answer(prompt)
        else:
            _talk(session)


@dataclass
class ChatServer:
    """The server's side: two calls, whose failures are `ChatError`s."""

    client: httpx.Client
    base_url: str

    def first_model(self) -> str:
        """The first name that the server serves."""
        try:
            response = self.client.get("/models")
        except httpx.HTTPError as error:
            raise self._unreachable(error) from None
        _check(response)
        names = [entry["id"] for entry in response.json().get("data", [])]
        if not names:
            raise ChatError(f"{self.base_url} serves no model")
        return str(names[0])

    def stream(self, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """The chunks of a streamed answer."""
        try:
            with self.client.stream("POST", "/chat/completions", json=body) as response:
                if response.is_error:
                    response.read()
                _check(response)
                for data in read_sse(response.iter_lines()):
                    chunk = json.loads(data)
                    if "error" in chunk:
                        raise ChatError(f"the server gave up: {chunk['error'].get('message')}")
                    yield chunk
        except httpx.HTTPError as error:
            raise self._unreachable(error) from None

    def _unreachable(self, error: httpx.HTTPError) -> ChatError:
        reason = str(error) or type(error).__name__
        return ChatError(
            f"no answer from {self.base_url} ({reason}): "
            "start a server with `rose serve MODEL`, or name one with --base-url"
        )


@dataclass
class ChatSession:
    """A chat so far, and how to go on with it."""

    server: ChatServer
    model: str
    effort: str
    system: str | None = None
    tools: list[Any] = field(default_factory=list)
    sampling: dict[str, Any] = field(default_factory=dict)
    messages: list[dict[str, Any]] = field(default_factory=list)
    console: Console = field(default_factory=lambda: Console(highlight=False, soft_wrap=True))

    def answer(self, text: str) -> None:
        """Say `text`, and show the answer as it comes. A failed turn leaves the chat as it was."""
        self._turn([{"role": "user", "content": text}])

    @property
    def open_calls(self) -> list[dict[str, Any]]:
        """The tool calls that the last answer made."""
        return self.messages[-1].get("tool_calls", []) if self.messages else []

    def give_results(self, results: list[str]) -> None:
        """Answer the open calls, in order, and show what the model makes of the results."""
        calls = zip(self.open_calls, results, strict=True)
        self._turn([{"role": "tool", "tool_call_id": call["id"], "content": result} for call, result in calls])

    def _turn(self, new: list[dict[str, Any]]) -> None:
        system = [{"role": "system", "content": self.system}] if self.system else []
        body = {
            "model": self.model,
            "messages": [*system, *self.messages, *new],
            "reasoning_effort": self.effort,
            "stream": True,
            "stream_options": {"include_usage": True},
            **({"tools": self.tools} if self.tools else {}),
            **self.sampling,
        }
        view = _AnswerView(self.console)
        try:
            for chunk in self.server.stream(body):
                view.show(chunk)
        finally:
            view.close()
        self.messages += [*new, view.message()]


class _AnswerView:
    """Prints an answer as it comes. Its reasoning is only for terminals."""

    def __init__(self, console: Console) -> None:
        self._content = ""
        self._reasoning = ""
        self._calls: list[dict[str, Any]] = []
        self._console = console
        self._section = ""
        self._num_tokens = 0
        self._finish_reason = ""
        self._began = time.perf_counter()
        self._first: float | None = None

    def show(self, chunk: dict[str, Any]) -> None:
        """Print what a chunk brings."""
        if usage := chunk.get("usage"):
            self._num_tokens = usage["completion_tokens"]
        for choice in chunk["choices"]:
            delta = choice["delta"]
            if reasoning := delta.get("reasoning") or delta.get("reasoning_content"):
                self._reasoning += reasoning
                self._print("reasoning", reasoning)
            if content := delta.get("content"):
                self._content += content
                self._print("content", content)
            for call in delta.get("tool_calls") or ():
                self._show_call(call)
            self._finish_reason = choice.get("finish_reason") or self._finish_reason

    def message(self) -> dict[str, Any]:
        """The answer as a message of the chat. Calls that the output was cut in are not made."""
        message = {"role": "assistant", "content": self._content}
        if self._calls and self._finish_reason == "tool_calls":
            return message | {"reasoning": self._reasoning, "tool_calls": self._calls}
        return message

    def close(self) -> None:
        """End the line, and tell how fast it went."""
        if self._section:
            self._console.print()
        if self._console.is_terminal and self._num_tokens and self._first is not None:
            seconds = time.perf_counter() - self._first
            rate = (self._num_tokens - 1) / seconds if seconds > 0 else 0.0
            first_ms = 1000 * (self._first - self._began)
            notes = f"{self._num_tokens} tokens, {rate:.1f} tokens/s, first after {first_ms:.0f} ms"
            cut = ", cut at the token limit" if self._finish_reason == "length" else ""
            self._console.print(Text(f"[{notes}{cut}]", style="dim cyan"))

    def _show_call(self, call: dict[str, Any]) -> None:
        index, function = call["index"], call["function"]
        if name := function.get("name"):
            self._calls.append({"id": call.get("id", ""), "function": {"name": name, "arguments": ""}})
            self._print(f"call {index}", f"{name} ")
        if arguments := function.get("arguments"):
            self._calls[index]["function"]["arguments"] += arguments
            self._print(f"call {index}", arguments)

    def _print(self, section: str, text: str) -> None:
        self._first = self._first or time.perf_counter()
        if section == "reasoning" and not self._console.is_terminal:
            return
        if self._section and section != self._section:
            self._console.print()
        self._section = section
        style = {"content": "", "reasoning": "dim italic"}.get(section, "yellow")
        self._console.print(Text(text, style=style), end="")


def read_tools(path: Path) -> list[Any]:
    """The tools in a file, in the form that the API takes. Raises `ChatError`."""
    try:
        tools = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ChatError(f"cannot read tools from {path}: {error}") from None
    if not isinstance(tools, list):
        raise ChatError(f"{path} must hold a JSON list of tools")
    return tools


def read_sse(lines: Iterator[str]) -> Iterator[str]:
    """The data of each event in a stream's lines, up to `[DONE]`. Comments and other fields are passed over."""
    data: list[str] = []
    for line in lines:
        if line.startswith("data:"):
            data.append(line[5:].removeprefix(" "))
        elif not line and data:
            event, data = "\n".join(data), []
            if event == "[DONE]":
                return
            yield event


def _talk(session: ChatSession) -> None:
    console = session.console
    console.print(Text(f"{session.model}   {_HELP}", style="dim"))
    while True:
        try:
            line = console.input("[bold]> [/bold]").strip()
        except (EOFError, KeyboardInterrupt):
            console.print()
            return
        if line in ("/quit", "/exit"):
            return
        try:
            if line.startswith("/"):
                _command(session, line)
            elif line:
                session.answer(line)
            while calls := session.open_calls:
                session.give_results([console.input(_prompt_for(call)) for call in calls])
        except ChatError as error:
            console.print(Text(str(error), style="red"))
        except (EOFError, KeyboardInterrupt):
            console.print()  # only this answer is given up; the server sees the connection close


def _prompt_for(call: dict[str, Any]) -> str:
    return f"[yellow]{escape(call['function']['name'])} gives> [/yellow]"


def _command(session: ChatSession, line: str) -> None:
    name, _, rest = line.partition(" ")
    rest = rest.strip()
    match name:
        case "/reset":
            session.messages.clear()
            session.console.print(Text("forgotten", style="dim"))
        case "/system":
            session.system = rest or None
            session.messages.clear()
        case "/effort" if rest in _EFFORTS:
            session.effort = rest
        case _:
            session.console.print(Text(_HELP, style="dim"))


def _check(response: httpx.Response) -> None:
    if not response.is_error:
        return
    try:
        message = response.json()["error"]["message"]
    except (ValueError, KeyError, TypeError):
        message = response.text[:200]
    raise ChatError(f"the server answered {response.status_code}: {message}")
