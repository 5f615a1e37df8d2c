"""Sweeps: their points, and what becomes of a run that stops half way."""

import inspect
import os
import signal
import subprocess
import sys
import time
from dataclasses import fields
from pathlib import Path

import pytest

from rose.bench.grid import KEYS, Point, read_sweep
from rose.bench.results import read_results
from rose.bench.sweep import measure_point, plan_sweep
from rose.cli.bench.decode import decode
from rose.cli.bench.flags import BenchEngineFlags, BenchOutputFlags
from rose.cli.bench.prefill import prefill
from rose.cli.main import app
from rose.errors import ConfigError

TINY = """
[sweep]
device = "cpu"
repeats = 1
warmup = 0
ceilings = false
[[prefill]]
model = "rose-demo"
lengths = [8, 16]
[[decode]]
model = "no-such-model"
context = 16
batches = 1
"""


def write(tmp_path, text):
    path = tmp_path / "tiny.toml"
    path.write_text(text)
    return path


def test_the_grid_is_every_combination(tmp_path):
    sweep = read_sweep(
        write(
            tmp_path,
            """
            [sweep]
            out = "rows/all.jsonl"
            timeout_s = 60
            load_format = "dummy"
            temperature = 0.5
            [[prefill]]
            model = ["a", "b"]
            tensor_parallel_size = [1, 2]
            lengths = 8192
            [[decode]]
            model = "a"
            experts = ["mxfp4", "fp8"]
            context = 8192
            batches = [1, 8]
            enable_expert_parallel = true
            ceilings = false
            """,
        )
    )
    assert sweep.out == tmp_path / "rows" / "all.jsonl"
    assert sweep.timeout_s == 60
    commands = [point.command for point in sweep.points]
    assert commands[:4] == [
        f"rose bench prefill {model} --load-format dummy --tensor-parallel-size {tp} --lengths 8192"
        for model in "ab"
        for tp in (1, 2)
    ]
    assert commands[4:] == [
        f"rose bench decode a --load-format dummy --temperature 0.5 --experts {experts} --context 8192 "
        f"--batches {batch} --enable-expert-parallel --no-ceilings"
        for experts in ("mxfp4", "fp8")
        for batch in (1, 8)
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[prefill]", "cannot read a sweep"),
        ("", "no points"),
        ("[prefill]\nmodel = 'a'", "in two brackets"),
        ("[[serve]]\nmodel = 'a'", r"\[serve\] is no table"),
        ("[[prefill]]\nmodel = 'a'", "lengths is missing"),
        ("[[prefill]]\nmodel = 'a'\nlengths = []", "lengths must be"),
        ("[[prefill]]\nmodel = 'a'\nlengths = '8K,16K'", "lengths must be a whole number"),
        ("[[decode]]\nmodel = 'a'\ncontext = 8\nbatches = 1\nlengths = 1", "lengths is no flag of rose bench decode"),
        ("[sweep]\ntimeout_s = 0\n[[prefill]]\nmodel = 'a'\nlengths = 1", "timeout_s"),
        ("[sweep]\ntimeout_s = inf\n[[prefill]]\nmodel = 'a'\nlengths = 1", "timeout_s"),
        ("[sweep]\ntimeout_s = nan\n[[prefill]]\nmodel = 'a'\nlengths = 1", "timeout_s"),
        ("[sweep]\ntimeout_s = true\n[[prefill]]\nmodel = 'a'\nlengths = 1", "timeout_s"),
        ("[sweep]\ntimout_s = 9\n[[prefill]]\nmodel = 'a'\nlengths = 1", "timout_s is no key of a sweep"),
        ("sweep = 3\n[[prefill]]\nmodel = 'a'\nlengths = 1", r"write \[sweep\], in one bracket"),
        ("[[sweep]]\n[[prefill]]\nmodel = 'a'\nlengths = 1", r"write \[sweep\], in one bracket"),
        ("[[prefill]]\nmodel = 3\nlengths = 1", "model must be a model's name"),
        ("[[prefill]]\nmodel = ['a', '--help']\nlengths = 1", "model must be a model's name"),
    ],
)
def test_a_bad_sweep_is_explained(tmp_path, text, message):
    with pytest.raises(ConfigError, match=message):
        read_sweep(write(tmp_path, text))


@pytest.mark.parametrize(("kind", "command"), [("prefill", prefill), ("decode", decode)])
def test_the_keys_are_the_commands_flags(kind, command):
    own = set(inspect.signature(command).parameters) - {"engine", "output"}
    shared = {field.name for flags in (BenchEngineFlags, BenchOutputFlags) for field in fields(flags)} - {"out"}
    assert set(KEYS[kind]) == own | shared


