"""Times a start: `python -m rose.bench.startup MODEL [--experts FORMAT] [--dense FORMAT]`, in a process of its own.

Prints the seconds from the first line of this module to the first token, in parts: importing torch, loading weights
(the loader's log line tells what it waited for), the KV cache with the trial step that sizes it, and one token. The
files should have been read once before, so that they are in the page cache.
"""

import time

_STARTED = time.perf_counter()

import argparse  # noqa: E402  (the clock starts before everything that costs)


def main() -> None:
    """Print a line for each part."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--experts", default="auto")
    parser.add_argument("--dense", default="auto")
    parser.add_argument("--load-format", default="auto")
    parser.add_argument("--gpu-memory-utilization", type=float, default=0.9)
    arguments = parser.parse_args()

    import torch

    from rose.engine.config import EngineConfig
    from rose.engine.messages import AddRequest
    from rose.engine.sampling_params import SamplingParams
    from rose.engine.worker.worker import build_core
    from rose.log import setup_logging

    setup_logging("startup")
    if torch.cuda.is_available():
        torch.cuda.init()
    imported = time.perf_counter()
    core = build_core(
        EngineConfig(
            model=arguments.model,
            experts=arguments.experts,
            dense=arguments.dense,
            load_format=arguments.load_format,
            gpu_memory_utilization=arguments.gpu_memory_utilization,
        )
    )
    built = time.perf_counter()
    params = SamplingParams(temperature=0.0, max_tokens=1)
    core.add(AddRequest(request_id="first", prompt_token_ids=list(range(100, 120)), sampling_params=params))
    while core.has_work:
        core.step()
    answered = time.perf_counter()
    load_s = core.info.load_time_s
    parts = {
        "import torch, context": imported - _STARTED,
        "weights": load_s,
        "KV cache, trial step": built - imported - load_s,
        "first token": answered - built,
        "in all": answered - _STARTED,
    }
    for name, seconds in parts.items():
        print(f"{name:22s} {seconds:7.2f} s")
    tokens = core.info.num_blocks * core.info.block_size
    print(f"KV cache {core.info.num_blocks} blocks of {core.info.block_size} ({tokens} slots of one group)")
    if torch.cuda.is_available():
        print(f"peak {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB")


if __name__ == "__main__":
    main()
