"""The warm-up: it does what it is for, and neither hinders nor fails a start."""

import ctypes
import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest

from rose.engine.worker import warm_up


def test_it_needs_no_torch_and_a_cpu_needs_none_of_it() -> None:
    code = (
        "import sys, threading; from rose.engine.worker import warm_up; warm_up.begin('cpu'); "
        "sys.exit('torch' in sys.modules or threading.active_count() > 1)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_process_that_ends_early_waits_for_it() -> None:
    """Else it aborts where the thread is in torch."""
    code = (
        "import time; from rose.engine.worker import warm_up; "
        "warm_up._prepare = lambda device: (time.sleep(0.3), print('done')); warm_up.begin('cuda')"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


def driver(*, num_gpus: int, retained: list[int]) -> SimpleNamespace:
    """What it needs of a CUDA driver."""

    def get(device: "ctypes._Pointer[ctypes.c_int]", index: int) -> int:
        device._obj.value = 10 + index  # type: ignore[attr-defined]
        return 0 if index < num_gpus else 101

    def retain(_context: object, device: ctypes.c_int) -> int:
        retained.append(device.value)
        return 0

    return SimpleNamespace(cuInit=lambda _: 0, cuDeviceGet=get, cuDevicePrimaryCtxRetain=retain)


@pytest.mark.parametrize(("device", "index"), [("auto", 0), ("cuda", 0), ("cuda:1", 1), ("cuda:2", None)])
def test_it_prepares_the_gpu_that_is_asked_for(device: str, index: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    retained: list[int] = []
    monkeypatch.setattr(ctypes, "CDLL", lambda _: driver(num_gpus=2, retained=retained))
    monkeypatch.setattr(warm_up, "_compute_triton_key", fail)
    multiplied: list[int] = []
    monkeypatch.setattr(warm_up, "_multiply", multiplied.append)
    warm_up._prepare(device)
    assert (retained, multiplied) == (([], []) if index is None else ([10 + index], [index]))


def fail(*_: object) -> bool:
    raise RuntimeError("not today")


def test_no_failure_matters(monkeypatch: pytest.MonkeyPatch) -> None:
    warnings: list[object] = []
    monkeypatch.setattr(threading, "excepthook", warnings.append)
    monkeypatch.setattr(warm_up, "_create_context", fail)
    warm_up.begin("auto")
    for thread in threading.enumerate():
        if thread.name == "warm-up":
            thread.join(10)
    assert not warnings


def test_a_machine_without_a_driver_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(_: str) -> None:
        raise OSError("libcuda.so.1: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", missing)
    assert not warm_up._create_context(0)


def test_tritons_key_is_kept() -> None:
    """Otherwise it would be computed for nothing."""
    cache = pytest.importorskip("triton.runtime.cache")
    warm_up._compute_triton_key()
    hits = cache.triton_key.cache_info().hits
    cache.triton_key()
    assert cache.triton_key.cache_info().hits == hits + 1
