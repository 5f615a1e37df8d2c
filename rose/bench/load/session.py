"""Loads of several rates on one server, as rows."""

import asyncio
import dataclasses
import json
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from rose.bench.load.client import RequestShape
from rose.bench.load.run import Load, PromptLength, first_model, measure_prompt_length, run_load, serve_metrics
from rose.bench.machine import describe_client, utc_now
from rose.bench.results import Configuration, Result
from rose.errors import ConfigError

_CONNECT_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class Server:
    """A server to load. base_url: up to `/v1`. timeout_s: longest silence of an open request. label: for reports."""

    base_url: str
    api_key: str | None
    timeout_s: float
    label: str | None

    def client(self) -> httpx.AsyncClient:
        """A client that opens as many connections as it needs. Raises `ConfigError` for an address that is none."""
        try:
            return httpx.AsyncClient(
                base_url=self.base_url.rstrip("/") + "/",
                headers={"authorization": f"Bearer {self.api_key}"} if self.api_key else {},
                timeout=httpx.Timeout(_CONNECT_TIMEOUT_S, read=self.timeout_s),
                limits=httpx.Limits(max_connections=None, max_keepalive_connections=None),
            )
        except (httpx.InvalidURL, ValueError) as error:
            raise ConfigError(f"cannot call {self.base_url!r} with this key: {error}") from error


def measure_rates(
    server: Server,
    shape: RequestShape,
    loads: Sequence[Load],
    slo: Mapping[str, float],
    *,
    seed: int,
    command: str,
) -> Iterator[Result]:
    """A row for each load, as it ends. An empty `shape.model` is the server's first. Raises `PointFailed`."""
    with asyncio.Runner() as runner:
        rng = random.Random(seed)
        shape, lengths = runner.run(_prepare(server, shape, rng))
        for load in loads:
            metrics = runner.run(_measure(server, shape, load, lengths, slo, rng))
            yield _row(server, shape, load, metrics, seed=seed, command=command)


def write_vllm_result(row: Result, folder: Path) -> Path:
    """Write a row's metrics alone, under the name that `vllm bench serve` would choose, but for colons in the date."""
    folder.mkdir(parents=True, exist_ok=True)
    metrics = row.metrics
    model = str(metrics["model_id"]).rsplit("/", 1)[-1]
    when = re.sub(r"[-:]|\+.*", "", str(metrics["date"]))
    path = folder / f"{metrics['backend']}-{metrics['request_rate']}qps-{model}-{when}.json"
    path.write_text(json.dumps(metrics, indent=2) + "\n", encoding="utf-8")
    return path


async def _prepare(server: Server, shape: RequestShape, rng: random.Random) -> tuple[RequestShape, PromptLength]:
    async with server.client() as client:
        if not shape.model:
            shape = dataclasses.replace(shape, model=await first_model(client))
        return shape, await measure_prompt_length(client, shape, rng)


async def _measure(
    server: Server,
    shape: RequestShape,
    load: Load,
    lengths: PromptLength,
    slo: Mapping[str, float],
    rng: random.Random,
) -> dict[str, Any]:
    backend = "openai-chat" if "chat" in shape.endpoint else "openai"
    facts = {"date": utc_now(), "backend": backend, "label": server.label}
    async with server.client() as client:
        exchanges, duration_s = await run_load(client, shape, load, lengths, rng)
    return serve_metrics(exchanges, duration_s, shape, load, slo, facts)


def _row(
    server: Server, shape: RequestShape, load: Load, metrics: dict[str, Any], *, seed: int, command: str
) -> Result:
    point = {
        "request_rate": metrics["request_rate"],
        "input_len": load.input_len,
        "output_len": shape.output_len,
        "num_prompts": load.num_prompts,
        "endpoint": shape.endpoint,
    }
    has_answers = metrics["completed"] > 0
    return Result(
        kind="serve",
        status="ok" if has_answers else "failed",
        reason=None if has_answers else "; ".join(metrics["errors"]) or "no request was answered",
        configuration=Configuration(model=shape.model, label=server.label or server.base_url),
        point=point,
        metrics=metrics,
        machine=describe_client(),
        seed=seed,
        command=command,
        date=str(metrics["date"]),
    )
