"""What all tests share.

Triton's environment is set before anything imports it: without a GPU its kernels run in its interpreter.
"""

import os
import signal
from collections.abc import Iterator

import pytest
import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")
if "PYTEST_XDIST_WORKER" in os.environ:  # there is one for each core: threads would only wait for other workers'
    torch.set_num_threads(1)


@pytest.fixture
def heeded_sigint() -> Iterator[None]:
    """Processes that the test starts heed SIGINT, which a shell has its jobs in the background ignore."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
