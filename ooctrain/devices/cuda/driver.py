"""CUDA's driver by ctypes, behind the one object that all other code calls.

Sizes, addresses and handles are plain ints. A failed call raises `DriverError` with the call, its
number, the number's name and the likely fix. Nothing is loaded before `open_cuda_driver` is called,
every symbol is bound with its argument types, and every returned number is checked; so planning and
tests need no driver, and no failure goes unseen. A process opens a GPU once and keeps it: a context
costs some 100 ms and much memory, and Numba and others continue in the same one. Source: cuda.h;
paper 000, section 3.3. Read next: `../driver_calls.py` (the calls' meaning, and their safe order),
`driver_abi.py` (the tables), `testing/fake_driver.py`, `driver_memory.py`.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from ooctrain.devices.cuda import driver_abi as abi
from ooctrain.devices.cuda.driver_abi import version_name
from ooctrain.errors import DeviceUnavailable, DriverError

LIBRARY = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
_FALLBACK = "--device cpu trains without a GPU"
_GONE = (abi.DEINITIALIZED, abi.INVALID_CONTEXT)


def failure(call: str, status: int, name: str = "", detail: str = "") -> DriverError:
    """The error of a call that returned `status`."""
    known, fix = abi.ERRORS.get(status, (name or "an error without a name", ""))
    error = DriverError(
        f"{call} failed: {known} ({status})", call=call, status=status, numbers=detail, fix=fix
    )
    error.lost = status in abi.LOST
    return error


class CudaDriver:
    """CUDA's driver on one device, in its primary context, as Numba and others use it too.

    Args:
        functions: {symbol: bound function} of `bind`.
        ordinal: which device, as CUDA_VISIBLE_DEVICES numbers them.
        kept: whether the context stays until the process ends, `close` or not.

    Raises:
        DeviceUnavailable: no such device, or another process holds it.
    """

    parts = False

    def __init__(
        self, functions: Mapping[str, Callable[..., int]], ordinal: int = 0, kept: bool = False
    ):
        self._functions = functions
        self._kernels: dict[tuple[bytes, str], int] = {}
        self._closed = kept
        self.version = _version(functions["cuDriverGetVersion"])
        self._device = self._find(ordinal)
        self._prop = abi.AllocationProp(
            abi.MEM_ALLOCATION_PINNED, 0, abi.MemLocation(abi.MEM_LOCATION_DEVICE, self._device)
        )
        self._access = abi.AccessDesc(self._prop.location, abi.MEM_ACCESS_READ_WRITE)
        name = ctypes.create_string_buffer(256)
        self._call("cuDeviceGetName", name, len(name), self._device)
        self.name = name.value.decode("ascii", "replace")
        try:
            self._context = self._out("cuDevicePrimaryCtxRetain", ctypes.c_void_p, self._device)
        except DriverError as error:
            raise _unusable(f"{self.name} is there, but not available now", error) from error
        self.make_current()

    def make_current(self) -> None:
        self._call("cuCtxSetCurrent", self._context)

    def attribute(self, number: int) -> int:
        """A device attribute by cuda.h's number."""
        value = ctypes.c_int()
        self._call("cuDeviceGetAttribute", ctypes.byref(value), number, self._device)
        return value.value

    @property
    def maps(self) -> bool:
        return bool(self.attribute(abi.ATTRIBUTE_VMM_SUPPORTED))

    def capability(self) -> tuple[int, int]:
        return self.attribute(abi.ATTRIBUTE_MAJOR), self.attribute(abi.ATTRIBUTE_MINOR)

    def granularity(self) -> int:
        value = ctypes.c_size_t()
        prop = ctypes.byref(self._prop)
        option = abi.GRANULARITY_MINIMUM
        self._call("cuMemGetAllocationGranularity", ctypes.byref(value), prop, option)
        return value.value

    def memory_info(self) -> tuple[int, int]:
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self._call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value, total.value

    def reserve(self, size_bytes: int, hint: int = 0) -> int:
        return self._out("cuMemAddressReserve", abi.CUdeviceptr, size_bytes, 0, hint, 0)

    def address_free(self, address: int, size_bytes: int) -> None:
        self._call("cuMemAddressFree", address, size_bytes)

    def create(self, size_bytes: int) -> int:
        return self._out("cuMemCreate", abi.CUhandle, size_bytes, ctypes.byref(self._prop), 0)

    def release(self, handle: int) -> None:
        self._call("cuMemRelease", handle)

    def map(self, address: int, size_bytes: int, handle: int, offset: int = 0) -> None:
        self._call("cuMemMap", address, size_bytes, offset, handle, 0)

    def set_access(self, address: int, size_bytes: int) -> None:
        self._call("cuMemSetAccess", address, size_bytes, ctypes.byref(self._access), 1)

    def unmap(self, address: int, size_bytes: int) -> None:
        self._call("cuMemUnmap", address, size_bytes)

    def allocate(self, size_bytes: int) -> int:
        return self._out("cuMemAlloc_v2", abi.CUdeviceptr, size_bytes)

    def free(self, address: int) -> None:
        self._call("cuMemFree_v2", address)

    def host_alloc(self, size_bytes: int) -> int:
        flags = abi.HOST_ALLOC_PORTABLE
        return self._out("cuMemHostAlloc", ctypes.c_void_p, size_bytes, flags)

    def host_free(self, address: int) -> None:
        self._call("cuMemFreeHost", address)

    def create_stream(self) -> int:
        # Numba's own streams have flag 0 and wait for the default stream: copies never overlap.
        return self._out("cuStreamCreate", abi.CUstream, abi.STREAM_NON_BLOCKING)

    def destroy_stream(self, stream: int) -> None:
        self._call("cuStreamDestroy_v2", stream)

    def stream_done(self, stream: int) -> bool:
        return self._done("cuStreamQuery", stream)

    def synchronize_stream(self, stream: int) -> None:
        self._call("cuStreamSynchronize", stream)

    def create_event(self, timing: bool = False) -> int:
        flags = abi.EVENT_DEFAULT if timing else abi.EVENT_DISABLE_TIMING
        return self._out("cuEventCreate", abi.CUevent, flags)

    def destroy_event(self, event: int) -> None:
        self._call("cuEventDestroy_v2", event)

    def record_event(self, event: int, stream: int) -> None:
        self._call("cuEventRecord", event, stream)

    def wait_event(self, stream: int, event: int) -> None:
        self._call("cuStreamWaitEvent", stream, event, 0)

    def event_done(self, event: int) -> bool:
        return self._done("cuEventQuery", event)

    def synchronize_event(self, event: int) -> None:
        self._call("cuEventSynchronize", event)

    def elapsed_us(self, start: int, end: int) -> float:
        time_ms = ctypes.c_float()
        self._call("cuEventElapsedTime_v2", ctypes.byref(time_ms), start, end)
        return time_ms.value * 1e3

    def copy_in(self, address: int, host: int, size_bytes: int, stream: int) -> None:
        self._call("cuMemcpyHtoDAsync_v2", address, host, size_bytes, stream)

    def copy_out(self, host: int, address: int, size_bytes: int, stream: int) -> None:
        self._call("cuMemcpyDtoHAsync_v2", host, address, size_bytes, stream)

    def fill(self, address: int, byte: int, size_bytes: int, stream: int) -> None:
        self._call("cuMemsetD8Async", address, byte, size_bytes, stream)

    def function(self, image: bytes, entry: str) -> int:
        """A kernel of an image; both stay loaded as long as the context."""
        found = self._kernels.get((image, entry))
        if found is None:
            module = self._out("cuModuleLoadData", ctypes.c_void_p, image)
            name = entry.encode("ascii")
            found = self._out("cuModuleGetFunction", ctypes.c_void_p, module, name)
            self._kernels[image, entry] = found
        return found

    def launch(
        self, function: int, grid: tuple[int, int, int], threads: int, stream: int, packed: Any
    ) -> None:
        status = self._functions["cuLaunchKernel"](
            function, *grid, threads, 1, 1, 0, stream, None, packed
        )
        if status:
            check(self._functions, "cuLaunchKernel", status)

    def begin_capture(self, stream: int) -> None:
        # Relaxed: what other threads do meanwhile (a loader pins memory) is their own affair.
        self._call("cuStreamBeginCapture_v2", stream, abi.CAPTURE_RELAXED)

    def end_capture(self, stream: int) -> int:
        graph = self._out("cuStreamEndCapture", abi.CUgraph, stream, first=False)
        try:
            return self._out("cuGraphInstantiateWithFlags", abi.CUgraphExec, graph, 0)
        finally:
            self._call("cuGraphDestroy", graph)

    def launch_graph(self, graph: int, stream: int) -> None:
        self._call("cuGraphLaunch", graph, stream)

    def destroy_graph(self, graph: int) -> None:
        self._call("cuGraphExecDestroy", graph)

    def close(self) -> None:
        """Lets go of the context, unless the process keeps it; what was obtained is given back
        before."""
        if self._closed or sys.is_finalizing():
            return  # at exit the driver may be gone before us, and frees everything itself
        self._closed = True
        status = self._functions["cuDevicePrimaryCtxRelease_v2"](self._device)
        if status not in _GONE:
            check(self._functions, "cuDevicePrimaryCtxRelease_v2", status)

    def _find(self, ordinal: int) -> int:
        """The device. Raises DeviceUnavailable: there is none."""
        try:
            return self._out("cuDeviceGet", ctypes.c_int, ordinal)
        except DriverError as error:
            raise _unusable(f"no CUDA device {ordinal}", error) from error

    def _call(self, symbol: str, *arguments: Any) -> None:
        check(self._functions, symbol, self._functions[symbol](*arguments))

    def _done(self, symbol: str, handle: int) -> bool:
        status = self._functions[symbol](handle)
        if status != abi.NOT_READY:  # not an error: an answer
            check(self._functions, symbol, status)
        return status == abi.SUCCESS

    def _out(self, symbol: str, kind: Any, *arguments: Any, first: bool = True) -> int:
        """A call whose first argument, or else the last, is where it writes its result."""
        value = kind()
        place = (ctypes.byref(value),)
        self._call(symbol, *(place + arguments if first else arguments + place))
        return value.value or 0


