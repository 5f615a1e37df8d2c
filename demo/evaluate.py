"""Measure `rose-demo` on a running server, over the HTTP API, on held-out problems.

    rose serve rose-demo &
    python -m demo.evaluate --base-url http://127.0.0.1:8000/v1 --out demo/out/evaluation

Only the answer is graded, not the working. Greedy sampling, several requests at once. Writes `evaluation.json` and
`evaluation.md`.
"""

import argparse
import asyncio
import json
import re
import time
from collections import defaultdict
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Any

import httpx

from demo.tasks.example import Example
from demo.tasks.mixture import BUILDERS, EFFORTS, build
from rose.chat.conversation import Conversation, FunctionTool, Message, ReasoningEffort

# Longer than any right reply; a reply that reaches it is wrong.
_MAX_TOKENS = 512


@dataclass(frozen=True, slots=True)
class Outcome:
    """One graded reply."""

    task: str
    effort: str
    right: bool
    tokens: int
    message: dict[str, Any] | None
    expected: str


def request_body(conversation: Conversation, model: str) -> dict[str, Any]:
    """The conversation as a request to `/v1/chat/completions`."""
    body: dict[str, Any] = {
        "model": model,
        "messages": [_message(message) for message in conversation.messages],
        "reasoning_effort": conversation.reasoning_effort,
        "temperature": 0,
        "max_completion_tokens": _MAX_TOKENS,
    }
    if conversation.tools:
        body["tools"] = [_tool(tool) for tool in conversation.tools]
    return body


def _message(message: Message) -> dict[str, Any]:
    body: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.tool_call_id:
        body["tool_call_id"] = message.tool_call_id
    if message.reasoning:
        body["reasoning_content"] = message.reasoning
    if message.tool_calls:
        body["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.tool_calls
        ]
    return body


def _tool(tool: FunctionTool) -> dict[str, Any]:
    function = {"name": tool.name, "parameters": tool.parameters}
    if tool.description:
        function["description"] = tool.description
    return {"type": "function", "function": function}


def is_right(example: Example, message: dict[str, Any]) -> bool:
    """Whether a reply, as the API returns it, is the right answer."""
    content = message.get("content") or ""
    calls = message.get("tool_calls") or []
    wanted = example.reply
    if example.grade == "call":
        assert wanted.call is not None
        if len(calls) != 1 or calls[0]["function"]["name"] != wanted.call.name:
            return False
        return bool(_parsed(calls[0]["function"]["arguments"]) == wanted.call.arguments)
    if calls:
        return False
    if example.grade == "json":
        return bool(_parsed(content) == json.loads(wanted.content))
    if example.grade == "number":
        return _last_number(content) == _last_number(wanted.content)
    return bool(content.strip() == wanted.content.strip())


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return None


def _last_number(text: str) -> str | None:
    # A minus sign belongs to its number when nothing but a sign of equality or the start stands before it.
    numbers = re.findall(r"(?:(?<==)|(?<== )|^)-\d+|\d+", text)
    return numbers[-1] if numbers else None


THREE_DIGITS = "add, three digits"


def problem(task: str, rng: Random, effort: ReasoningEffort) -> Example:
    """A held-out problem of a task; `THREE_DIGITS` is the part of `add` that the model card promises most for."""
    if task != THREE_DIGITS:
        return build(task, rng, "held_out", effort)
    while True:
        example = build("add", rng, "held_out", effort)
        if re.fullmatch(r"\d{3} \+ \d{3} = \d+", example.reply.content):
            return example


async def evaluate(
    base_url: str, model: str, count: int, concurrency: int, seed: int, tasks: list[str]
) -> list[Outcome]:
    """Ask `count` held-out problems of each task and effort."""
    jobs = [
        (task, problem(task, Random(f"{seed}/{task}/{effort}/{index}"), effort))
        for task in tasks
        for effort in EFFORTS
        for index in range(count)
    ]
    slots = asyncio.Semaphore(concurrency)
    async with httpx.AsyncClient(base_url=base_url.rstrip("/"), timeout=120) as client:

        async def ask(task: str, example: Example) -> Outcome:
            async with slots:
                body = request_body(example.conversation, model)
                response = await client.post("/chat/completions", json=body)
            response.raise_for_status()
            completion = response.json()
            message = completion["choices"][0]["message"]
            reply = example.reply
            return Outcome(
                task=task,
                effort=example.conversation.reasoning_effort,
                right=is_right(example, message),
                tokens=completion["usage"]["completion_tokens"],
                message=message,
                expected=f"{reply.call.name}({reply.call.json})" if reply.call else reply.content,
            )

        return list(await asyncio.gather(*(ask(task, example) for task, example in jobs)))


def as_table(outcomes: list[Outcome]) -> str:
    """Accuracy in per cent and mean completion tokens, by task and effort, in Markdown."""
    cells: dict[tuple[str, str], list[Outcome]] = defaultdict(list)
    for outcome in outcomes:
        cells[outcome.task, outcome.effort].append(outcome)
    lines = ["| task | " + " | ".join(EFFORTS) + " | tokens |", "|---|" + "---:|" * (len(EFFORTS) + 1)]
    for task in dict.fromkeys(outcome.task for outcome in outcomes):
        groups = [cells[task, effort] for effort in EFFORTS]
        shares = [f"{100 * sum(o.right for o in group) / len(group):.1f}" for group in groups]
        lengths = " / ".join(f"{sum(o.tokens for o in group) / len(group):.0f}" for group in groups)
        lines.append(f"| {task} | " + " | ".join(shares) + f" | {lengths} |")
    return "\n".join(lines)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base-url", default="http://127.0.0.1:8000/v1")
    parser.add_argument("--model", default="rose-demo")
    parser.add_argument("--count", type=int, default=50, help="problems for each task and effort")
    parser.add_argument("--task", action="append", choices=[THREE_DIGITS, *BUILDERS], help="only this; all by default")
    parser.add_argument("--concurrency", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, required=True, help="folder for evaluation.json and evaluation.md")
    args = parser.parse_args()

    start = time.monotonic()
    tasks = args.task or [THREE_DIGITS, *BUILDERS]
    outcomes = asyncio.run(evaluate(args.base_url, args.model, args.count, args.concurrency, args.seed, tasks))
    table = as_table(outcomes)
    args.out.mkdir(parents=True, exist_ok=True)
    summary = {"count": args.count, "seed": args.seed, "seconds": round(time.monotonic() - start, 1)}
    details = {**summary, "outcomes": [asdict(outcome) for outcome in outcomes]}
    (args.out / "evaluation.json").write_text(json.dumps(details, indent=1, ensure_ascii=False) + "\n")
    (args.out / "evaluation.md").write_text(table + "\n")
    print(table)
    for outcome in [outcome for outcome in outcomes if not outcome.right][:10]:
        print(f"wrong: {outcome.task}, {outcome.effort}: expected {outcome.expected!r}, got {outcome.message}")


if __name__ == "__main__":
    main()
