"""The engine's own process: `python -m rose.engine.engine_process FOLDER CONFIG`, started by `ProcessEngineClient`.

It ends when told to, when the engine fails, or when its parent is gone: its standard input is a pipe from the parent,
and the end of that pipe is the one sign of a parent's death that no signal or crash can suppress.
"""

import os
import shutil
import sys
import threading
from pathlib import Path

from rose.engine.base_client import died_of
from rose.engine.channel import EngineEnd
from rose.engine.config import EngineConfig
from rose.engine.core import run_core
from rose.engine.messages import LoadProgress
from rose.engine.worker import warm_up
from rose.errors import RoseError
from rose.log import get_logger, setup_logging

logger = get_logger(__name__)


def main() -> None:
    """Load the model, say so, and serve."""
    setup_logging("engine")
    folder = Path(sys.argv[1])
    threading.Thread(target=_end_with_parent, args=(folder,), daemon=True, name="parent-watch").start()
    config = EngineConfig.from_json(sys.argv[2])
    warm_up.begin(config.device)
    channel = EngineEnd(folder)
    try:
        _serve(config, channel)
    finally:
        channel.close()


def _serve(config: EngineConfig, channel: EngineEnd) -> None:
    try:
        # Here, not above: the import of torch is most of the start, and its failure must be reported as well.
        from rose.engine.worker.worker import build_core

        core = build_core(config, lambda done, total: channel.send(LoadProgress(done_bytes=done, total_bytes=total)))
    except Exception as error:
        if not isinstance(error, RoseError):
            logger.exception("the engine could not start")
        channel.send(died_of(error))
        return
    channel.send(core.info)
    run_core(core, channel.receive, channel.send)


def _end_with_parent(folder: Path) -> None:
    while os.read(0, 1):
        pass
    shutil.rmtree(folder, ignore_errors=True)  # which is the parent's to do, unless it was killed
    os._exit(1)


if __name__ == "__main__":
    main()