def check(functions: Mapping[str, Callable[..., int]], symbol: str, status: int) -> None:
    """Raises DriverError, with the number's name, unless `status` is success."""
    if status == abi.SUCCESS:
        return
    text = ctypes.c_char_p()
    if status not in abi.ERRORS:
        functions["cuGetErrorName"](status, ctypes.byref(text))
    raise failure(symbol, status, (text.value or b"").decode("ascii", "replace"))


def open_cuda_driver(ordinal: int = 0, load: Callable[[str], Any] | None = None) -> CudaDriver:
    """A device's driver, current in this thread: the same object each time in one process.

    Args:
        ordinal: which device.
        load: loads a shared library by name; what is opened by it is opened anew, and closes.

    Raises:
        DeviceUnavailable: no driver, one that is too old, no device, one that others hold, an error
            that lasts, or this process is a fork of one that uses CUDA.
    """
    if load is not None:
        return _open(ordinal, load, kept=False)
    driver = _of_process(ordinal, os.getpid())
    try:
        driver.make_current()
    except DriverError as error:
        raise _unusable("the GPU is lost to this process", error) from error
    return driver


@cache
def _of_process(ordinal: int, process: int) -> CudaDriver:
    """Opened when it is first used; a fork would open its own, which CUDA refuses."""
    return _open(ordinal, ctypes.CDLL, kept=True)


