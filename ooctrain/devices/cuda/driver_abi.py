"""The CUDA driver's binary interface, as data: symbols, argument types, structs, constants, errors.

This file is one table, which `driver.py` binds by ctypes. It holds everything that a compiler would
read from cuda.h, since ctypes checks nothing. An argument without a declared type is passed as 32
bits and truncates addresses; a name without its `_v2` binds an old function that takes 32-bit
pointers; a struct of the wrong size is read beyond its end. None of this fails loudly, so
`tests/unit/test_driver.py` compares the table with its own copy, and with a cuda.h where one is
installed. Source: cuda.h of CUDA 12 and 13. Read next: `driver.py`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping

# cuda.h's own type names, so that a signature below can be laid beside the header's.
CUdevice = ctypes.c_int
CUdeviceptr = ctypes.c_uint64
CUhandle = ctypes.c_uint64  # CUmemGenericAllocationHandle
CUcontext = CUstream = CUevent = CUmodule = CUfunction = ctypes.c_void_p
CUgraph = CUgraphExec = ctypes.c_void_p
CUresult = ctypes.c_int
_int, _uint, _size, _u64 = ctypes.c_int, ctypes.c_uint, ctypes.c_size_t, ctypes.c_uint64
_void, _byte, _text = ctypes.c_void_p, ctypes.c_ubyte, ctypes.c_char_p
_out = ctypes.POINTER


class MemLocation(ctypes.Structure):
    """CUmemLocation: which device memory belongs to."""

    _fields_ = (("type", ctypes.c_int), ("id", ctypes.c_int))


class AllocationFlags(ctypes.Structure):
    """The struct within CUmemAllocationProp; all of it stays zero here."""

    _fields_ = (
        ("compressionType", ctypes.c_ubyte),
        ("gpuDirectRDMACapable", ctypes.c_ubyte),
        ("usage", ctypes.c_ushort),
        ("reserved", ctypes.c_ubyte * 4),
    )


class AllocationProp(ctypes.Structure):
    """CUmemAllocationProp: what kind of physical memory is wanted."""

    _fields_ = (
        ("type", ctypes.c_int),
        ("requestedHandleTypes", ctypes.c_int),
        ("location", MemLocation),
        ("win32HandleMetaData", ctypes.c_void_p),
        ("allocFlags", AllocationFlags),
    )


class AccessDesc(ctypes.Structure):
    """CUmemAccessDesc: which device may read and write a mapping."""

    _fields_ = (("location", MemLocation), ("flags", ctypes.c_int))


MEM_ALLOCATION_PINNED = MEM_LOCATION_DEVICE = 1
MEM_ACCESS_READ_WRITE = 3
GRANULARITY_MINIMUM = 0
ATTRIBUTE_MAJOR, ATTRIBUTE_MINOR, ATTRIBUTE_VMM_SUPPORTED = 75, 76, 102
STREAM_NON_BLOCKING = 1
CAPTURE_RELAXED = 2
EVENT_DEFAULT, EVENT_DISABLE_TIMING = 0, 2
HOST_ALLOC_PORTABLE = 1

SUCCESS, INVALID_VALUE, OUT_OF_MEMORY, NOT_INITIALIZED, DEINITIALIZED = 0, 1, 2, 3, 4
INVALID_CONTEXT, INVALID_HANDLE, NOT_READY, ILLEGAL_ADDRESS = 201, 400, 600, 700

#: Older drivers are untried; virtual memory management is in all from 10.2 on.
MINIMUM_VERSION = 12000

#: {exported symbol: argument types} of all that `driver.py` calls; each returns a CUresult. No
#: `_ptsz` variants: those belong to the per-thread default stream, not to be mixed with this one.
SYMBOLS: Mapping[str, tuple[type, ...]] = {
    "cuInit": (_uint,),
    "cuDriverGetVersion": (_out(_int),),
    "cuGetErrorName": (CUresult, _out(_text)),
    # devices and contexts
    "cuDeviceGet": (_out(CUdevice), _int),
    "cuDeviceGetName": (_text, _int, CUdevice),
    "cuDeviceGetAttribute": (_out(_int), _int, CUdevice),
    "cuDevicePrimaryCtxRetain": (_out(CUcontext), CUdevice),
    "cuDevicePrimaryCtxRelease_v2": (CUdevice,),
    "cuCtxSetCurrent": (CUcontext,),
    # virtual memory
    "cuMemAddressReserve": (_out(CUdeviceptr), _size, _size, CUdeviceptr, _u64),
    "cuMemAddressFree": (CUdeviceptr, _size),
    "cuMemCreate": (_out(CUhandle), _size, _out(AllocationProp), _u64),
    "cuMemRelease": (CUhandle,),
    "cuMemMap": (CUdeviceptr, _size, _size, CUhandle, _u64),
    "cuMemUnmap": (CUdeviceptr, _size),
    "cuMemSetAccess": (CUdeviceptr, _size, _out(AccessDesc), _size),
    "cuMemGetAllocationGranularity": (_out(_size), _out(AllocationProp), _int),
    # other memory
    "cuMemAlloc_v2": (_out(CUdeviceptr), _size),
    "cuMemFree_v2": (CUdeviceptr,),
    "cuMemGetInfo_v2": (_out(_size), _out(_size)),
    "cuMemHostAlloc": (_out(_void), _size, _uint),
    "cuMemFreeHost": (_void,),
    # copies
    "cuMemcpyHtoDAsync_v2": (CUdeviceptr, _void, _size, CUstream),
    "cuMemcpyDtoHAsync_v2": (_void, CUdeviceptr, _size, CUstream),
    "cuMemsetD8Async": (CUdeviceptr, _byte, _size, CUstream),
    # streams and events
    "cuStreamCreate": (_out(CUstream), _uint),
    "cuStreamDestroy_v2": (CUstream,),
    "cuStreamSynchronize": (CUstream,),
    "cuStreamQuery": (CUstream,),
    "cuStreamWaitEvent": (CUstream, CUevent, _uint),
    "cuEventCreate": (_out(CUevent), _uint),
    "cuEventDestroy_v2": (CUevent,),
    "cuEventRecord": (CUevent, CUstream),
    "cuEventQuery": (CUevent,),
    "cuEventSynchronize": (CUevent,),
    "cuEventElapsedTime_v2": (_out(ctypes.c_float), CUevent, CUevent),
    # code
    "cuModuleLoadData": (_out(CUmodule), _void),
    "cuModuleGetFunction": (_out(CUfunction), CUmodule, _text),
    "cuLaunchKernel": (CUfunction, *([_uint] * 7), CUstream, _out(_void), _out(_void)),
    # graphs
    "cuStreamBeginCapture_v2": (CUstream, _int),
    "cuStreamEndCapture": (CUstream, _out(CUgraph)),
    "cuGraphInstantiateWithFlags": (_out(CUgraphExec), CUgraph, _u64),
    "cuGraphLaunch": (CUgraphExec, CUstream),
    "cuGraphExecDestroy": (CUgraphExec,),
    "cuGraphDestroy": (CUgraph,),
}

#: Symbols that drivers of version 12 may lack, and the older one with the same arguments.
OLDER: Mapping[str, str] = {"cuEventElapsedTime_v2": "cuEventElapsedTime"}

_ANEW = "this process must start anew"
_SANITIZER = f"`compute-sanitizer` names the kernel and the line; {_ANEW}"

#: {number: (name, likely fix)} of the errors that users meet, and of all that last (`LOST`).
ERRORS: Mapping[int, tuple[str, str]] = {
    1: ("CUDA_ERROR_INVALID_VALUE", "a bug in the caller: sizes, alignment or order of calls"),
    2: (
        "CUDA_ERROR_OUT_OF_MEMORY",
        "a smaller --budget; `nvidia-smi` shows what else uses the GPU",
    ),
    3: ("CUDA_ERROR_NOT_INITIALIZED", "after fork CUDA is unusable: start workers by spawn"),
    4: ("CUDA_ERROR_DEINITIALIZED", "the driver is shutting down: close devices before exit"),
    34: ("CUDA_ERROR_STUB_LIBRARY", "take the toolkit's stubs folder out of LD_LIBRARY_PATH"),
    46: ("CUDA_ERROR_DEVICE_UNAVAILABLE", "another process holds the GPU exclusively"),
    100: ("CUDA_ERROR_NO_DEVICE", "look at CUDA_VISIBLE_DEVICES, or use --device cpu"),
    101: ("CUDA_ERROR_INVALID_DEVICE", "look at CUDA_VISIBLE_DEVICES"),
    200: ("CUDA_ERROR_INVALID_IMAGE", "reinstall numba-cuda and its toolkit"),
    201: ("CUDA_ERROR_INVALID_CONTEXT", "every thread calls make_current() before the first call"),
    209: (
        "CUDA_ERROR_NO_BINARY_FOR_GPU",
        "code for another GPU: `make cubins` for this capability",
    ),
    214: ("CUDA_ERROR_ECC_UNCORRECTABLE", "the GPU's memory is damaged: reset it"),
    218: ("CUDA_ERROR_INVALID_PTX", "the driver's compiler refuses a kernel: take another toolkit"),
    220: ("CUDA_ERROR_NVLINK_UNCORRECTABLE", "the link between GPUs is damaged: reset them"),
    222: (
        "CUDA_ERROR_UNSUPPORTED_PTX_VERSION",
        "the toolkit is newer than the driver: update the driver, or take its toolkit",
    ),
    226: ("CUDA_ERROR_CONTAINED", f"the GPU has stopped a faulty access; {_ANEW}"),
    400: ("CUDA_ERROR_INVALID_HANDLE", "a stream or event was destroyed before"),
    600: ("CUDA_ERROR_NOT_READY", "work is still running"),
    700: ("CUDA_ERROR_ILLEGAL_ADDRESS", f"work used unmapped memory; {_ANEW}"),
    701: ("CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", "a kernel wants more registers than a block has"),
    702: ("CUDA_ERROR_LAUNCH_TIMEOUT", f"a kernel ran too long beside a display; {_ANEW}"),
    709: ("CUDA_ERROR_CONTEXT_IS_DESTROYED", "the GPU was reset in this process"),
    710: ("CUDA_ERROR_ASSERT", f"a kernel's assertion failed; {_ANEW}"),
    712: ("CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED", "pin host memory once"),
    714: ("CUDA_ERROR_HARDWARE_STACK_ERROR", _SANITIZER),
    715: ("CUDA_ERROR_ILLEGAL_INSTRUCTION", f"code for another GPU, or damaged; {_ANEW}"),
    716: ("CUDA_ERROR_MISALIGNED_ADDRESS", f"a wide access at an odd address; {_SANITIZER}"),
    717: ("CUDA_ERROR_INVALID_ADDRESS_SPACE", _SANITIZER),
    718: ("CUDA_ERROR_INVALID_PC", _SANITIZER),
    719: ("CUDA_ERROR_LAUNCH_FAILED", f"a kernel crashed; {_SANITIZER}"),
    721: ("CUDA_ERROR_TENSOR_MEMORY_LEAK", _SANITIZER),
    800: ("CUDA_ERROR_NOT_PERMITTED", "memory checkers forbid VMM: use --allocator passthrough"),
    801: ("CUDA_ERROR_NOT_SUPPORTED", "this GPU or platform lacks it: use --allocator best-fit"),
    802: ("CUDA_ERROR_SYSTEM_NOT_READY", "start the fabric manager, or reboot"),
    803: ("CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", "kernel module and libcuda differ: reboot"),
    804: ("CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE", "install a newer driver"),
    911: ("CUDA_ERROR_EXTERNAL_DEVICE", f"another device has failed; {_ANEW}"),
    999: ("CUDA_ERROR_UNKNOWN", "reload the driver, or reboot"),
}

#: Errors after which a context is lost, or the process has none any more: every later call answers
#: the same, nothing can be given back, and nothing needs to be. Not initialized (a fork),
#: deinitialized (the end of the process), invalid or destroyed context; then those of which cuda.h
#: says "any further CUDA work will return the same error".
LOST = frozenset({
    3, 4, 201, 709,
    214, 220, 226, 700, 702, 710, 714, 715, 716, 717, 718, 719, 721, 911,
})  # fmt: skip


def version_name(version: int) -> str:
    """CUDA's name of a version number: 13020 is "13.2"."""
    return f"{version // 1000}.{version % 1000 // 10}"
