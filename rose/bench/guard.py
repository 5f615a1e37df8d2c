"""A process between a sweep and its point: `python -m rose.bench.guard COMMAND…`. It ends when the sweep is gone.

A sweep ended by SIGKILL cannot end its point, which would go on holding the GPU. The guard's standard input is a pipe
from the sweep, whose end no signal or crash can suppress; then the guard kills its process group, in which the point
and what it started are. It is a process of its own, since a point that hangs would not watch anything.
"""

import os
import signal
import subprocess
import sys
import threading


def main() -> None:
    """Run the command, and end as it ends."""
    threading.Thread(target=_end_with_parent, daemon=True, name="parent-watch").start()
    status = subprocess.call(sys.argv[1:], stdin=subprocess.DEVNULL)
    if status < 0:
        signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    sys.exit(status)


def _end_with_parent() -> None:
    while os.read(0, 1):
        pass
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main()