def _open(ordinal: int, load: Callable[[str], Any], kept: bool) -> CudaDriver:
    try:
        library = load(LIBRARY)
    except OSError as error:
        raise DeviceUnavailable(
            f"there is no CUDA driver ({LIBRARY}) on this machine", call="dlopen",
            numbers=str(error), fix=f"install NVIDIA's driver; {_FALLBACK}",
        ) from error  # fmt: skip
    functions = bind(library)
    try:
        check(functions, "cuInit", functions["cuInit"](0))
    except DriverError as error:
        raise _unusable("the CUDA driver cannot be used here", error) from error
    return CudaDriver(functions, ordinal, kept)


def bind(library: Any) -> Mapping[str, Callable[..., int]]:
    """{symbol: function} with declared types, of a loaded driver library.

    Raises:
        DeviceUnavailable: the driver is too old.
    """
    functions = {"cuDriverGetVersion": _declared(library, "cuDriverGetVersion")}
    version = _version(functions["cuDriverGetVersion"])
    if version < abi.MINIMUM_VERSION:
        raise _too_old(version, "", "cuDriverGetVersion")
    for symbol in abi.SYMBOLS:
        try:
            functions[symbol] = _declared(library, symbol)
        except AttributeError as error:
            raise _too_old(version, f"it lacks {symbol}", symbol) from error
    return functions


def _declared(library: Any, symbol: str) -> Any:
    older = abi.OLDER.get(symbol, symbol)
    function = getattr(library, symbol, None) or getattr(library, older)
    function.restype, function.argtypes = abi.CUresult, abi.SYMBOLS[symbol]
    return function


def _version(function: Callable[..., int]) -> int:
    value = ctypes.c_int()
    function(ctypes.byref(value))
    return value.value


def _unusable(what: str, error: DriverError) -> DeviceUnavailable:
    return DeviceUnavailable(
        what, call=error.call, status=error.status, numbers=error.what,
        fix=f"{error.fix}; {_FALLBACK}" if error.fix else _FALLBACK,
    )  # fmt: skip


def _too_old(version: int, detail: str, call: str) -> DeviceUnavailable:
    have, want = version_name(version), version_name(abi.MINIMUM_VERSION)
    return DeviceUnavailable(
        f"the CUDA driver is too old: it serves CUDA {have}, and {want} is needed", call=call,
        numbers=detail, fix=f"install a newer driver; {_FALLBACK}",
    )  # fmt: skip
