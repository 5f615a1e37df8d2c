"""CUDA C++ kernels, compiled at first use for the present GPU and kept in a cache on disk.

Compiled with NVRTC and launched through the driver API, both by NVIDIA's `cuda-bindings`, which every CUDA build of
torch brings along; nobody needs a CUDA toolkit. The sources include no headers.
"""

import ctypes
import functools
import hashlib
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rose.errors import RoseError
from rose.log import get_logger

logger = get_logger(__name__)

_ARCHITECTURE = "sm_90a"  # wgmma and setmaxnreg exist only under the a


def _check(result: tuple[Any, ...], what: str) -> Any:
    """The value of a driver or NVRTC call. Raises RoseError with its code."""
    code, *values = result
    if int(code) != 0:
        raise RoseError(f"{what} failed: {code}")
    return values[0] if len(values) == 1 else values


def _cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "rose" / "kernels"


def compile_cuda(source: str, name: str) -> bytes:
    """Machine code of a source text for Hopper. Raises RoseError with the compiler's log."""
    from cuda.bindings import nvrtc

    program = _check(nvrtc.nvrtcCreateProgram(source.encode(), name.encode(), 0, [], []), "nvrtcCreateProgram")
    options = [f"--gpu-architecture={_ARCHITECTURE}".encode(), b"--std=c++17"]
    (code,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
    if int(code) != 0:
        log = b" " * _check(nvrtc.nvrtcGetProgramLogSize(program), "nvrtcGetProgramLogSize")
        nvrtc.nvrtcGetProgramLog(program, log)
        raise RoseError(f"{name} does not compile:\n{log.decode(errors='replace')}")
    binary: bytes = b" " * _check(nvrtc.nvrtcGetCUBINSize(program), "nvrtcGetCUBINSize")
    _check(nvrtc.nvrtcGetCUBIN(program, binary), "nvrtcGetCUBIN")
    return binary


def _compiled(path: Path) -> bytes:
    """The machine code of a source file, from the cache if it is there."""
    from cuda.bindings import nvrtc

    source = path.read_text()
    version = _check(nvrtc.nvrtcVersion(), "nvrtcVersion")
    digest = hashlib.sha256(f"{source}\0{_ARCHITECTURE}\0{version}".encode()).hexdigest()[:24]
    cached = _cache_folder() / f"{path.stem}-{digest}.cubin"
    if cached.is_file():
        return cached.read_bytes()
    binary = compile_cuda(source, path.name)
    try:
        cached.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=cached.parent, delete=False) as file:
            file.write(binary)
        Path(file.name).replace(cached)  # whole or not at all, also when several processes start together
    except OSError as error:
        logger.warning("cannot keep the compiled %s in %s: %s", path.name, cached.parent, error)
    return binary


class CudaKernel:
    """One kernel of a source file, loaded into the current context."""

    def __init__(self, path: Path, name: str, *, shared_bytes: int) -> None:
        """Compile or fetch, and load. shared_bytes: dynamic shared memory of a launch."""
        from cuda.bindings import driver

        self._driver = driver
        self._shared_bytes = shared_bytes
        torch.cuda.current_stream()  # makes torch's context current in this thread
        module = _check(driver.cuModuleLoadData(_compiled(path)), "cuModuleLoadData")
        self._function = _check(driver.cuModuleGetFunction(module, name.encode()), "cuModuleGetFunction")
        attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        _check(driver.cuFuncSetAttribute(self._function, attribute, shared_bytes), "cuFuncSetAttribute")

    def launch(self, num_blocks: int, num_threads: int, arguments: Sequence[Any]) -> None:
        """Start it on torch's current stream.

        arguments: a tensor (its address), an int (32 bits), a float (32 bits) or a `TensorMap` for each parameter.
        """
        values: list[Any] = []
        types: list[Any] = []
        for argument in arguments:
            if isinstance(argument, Tensor):
                values.append(argument.data_ptr())
                types.append(ctypes.c_void_p)
            elif isinstance(argument, TensorMap):
                values.append(argument.handle)
                types.append(None)
            else:
                values.append(argument)
                types.append(ctypes.c_int if isinstance(argument, int) else ctypes.c_float)
        stream = torch.cuda.current_stream().cuda_stream
        _check(
            self._driver.cuLaunchKernel(
                self._function, num_blocks, 1, 1, num_threads, 1, 1, self._shared_bytes, stream,
                (tuple(values), tuple(types)), 0,
            ),
            "cuLaunchKernel",
        )  # fmt: skip


class TensorMap:
    """How the copy engine finds boxes of a tensor: rows of 128 bytes land in shared memory swizzled.

    Of bfloat16, or of a type of one byte.
    """

    def __init__(self, tensor: Tensor, box: tuple[int, ...]) -> None:
        """tensor: last dimension contiguous, other strides in multiples of 16 bytes. box: as long as its shape."""
        from cuda.bindings import driver

        size, bits64, bits32 = tensor.element_size(), driver.cuuint64_t, driver.cuuint32_t
        types = driver.CUtensorMapDataType
        is_byte = size == 1
        self.handle = _check(
            driver.cuTensorMapEncodeTiled(
                types.CU_TENSOR_MAP_DATA_TYPE_UINT8 if is_byte else types.CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
                tensor.dim(),
                tensor.data_ptr(),
                [bits64(n) for n in reversed(tensor.shape)],
                [bits64(stride * size) for stride in reversed(tensor.stride()[:-1])],
                [bits32(n) for n in reversed(box)],
                [bits32(1)] * tensor.dim(),
                driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
                driver.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_128B,
                driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
            ),
            "cuTensorMapEncodeTiled",
        )


@functools.cache
def num_sms(device_index: int) -> int:
    """Multiprocessors of a GPU."""
    return int(torch.cuda.get_device_properties(device_index).multi_processor_count)
