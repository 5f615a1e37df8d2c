"""Times a start: `python -m rose.bench.startup MODEL [--experts FORMAT] [--dense FORMAT]`, in a process of its own.

Prints the seconds from the first line of this module to the first token, in parts. With `--serve`, what a user waits
for instead: from the start of `rose serve` to the line that says that it serves. The files should have been read once
before, so that they are in the page cache, and the kernels compiled.
"""

import time

_STARTED = time.perf_counter()

import argparse  # noqa: E402  (the clock starts before everything that costs)
import subprocess  # noqa: E402
import sys  # noqa: E402
from collections.abc import Callable  # noqa: E402
from typing import Any  # noqa: E402
from unittest.mock import patch  # noqa: E402

from rose.bench.as_module import run_as_module  # noqa: E402


def main() -> None:
    """Print a line for each part."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--experts", default="auto")
    parser.add_argument("--dense", default="auto")
    parser.add_argument("--load-format", default="auto")
    parser.add_argument("--gpu-memory-utilization", type=float, default=0.9)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--serve", action="store_true", help="time rose serve")
    settings = vars(parser.parse_args())
    parts = _serve(**settings) if settings.pop("serve") else _start(**settings)
    for name, seconds in {**parts, "in all": sum(parts.values())}.items():
        print(f"{name:22s} {seconds:7.2f} s")


def _serve(model: str, **settings: object) -> dict[str, float]:
    """Start a server and end it."""
    flags = [text for name, value in settings.items() for text in (f"--{name.replace('_', '-')}", str(value))]
    begin = time.perf_counter()
    command = [sys.executable, "-m", "rose", "serve", model, "--port", "0", *flags]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        line = server.stdout.readline()
        seconds = time.perf_counter() - begin
        server.terminate()
    if not line:
        sys.exit("rose serve ended before it served")
    return {"rose serve": seconds}


def _start(**settings: Any) -> dict[str, float]:
    """Start an engine in this process, as the process of an engine does, and have it answer."""
    parts: dict[str, float] = {}

    def end(name: str) -> None:
        """All that has passed and is of no part yet was this part."""
        parts[name] = time.perf_counter() - _STARTED - sum(parts.values())

    def timed(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function as a part of its own."""

        def call(*args: Any, **kwargs: Any) -> Any:
            begin = time.perf_counter()
            result = function(*args, **kwargs)
            parts[name] = time.perf_counter() - begin
            return result

        return call

    from rose.engine.worker import warm_up

    warm_up.begin(settings["device"])
    import torch

    end("import torch")
    if torch.cuda.is_available() and settings["device"] != "cpu":
        torch.zeros(1, device="cuda")
    end("CUDA's context")
    from rose.engine.config import EngineConfig
    from rose.engine.messages import AddRequest
    from rose.engine.sampling_params import SamplingParams
    from rose.engine.worker import trial, worker
    from rose.engine.worker.cuda_graph import ForwardGraphs
    from rose.log import setup_logging

    setup_logging("startup")
    end("rose's imports")
    config = EngineConfig(**settings)
    common = timed("graphs", ForwardGraphs.capture_common)
    with (
        patch.object(worker, "measure_activations", timed("trial", trial.measure_activations)),
        patch.object(ForwardGraphs, "capture_common", lambda graphs: common(graphs)),
    ):
        core = worker.build_core(config)
    parts["weights"] = core.info.load_time_s
    end("the rest of the engine")
    params = SamplingParams(temperature=0.0, max_tokens=1)
    core.add(AddRequest(request_id="first", prompt_token_ids=list(range(100, 120)), sampling_params=params))
    while core.has_work:
        core.step()
    end("first token")
    tokens = core.info.num_blocks * core.info.block_size
    print(f"KV cache {core.info.num_blocks} blocks of {core.info.block_size} ({tokens} slots of one group)")
    if torch.cuda.is_available():
        print(f"peak {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB")
    return parts


if __name__ == "__main__":
    run_as_module(main)
