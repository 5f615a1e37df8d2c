"""What all tests share.

Triton's environment is set before anything imports it: without a GPU its kernels run in its interpreter.
"""

import os
import signal
from collections.abc import Iterator

import pytest
import torch
from hypothesis import HealthCheck, settings

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")
# Side by side with other workers of pytest, a part of the cores: more threads would only wait for theirs.
torch.set_num_threads(max(1, torch.get_num_threads() // int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))))

# How long an example takes says how busy the machine is. The fixtures that tests with examples use keep no state.
_NO_CHECKS = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
settings.register_profile("rose", deadline=None, suppress_health_check=_NO_CHECKS)
settings.load_profile("rose")


@pytest.fixture
def heeded_sigint() -> Iterator[None]:
    """Processes that the test starts heed SIGINT, which a shell has its jobs in the background ignore."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
