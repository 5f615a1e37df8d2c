"""`python -m rose` is the `rose` command."""

import subprocess
import sys

from rose import __version__


def test_module_is_the_command():
    done = subprocess.run([sys.executable, "-m", "rose", "--version"], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout.strip()) == (0, __version__)
