"""The processes of a fleet that do not do what they should, with stand-ins for Python."""

import asyncio
import logging
import os
import sys
import time
from pathlib import Path

import pytest

from rose.engine.messages import EngineReady
from rose.errors import CheckpointError, ConfigError
from rose.server.fleet import Fleet
from rose.server.http import bind_several
from rose.server.settings import ServerSettings


class StandInEngine:
    """What a fleet asks of the engine's owner."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.info = EngineReady(
            max_model_len=64, vocab_size=512, block_size=16, num_blocks=64, device="none", dtype="float32"
        )
        self.forgotten: list[str] = []

    def forget_frontend(self, name: str) -> None:
        self.forgotten.append(name)

    async def wait_for_end(self) -> str:
        return await asyncio.Future()


def run_fleet(monkeypatch: pytest.MonkeyPatch, folder: Path, script: str, *, stop_after_s: float | None = None):
    """Run two servers that are this script of the shell; the engine, and how often the fleet said it had started."""
    python = folder / "python"
    python.write_text(f"#!/bin/sh\n{script}\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    engine, started = StandInEngine(folder), []

    async def main() -> None:
        listeners = bind_several(2, "127.0.0.1", 0)
        fleet = Fleet(
            engine,  # type: ignore[arg-type]
            folder,
            ServerSettings(served_model_names=("m",)),
            listeners,
            grace_s=0.0,
            on_started=lambda: started.append(1),
        )
        if stop_after_s is not None:
            asyncio.get_running_loop().call_later(stop_after_s, fleet.stop)
        try:
            await fleet.run()
        finally:
            assert all(listener.fileno() == -1 for listener in listeners), "nobody can connect any more"

    try:
        asyncio.run(main())
    finally:
        engine.num_started = len(started)  # type: ignore[attr-defined]
    return engine


def test_servers_that_never_start_are_given_up(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setattr("rose.server.fleet._RESTART_DELAY_S", 0.01)
    with pytest.raises(ConfigError, match="ended 3 times before it could serve"):
        run_fleet(monkeypatch, tmp_path, "exit 3")


def test_what_a_server_cannot_start_for_is_raised_as_what_it_is(monkeypatch, tmp_path: Path) -> None:
    script = """echo '{"type": "failed", "error_type": "CheckpointError", "message": "no vocabulary"}'; exit 2"""
    with pytest.raises(CheckpointError, match="no vocabulary"):
        run_fleet(monkeypatch, tmp_path, script)


def test_a_server_that_ends_is_replaced_under_a_new_name(monkeypatch, caplog, tmp_path: Path) -> None:
    monkeypatch.setattr(logging.getLogger("rose"), "propagate", True)
    # Every server serves for a moment; each is told its name on its standard input.
    script = f"""read config; echo "$config" >> {tmp_path}/told; echo '{{"type": "started"}}'; sleep 0.2; exit 1"""
    engine = run_fleet(monkeypatch, tmp_path, script, stop_after_s=1.0)
    assert engine.num_started == 1, "when the last of the first two listens, and never again"
    assert len(engine.forgotten) == len(set(engine.forgotten)) >= 4
    assert {"server-0", "server-1", "server-0.1", "server-1.1"} <= set(engine.forgotten)
    assert "ended with status 1; starting another" in caplog.text
    told = (tmp_path / "told").read_text().splitlines()
    assert len(told) == len(engine.forgotten)


def test_a_server_that_will_not_end_is_killed(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setattr("rose.server.fleet._KILL_AFTER_S", 0.3)
    script = f"""trap '' TERM; echo $$ >> {tmp_path}/pids; echo '{{"type": "started"}}'; while :; do sleep 0.05; done"""
    began = time.monotonic()
    run_fleet(monkeypatch, tmp_path, script, stop_after_s=0.5)
    assert time.monotonic() - began < 10
    for pid in (tmp_path / "pids").read_text().split():
        with pytest.raises(ProcessLookupError):
            os.kill(int(pid), 0)
