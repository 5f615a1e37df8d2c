"""What the server is told at its start, in one frozen object."""

import datetime
from dataclasses import dataclass, field
from typing import Literal

from rose.server.builtin_tools.config import ToolSettings

ReasoningField = Literal["both", "reasoning", "reasoning_content"]
ReasoningSummary = Literal["none", "text"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """Settings of the HTTP frontend; the engine has its own.

    served_model_names: names that requests may use, the first of which is put in answers. api_keys: any of them
    opens the API; none means that it is open. strict_fields: a field nobody knows is a 400 instead of a header.
    reasoning_field: under which name chat answers carry the reasoning. vllm_metrics: show the series a second time
    under vLLM's prefix. max_body_bytes: a longer body is a 413; None sets the limit by the model's context.
    body_timeout_s: a body that takes longer to arrive is a 408.
    keep_alive_s: a stream silent for so long gets a comment line. first_output_wait_s: how long a streamed request
    waits for its first output, so that a refusal can still have its own status code. current_date: `today`, a fixed
    `YYYY-MM-DD`, or None to leave the date out of prompts. response_store: where answers of the responses API are
    kept: `memory`, `none`, or `sqlite:PATH`. chat_format: how the model writes
    chats; `auto` goes by its files. health_timeout_s: an engine that owes an answer for longer is not healthy;
    0 waits for ever. num_api_servers: how many processes answer at the one address. shared_folder: where they keep
    what they counted and what is to be in their memory, so that each can tell of all; None for one alone.
    reasoning_summary: what comes of the wish for a
    summary of the reasoning: none is written, or the reasoning's own text takes its place. tools: those that the
    server runs itself.
    """

    served_model_names: tuple[str, ...]
    api_keys: tuple[str, ...] = ()
    strict_fields: bool = False
    reasoning_field: ReasoningField = "both"
    vllm_metrics: bool = True
    max_body_bytes: int | None = None
    body_timeout_s: float = 60.0
    keep_alive_s: float = 15.0
    first_output_wait_s: float = 15.0
    allowed_origins: tuple[str, ...] = ()
    root_path: str = ""
    current_date: str | None = "today"
    response_store: str = "memory"
    chat_format: str = "auto"
    health_timeout_s: float = 120.0
    num_api_servers: int = 1
    shared_folder: str | None = None
    reasoning_summary: ReasoningSummary = "none"
    tools: ToolSettings = field(default_factory=ToolSettings)

    def prompt_date(self) -> str | None:
        """The date to put into a prompt rendered now."""
        return datetime.date.today().isoformat() if self.current_date == "today" else self.current_date

    def body_limit(self, max_model_len: int) -> int:
        """The longest body that is read: 16 bytes for each token of the context, which escaped text needs at most.

        What is longer would be refused as too long a prompt, after seconds of tokenizing.
        """
        return max(1 << 20, 16 * max_model_len) if self.max_body_bytes is None else self.max_body_bytes
