"""What a GPU's process can do in a thread while it imports torch and loads weights, instead of after that.

None of it must be done here: whatever fails or comes late is done where it is needed, and reported there.
"""

import contextlib
import ctypes
import os
import threading


def begin(device: str) -> None:
    """Prepare `EngineConfig.device` in the background. Imports no torch, so it can be called before anything else."""
    if device != "cpu":
        # No daemon: a process whose interpreter ends while one is in torch aborts, and an engine may soon find that it
        # cannot start.
        threading.Thread(target=_prepare, args=(device,), name="warm-up").start()


def _prepare(device: str) -> None:
    with contextlib.suppress(Exception):
        index = int(device.partition(":")[2] or 0)
        if not _create_context(index):
            return
        with contextlib.suppress(Exception):  # a Triton that has its key elsewhere, for one
            _compute_triton_key()
        _multiply(index)


def _create_context(index: int) -> bool:
    """Make the GPU's primary context, the one that torch uses; returns whether there is one. Some 0.3 s.

    Calls through ctypes let the interpreter go on meanwhile.
    """
    os.environ.setdefault("CUDA_MODULE_LOADING", "LAZY")  # as torch does, and it is read only once
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    device, context = ctypes.c_int(), ctypes.c_void_p()
    return bool(
        cuda.cuInit(0) == 0
        and cuda.cuDeviceGet(ctypes.byref(device), index) == 0
        and cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device) == 0
    )


def _compute_triton_key() -> None:
    """Triton looks for its compiled kernels under a hash of all of its own files, some 0.4 s, which it then keeps."""
    from triton.runtime.cache import triton_key

    triton_key()


def _multiply(index: int) -> None:
    """The first matrix product loads cuBLAS. Waits until torch has been imported."""
    import torch

    x = torch.zeros(16, 16, dtype=torch.bfloat16, device=torch.device("cuda", index))
    torch.mm(x, x)