def test_a_dry_run_measures_nothing(tmp_path, capsys):
    path = write(tmp_path, TINY)
    app(["bench", "sweep", str(path), "--dry-run"], result_action="return_value")
    out = capsys.readouterr().out
    assert "3 points, 0 done, 3 to do" in out
    assert out.count("to do  rose bench") == 3
    assert not (tmp_path / "tiny.jsonl").exists()


@pytest.mark.usefixtures("heeded_sigint")
def test_interrupted_and_taken_up_again(tmp_path):
    path = write(tmp_path, TINY)
    out = tmp_path / "tiny.jsonl"
    process = subprocess.Popen(
        [sys.executable, "-m", "rose.cli.main", "bench", "sweep", str(path)], stdout=subprocess.DEVNULL
    )
    wait_until(lambda: out.exists() and out.read_text().count("\n") >= 1)
    process.send_signal(signal.SIGINT)
    assert process.wait(20) == 130
    before = out.read_text()
    num_before = before.count("\n")
    assert 1 <= num_before < 3
    out.write_text(before + before[: len(before) // 3])  # as if the machine had gone down while it wrote

    sweep = read_sweep(path)
    app(["bench", "sweep", str(path)], result_action="return_value")
    rows = read_results([out])
    assert out.read_text().startswith(before)  # what was measured is not measured again
    assert [row.sweep_point for row in rows] == [point.key for point in sweep.points]
    assert [row.status for row in rows] == ["ok", "ok", "failed"]
    assert "no checkpoint at no-such-model" in rows[2].reason
    assert rows[2].point == {"context": 16, "batch": 1}
    assert rows[0].command == sweep.points[0].command
    assert plan_sweep(sweep).left == ()
    assert plan_sweep(sweep, retry_failed=True).left == sweep.points[2:]


def fake_python(tmp_path, script):
    """A program that does what a shell script says, in place of measuring."""
    path = tmp_path / "python"
    path.write_text("#!/bin/sh\n" + script)
    path.chmod(0o755)
    return [str(path)]


POINT = Point("prefill", (("model", "m"), ("lengths", 8)))


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("sleep 30", "no result within 0.3 s"),
        ("kill -SEGV $$", "ended by SIGSEGV"),
        ("echo one >&2; echo 'RuntimeError: two' >&2; exit 1", "one / RuntimeError: two"),
        ("echo 'rose: error: it does not fit' >&2; exit 2", "it does not fit"),
        ("exit 0", "without a row"),
    ],
)
def test_a_point_that_fails_leaves_its_reason(tmp_path, script, reason):
    result = measure_point(POINT, 0.3 if "sleep" in script else 20, python=fake_python(tmp_path, script))
    assert (result.status, result.point) == ("failed", {"batch": 1, "length": 8})
    assert reason in result.reason
    assert result.sweep_point == POINT.key


def test_a_point_that_hangs_ends_with_its_children(tmp_path):
    pid_file = tmp_path / "pid"
    measure_point(POINT, 0.5, python=fake_python(tmp_path, f"sleep 60 & echo $! > {pid_file}; wait"))
    child = int(pid_file.read_text())
    wait_until(lambda: not is_running(child))


# A point with a child in its process group, and one in a session of its own that watches its parent, as engines do.
POINT_WITH_PROCESSES = """#!{python}
import os, subprocess, sys, time
child = subprocess.Popen(["sleep", "60"])
watch = "import os; os.read(0, 1)"
engine = subprocess.Popen([sys.executable, "-c", watch], stdin=subprocess.PIPE, start_new_session=True)
with open("{folder}/new", "w") as file:
    print(os.getpid(), child.pid, engine.pid, file=file)
os.rename("{folder}/new", "{folder}/pids")
time.sleep(60)
"""
SWEEP = """
import sys
from rose.bench.grid import Point
from rose.bench.sweep import measure_point
measure_point(Point("prefill", (("model", "m"), ("lengths", 8))), 60, python=sys.argv[1:])
"""


def test_a_killed_sweep_takes_all_processes_with_it(tmp_path):
    point = tmp_path / "python"
    point.write_text(POINT_WITH_PROCESSES.format(python=sys.executable, folder=tmp_path))
    point.chmod(0o755)
    sweep = subprocess.Popen([sys.executable, "-c", SWEEP, str(point)])
    wait_until((tmp_path / "pids").exists)
    pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    assert [is_running(pid) for pid in pids] == [True, True, True]
    sweep.kill()
    sweep.wait()
    wait_until(lambda: not any(map(is_running, pids)))


def is_running(pid):
    """Whether a process still does something; a zombie that nobody has waited for does not."""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_until(condition, seconds=30.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.02)
