"""Where and with what a benchmark ran."""

import os
import platform
import subprocess
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from rose import __version__
from rose.errors import ConfigError

_PACKAGES = ("torch", "triton", "numpy")


def describe_machine(device: torch.device, revision: str | None = None) -> dict[str, Any]:
    """Device, memory, versions and source revision, for a result's `machine`. revision: used where git knows none."""
    return {
        "device": device_name(device),
        "num_devices": torch.cuda.device_count() if device.type == "cuda" else 1,
        "memory_bytes": torch.cuda.get_device_properties(device).total_memory if device.type == "cuda" else None,
        "cpu": _cpu_name(),
        "num_cpus": os.cpu_count(),
        "num_threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "rose": __version__,
        "cuda": torch.version.cuda,
        **{name: _version_of(name) for name in _PACKAGES},
        **_git_state(revision),
    }


def describe_client() -> dict[str, Any]:
    """The machine that sends a load; what the server runs on is not known to it."""
    return {
        "device": f"load from {_cpu_name()}",
        "num_cpus": os.cpu_count(),
        "python": platform.python_version(),
        "rose": __version__,
        "httpx": _version_of("httpx"),
        **_git_state(None),
    }


def device_name(device: torch.device) -> str:
    """The GPU's name, or the CPU's."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else _cpu_name()


def find_device(name: str) -> torch.device:
    """`auto` is the GPU if there is one. Raises `ConfigError` for what is not there."""
    try:
        device = torch.device(("cuda" if torch.cuda.is_available() else "cpu") if name == "auto" else name)
    except RuntimeError:
        raise ConfigError(f"device must be auto, cpu, cuda or cuda:<n>, not {name!r}") from None
    if device.type not in ("cpu", "cuda") or (device.type == "cuda" and (device.index or 0) >= _num_gpus()):
        raise ConfigError(f"device {name}: torch {torch.__version__} finds no such device here; use cpu or auto")
    return device


def _num_gpus() -> int:
    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def utc_now() -> str:
    """For a result's `date`."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def _version_of(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


def _git_state(revision: str | None) -> dict[str, Any]:
    """The commit of the source, and whether files differ from it; a copy without git has none of its own."""
    commit = _git("rev-parse", "HEAD")
    if commit is None:
        return {"git_revision": revision, "git_dirty": None}
    return {"git_revision": commit, "git_dirty": bool(_git("status", "--porcelain", "--untracked-files=no"))}


def _git(*arguments: str) -> str | None:
    folder = Path(__file__).parent
    try:
        done = subprocess.run(["git", "-C", folder, *arguments], capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
