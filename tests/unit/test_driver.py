"""The driver's tables against their sources, the ctypes layer through real C calls, and what it
says when there is no usable driver.

Without a GPU the library is a stub: C function pointers that end in the strict fake, so that every
argument really travels through the binary interface.
"""

from __future__ import annotations

import ctypes
import inspect
import os
import pickle
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from doubles.stub_driver import SOURCES, why_no_stub
from doubles.stub_driver import Stub as LibCuda

from ooctrain.devices.cpu.host_vm import why_no_virtual_memory
from ooctrain.devices.cuda import driver_abi as abi
from ooctrain.devices.cuda.driver import bind, check, open_cuda_driver
from ooctrain.devices.probe import probe
from ooctrain.devices.raw_bytes import bytes_at
from ooctrain.errors import DeviceUnavailable, DriverError, VmmUnavailable
from ooctrain.testing.fake_driver import FakeDriver
from ooctrain.testing.host_driver import HostDriver

PAGE = 4096
needs_stub = pytest.mark.skipif(bool(why_no_stub()), reason=why_no_stub())
WITHOUT_SUFFIX = """
cuInit cuDriverGetVersion cuDeviceGet cuDeviceGetName cuDeviceGetAttribute cuDevicePrimaryCtxRetain
cuCtxSetCurrent cuMemAddressReserve cuMemAddressFree cuMemCreate cuMemRelease cuMemMap cuMemUnmap
cuMemSetAccess cuMemGetAllocationGranularity cuMemHostAlloc cuMemFreeHost cuStreamCreate
cuStreamSynchronize cuStreamQuery cuStreamWaitEvent cuEventCreate cuEventRecord cuEventQuery
cuEventSynchronize cuGetErrorName cuMemsetD8Async cuModuleLoadData cuModuleGetFunction
cuLaunchKernel cuStreamEndCapture cuGraphInstantiateWithFlags cuGraphLaunch cuGraphExecDestroy
cuGraphDestroy
"""
WITH_V2 = """
cuMemAlloc cuMemFree cuMemGetInfo cuMemcpyHtoDAsync cuMemcpyDtoHAsync cuStreamDestroy cuEventDestroy
cuDevicePrimaryCtxRelease cuEventElapsedTime cuStreamBeginCapture
"""
#: {our struct: (cuda.h's name, size, {field: offset})}
LAYOUT = {
    abi.MemLocation: ("CUmemLocation", 8, {"type": 0, "id": 4}),
    abi.AllocationProp: (
        "CUmemAllocationProp", 32,
        {"type": 0, "requestedHandleTypes": 4, "location": 8, "win32HandleMetaData": 16,
         "allocFlags": 24},
    ),
    abi.AccessDesc: ("CUmemAccessDesc", 12, {"location": 0, "flags": 8}),
}  # fmt: skip
CONSTANTS = {
    "CU_MEM_ALLOCATION_TYPE_PINNED": (abi.MEM_ALLOCATION_PINNED, 1),
    "CU_MEM_LOCATION_TYPE_DEVICE": (abi.MEM_LOCATION_DEVICE, 1),
    "CU_MEM_ACCESS_FLAGS_PROT_READWRITE": (abi.MEM_ACCESS_READ_WRITE, 3),
    "CU_MEM_ALLOC_GRANULARITY_MINIMUM": (abi.GRANULARITY_MINIMUM, 0),
    "CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED": (abi.ATTRIBUTE_VMM_SUPPORTED, 102),
    "CU_STREAM_NON_BLOCKING": (abi.STREAM_NON_BLOCKING, 1),
    "CU_STREAM_CAPTURE_MODE_RELAXED": (abi.CAPTURE_RELAXED, 2),
    "CU_EVENT_DISABLE_TIMING": (abi.EVENT_DISABLE_TIMING, 2),
    "CU_MEMHOSTALLOC_PORTABLE": (abi.HOST_ALLOC_PORTABLE, 1),
    "CUDA_ERROR_OUT_OF_MEMORY": (abi.OUT_OF_MEMORY, 2),
    "CUDA_ERROR_INVALID_CONTEXT": (abi.INVALID_CONTEXT, 201),
    "CUDA_ERROR_INVALID_HANDLE": (abi.INVALID_HANDLE, 400),
    "CUDA_ERROR_NOT_READY": (abi.NOT_READY, 600),
    "CUDA_ERROR_ILLEGAL_ADDRESS": (abi.ILLEGAL_ADDRESS, 700),
}
C_TYPES = {
    "unsigned int": ctypes.c_uint, "int": ctypes.c_int, "CUdevice": ctypes.c_int,
    "CUdevice_attribute": ctypes.c_int, "CUmemAllocationGranularity_flags": ctypes.c_int,
    "CUresult": ctypes.c_int, "size_t": ctypes.c_size_t, "unsigned char": ctypes.c_ubyte,
    "unsigned long long": ctypes.c_uint64, "CUdeviceptr": ctypes.c_uint64, "float": ctypes.c_float,
    "CUmemGenericAllocationHandle": ctypes.c_uint64, "CUcontext": ctypes.c_void_p,
    "CUstream": ctypes.c_void_p, "CUevent": ctypes.c_void_p, "CUmodule": ctypes.c_void_p,
    "CUfunction": ctypes.c_void_p, "CUgraph": ctypes.c_void_p, "CUgraphExec": ctypes.c_void_p,
    "CUstreamCaptureMode": ctypes.c_int,
    "CUmemAllocationProp": abi.AllocationProp, "CUmemLocation": abi.MemLocation,
    "CUmemAccessDesc": abi.AccessDesc, "void*": ctypes.c_void_p, "char*": ctypes.c_char_p,
}  # fmt: skip


# The tables.


def test_every_symbol_has_the_suffix_that_it_must_have():
    assert set(abi.SYMBOLS) == {
        *WITHOUT_SUFFIX.split(),
        *(f"{name}_v2" for name in WITH_V2.split()),
    }


def test_the_table_holds_what_is_called_and_no_more():
    # What is bound and never called could still make a driver "too old".
    called = set(re.findall(r'"(cu[A-Z]\w+)"', inspect.getsource(inspect.getmodule(bind))))
    assert called == set(abi.SYMBOLS)


def test_structs_have_the_layout_of_cuda_h():
    for struct, (_, size, offsets) in LAYOUT.items():
        assert ctypes.sizeof(struct) == size
        assert {name: getattr(struct, name).offset for name in offsets} == offsets
    assert ctypes.sizeof(abi.AllocationFlags) == 8


def test_constants_are_cuda_hs():
    assert {name: ours for name, (ours, _) in CONSTANTS.items()} == {
        name: expected for name, (_, expected) in CONSTANTS.items()
    }


def header() -> Path:
    roots = [os.environ.get("CUDA_HOME", ""), os.environ.get("CUDA_PATH", ""), "/usr/local/cuda"]
    places = [Path(root) / "include" / "cuda.h" for root in roots if root]
    places += sorted(Path("/usr/local").glob("cuda-*/include/cuda.h"), reverse=True)
    for place in places:
        if place.is_file():
            return place
    pytest.skip("no cuda.h is installed")


def test_the_symbols_are_those_of_an_installed_header():
    text = header().read_text(encoding="utf-8", errors="replace")
    redirected = dict(
        re.findall(r"#define\s+(cu\w+)\s+(?:__CUDA_API_PT[DS][SZ]\()?(\1_v\d)\b", text)
    )
    for symbol in abi.SYMBOLS:
        base = symbol.removesuffix("_v2")
        if redirected.get(base, base) != symbol:
            assert abi.OLDER.get(symbol) == redirected.get(base, base), symbol


def test_the_arguments_are_those_of_an_installed_header():
    text = header().read_text(encoding="utf-8", errors="replace")
    for symbol, ours in abi.SYMBOLS.items():
        base = symbol.removesuffix("_v2").removesuffix("WithFlags")  # which a macro adds
        found = re.search(rf"CUresult CUDAAPI {base}(?:_v2)?\(([^)]*)\);", text)
        assert found, symbol
        theirs = [argument_type(argument) for argument in found.group(1).split(",")]
        assert list(ours) == theirs, symbol


def argument_type(declaration: str) -> type:
    words = re.sub(r"\bconst\b", "", declaration).strip()
    kind, stars = re.fullmatch(r"(.*?)\s*(\**)\s*\w+", words).groups()
    if kind in ("void", "char"):
        kind, stars = f"{kind}*", stars[1:]
    return ctypes.POINTER(C_TYPES[kind]) if stars else C_TYPES[kind]


def test_a_c_compiler_reads_the_same_layout_from_an_installed_header(tmp_path):
    compiler = shutil.which("gcc") or shutil.which("cc")
    include = header().parent
    if compiler is None:
        pytest.skip("no C compiler")
    expected, lines = [], []
    for theirs, size, offsets in LAYOUT.values():
        expected += [size, *offsets.values()]
        lines += [f"sizeof({theirs})", *(f"offsetof({theirs}, {name})" for name in offsets)]
    expected += [value for _, value in CONSTANTS.values()]
    prints = "".join(f'printf("%d\\n", (int)({line}));' for line in [*lines, *CONSTANTS])
    source = tmp_path / "layout.c"
    source.write_text(
        "#include <stdio.h>\n#include <stddef.h>\n#include <cuda.h>\n"
        f"int main(void) {{ {prints} return 0; }}\n", encoding="ascii",
    )  # fmt: skip
    program = tmp_path / "layout"
    subprocess.run([compiler, "-I", include, source, "-o", program], check=True, timeout=60)
    printed = subprocess.run([program], capture_output=True, text=True, check=True, timeout=10)
    assert [int(line) for line in printed.stdout.split()] == expected


@pytest.mark.slow
def test_errors_have_the_names_of_an_installed_header_and_those_that_last_are_all_there():
    text = header().read_text(encoding="utf-8", errors="replace")
    entries = re.findall(r"/\*\*(.*?)\*/\s*(CUDA_ERROR_\w+)\s*=\s*(\d+)", text, re.DOTALL)
    names = {int(number): name for _, name, number in entries}
    for number, (name, fix) in abi.ERRORS.items():
        assert names[number] == name
        assert fix
    lasting = {
        int(number)
        for words, _, number in entries
        if "will return the same error" in " ".join(words.replace("*", " ").split())
    }
    assert len(lasting) > 8
    assert lasting <= abi.LOST <= abi.ERRORS.keys()


@needs_stub
def test_the_functions_of_the_stub_driver_are_those_of_an_installed_header():
    include = header().parent
    command = ["gcc", "-std=gnu11", "-fsyntax-only", "-Wall", "-Wextra", "-Werror"]
    command += ["-DSTUB_CHECKS_CUDA_H", f"-I{include}", *map(str, sorted(SOURCES.glob("*.c")))]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr


# The ctypes layer, through C calls that end in the fake.


class Stub:
    """A driver library whose functions are C function pointers into a `FakeDriver`."""

    def __init__(self, fake: FakeDriver, version: int = 13000, attributes: int = 1):
        self.fake, self.version, self.attributes = fake, version, attributes
        self.problems: list[BaseException] = []
        self.seen: list[str] = []
        for symbol in abi.SYMBOLS:
            handler = getattr(self, symbol.removesuffix("_v2"), None) or self.unsupported
            kinds = [ctypes.c_void_p if k is ctypes.c_char_p else k for k in abi.SYMBOLS[symbol]]
            prototype = ctypes.CFUNCTYPE(ctypes.c_int, *kinds)
            setattr(self, symbol, prototype(self.guarded(symbol, handler)))

    def guarded(self, symbol: str, handler: Callable) -> Callable[..., int]:
        def call(*arguments) -> int:
            self.seen.append(symbol)
            try:
                return handler(*arguments) or abi.SUCCESS
            except DriverError as error:
                return error.status
            except BaseException as error:
                self.problems.append(error)
                return 999

        return call

    @staticmethod
    def unsupported(*_arguments) -> int:
        return 801

    def cuInit(self, flags):
        assert flags == 0

    def cuDriverGetVersion(self, out):
        out[0] = self.version

    def cuDeviceGet(self, out, ordinal):
        out[0] = 0
        return 0 if ordinal == 0 else 101

    def cuDeviceGetName(self, buffer, size, _device):
        ctypes.memmove(buffer, b"stub\0", min(size, 5))

    def cuDeviceGetAttribute(self, out, number, _device):
        out[0] = {102: self.attributes, 75: 9, 76: 0}[number]

    def cuGetErrorName(self, status, out):
        out[0] = b"CUDA_ERROR_FROM_THE_FUTURE" if status == 12345 else None

    def cuDevicePrimaryCtxRetain(self, out, _device):
        out[0] = 0x7F00_0000_0010

    def cuDevicePrimaryCtxRelease(self, _device):
        self.fake.close()

    def cuCtxSetCurrent(self, context):
        assert context == 0x7F00_0000_0010
        self.fake.make_current()

    def cuMemGetInfo(self, free, total):
        free[0], total[0] = self.fake.memory_info()

    def cuMemGetAllocationGranularity(self, out, prop, option):
        assert (prop[0].type, prop[0].location.type, prop[0].location.id, option) == (1, 1, 0, 0)
        out[0] = self.fake.granularity()

    def cuMemAddressReserve(self, out, size, alignment, hint, flags):
        assert alignment == flags == 0
        out[0] = self.fake.reserve(size, hint)

    def cuMemAddressFree(self, address, size):
        self.fake.address_free(address, size)

    def cuMemCreate(self, out, size, prop, flags):
        assert (prop[0].type, prop[0].requestedHandleTypes, prop[0].location.type) == (1, 0, 1)
        assert flags == 0
        out[0] = self.fake.create(size)

    def cuMemRelease(self, handle):
        self.fake.release(handle)

    def cuMemMap(self, address, size, offset, handle, flags):
        assert offset == flags == 0
        self.fake.map(address, size, handle)

    def cuMemUnmap(self, address, size):
        self.fake.unmap(address, size)

    def cuMemSetAccess(self, address, size, access, count):
        assert (access[0].location.type, access[0].location.id, access[0].flags) == (1, 0, 3)
        assert count == 1
        self.fake.set_access(address, size)

    def cuMemAlloc(self, out, size):
        out[0] = self.fake.allocate(size)

    def cuMemFree(self, address):
        self.fake.free(address)

    def cuMemHostAlloc(self, out, size, flags):
        assert flags == 1
        out[0] = self.fake.host_alloc(size)

    def cuMemFreeHost(self, address):
        self.fake.host_free(address)

    def cuStreamCreate(self, out, flags):
        assert flags == 1
        out[0] = self.fake.create_stream()

    def cuStreamDestroy(self, stream):
        self.fake.destroy_stream(stream)

    def cuStreamQuery(self, stream):
        return 0 if self.fake.stream_done(stream) else 600

    def cuStreamSynchronize(self, stream):
        self.fake.synchronize_stream(stream)

    def cuStreamWaitEvent(self, stream, event, flags):
        assert flags == 0
        self.fake.wait_event(stream, event)

    def cuEventCreate(self, out, flags):
        out[0] = self.fake.create_event(timing=flags != 2)

    def cuEventDestroy(self, event):
        self.fake.destroy_event(event)

    def cuEventRecord(self, event, stream):
        self.fake.record_event(event, stream)

    def cuEventQuery(self, event):
        return 0 if self.fake.event_done(event) else 600

    def cuEventSynchronize(self, event):
        self.fake.synchronize_event(event)

    def cuEventElapsedTime(self, out, start, end):
        out[0] = self.fake.elapsed_us(start, end) / 1e3

    def cuMemcpyHtoDAsync(self, address, host, size, stream):
        self.fake.copy_in(address, host, size, stream)

    def cuMemcpyDtoHAsync(self, host, address, size, stream):
        self.fake.copy_out(host, address, size, stream)

    def cuMemsetD8Async(self, address, byte, size, stream):
        self.fake.fill(address, byte, size, stream)


@pytest.fixture
def stub():
    stub = Stub(FakeDriver(64 * PAGE, PAGE))
    yield stub
    assert not stub.problems


needs_memfd = pytest.mark.skipif(bool(why_no_virtual_memory()), reason="no memfd here")


@pytest.fixture(
    params=[
        "fake", "stub", pytest.param("host", marks=needs_memfd),
        pytest.param("libcuda", marks=needs_stub), pytest.param("cuda", marks=pytest.mark.gpu),
    ]
)  # fmt: skip
def driver(request):
    if request.param == "libcuda":
        return LibCuda(total_bytes=64 * PAGE, granularity=PAGE).open()
    if request.param == "fake":
        return FakeDriver(64 * PAGE, PAGE)
    if request.param == "host":
        return HostDriver(64 * PAGE)
    if request.param == "cuda":
        return open_cuda_driver()
    stub = request.getfixturevalue("stub")
    return open_cuda_driver(load=lambda _: stub)


def test_bytes_travel_through_every_driver(driver):
    size = driver.granularity()
    free, total = driver.memory_info()
    assert 0 < free <= total
    address, handle = driver.reserve(2 * size), driver.create(size)
    driver.map(address + size, size, handle)
    driver.set_access(address + size, size)
    host, stream = driver.host_alloc(2 * size), driver.create_stream()
    done = driver.create_event()
    assert driver.event_done(done)
    bytes_at(host, size)[:] = np.arange(size, dtype=np.uint32).astype(np.uint8)
    driver.copy_in(address + size, host, size, stream)
    driver.fill(address + size + 3, 77, 5, stream)
    driver.copy_out(host + size, address + size, size, stream)
    driver.record_event(done, stream)
    driver.synchronize_event(done)
    assert driver.event_done(done)
    assert driver.stream_done(stream)
    expected = bytes_at(host, size).copy()
    expected[3:8] = 77
    assert (bytes_at(host + size, size) == expected).all()
    driver.unmap(address + size, size)
    driver.release(handle)
    driver.address_free(address, 2 * size)
    driver.host_free(host)
    driver.destroy_event(done)
    driver.destroy_stream(stream)
    driver.close()


def test_bytes_stay_with_the_handle_when_it_is_mapped_elsewhere(driver):
    size = driver.granularity()
    first, second = driver.reserve(size), driver.reserve(size)
    handle, stream = driver.create(size), driver.create_stream()
    host = driver.host_alloc(size)
    driver.map(first, size, handle)
    driver.set_access(first, size)
    driver.fill(first, 9, size, stream)
    driver.synchronize_stream(stream)
    driver.unmap(first, size)
    driver.map(second, size, handle)
    driver.set_access(second, size)
    driver.copy_out(host, second, size, stream)
    driver.synchronize_stream(stream)
    assert (bytes_at(host, size) == 9).all()


def test_one_stream_waits_for_another_and_time_passes(driver):
    size = driver.granularity()
    address, handle = driver.reserve(size), driver.create(size)
    driver.map(address, size, handle)
    driver.set_access(address, size)
    one, two = driver.create_stream(), driver.create_stream()
    begin, end = driver.create_event(timing=True), driver.create_event(timing=True)
    driver.record_event(begin, two)
    driver.fill(address, 1, size, two)
    driver.record_event(end, two)
    driver.wait_event(one, end)
    driver.fill(address, 2, size, one)
    driver.synchronize_stream(one)
    assert driver.event_done(end)
    assert driver.elapsed_us(begin, end) > 0


def test_a_handle_appears_at_two_addresses(driver):
    free, _ = driver.memory_info()
    probe(driver)
    assert driver.memory_info()[0] == free
    driver.close()


@pytest.mark.parametrize(
    ("wrong", "calls"),
    [
        (lambda d, n: d.create(n + 1), ("cuMemCreate", "create")),
        (lambda d, n: d.map(d.reserve(n) + 1, n, d.create(n)), ("cuMemMap", "map")),
        (lambda d, n: d.set_access(d.reserve(n), n), ("cuMemSetAccess", "set_access")),
        (lambda d, n: d.unmap(d.reserve(n), n), ("cuMemUnmap", "unmap")),
    ],
)
def test_a_refused_call_is_named_with_number_and_fix(driver, wrong, calls):
    with pytest.raises(DriverError, match="CUDA_ERROR_INVALID_VALUE") as caught:
        wrong(driver, driver.granularity())
    assert caught.value.status == 1
    assert caught.value.call in calls
    assert f"{caught.value.call} failed" in str(caught.value)
    assert "likely fix" in str(caught.value)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_addresses_arrive_whole(stub):
    driver = open_cuda_driver(load=lambda _: stub)
    address = driver.reserve(PAGE)
    assert address == next(iter(stub.fake.reservations))
    assert address > 2**32
    driver.address_free(address, PAGE)
    assert not stub.fake.reservations


def test_work_that_is_not_done_is_an_answer_and_no_error(stub):
    driver = open_cuda_driver(load=lambda _: stub)
    address, stream, event = driver.reserve(PAGE), driver.create_stream(), driver.create_event()
    driver.map(address, PAGE, driver.create(PAGE))
    driver.set_access(address, PAGE)
    driver.fill(address, 1, PAGE, stream)
    driver.record_event(event, stream)
    assert not driver.event_done(event)
    assert not driver.stream_done(stream)
    stub.fake.drain()
    assert driver.event_done(event)


def test_unsuffixed_calls_are_never_made(stub):
    test_bytes_travel_through_every_driver(open_cuda_driver(load=lambda _: stub))
    assert not {name for name in stub.seen if name in WITH_V2.split()}
    assert {"cuMemcpyHtoDAsync_v2", "cuMemcpyDtoHAsync_v2", "cuStreamDestroy_v2"} <= {*stub.seen}


def test_closing_twice_or_after_the_driver_is_gone_does_nothing(stub):
    driver = open_cuda_driver(load=lambda _: stub)
    stub.fake.close()
    driver.close()
    driver.close()
    assert stub.seen.count("cuDevicePrimaryCtxRelease_v2") == 1
    with pytest.raises(DriverError) as caught:
        driver.memory_info()
    assert caught.value.status == abi.DEINITIALIZED


# Without a usable driver.


def no_library(name: str):
    raise OSError(f"{name}: cannot open shared object file")


def test_a_missing_driver_is_said_with_what_works_without():
    with pytest.raises(DeviceUnavailable, match="no CUDA driver") as caught:
        open_cuda_driver(load=no_library)
    assert "--device cpu" in str(caught.value)


def test_an_old_driver_is_said_with_both_versions(stub):
    stub.version = 11080
    with pytest.raises(DeviceUnavailable, match=r"serves CUDA 11\.8, and 12\.0 is needed"):
        open_cuda_driver(load=lambda _: stub)


def test_a_missing_symbol_is_named(stub):
    del stub.cuMemCreate
    with pytest.raises(DeviceUnavailable, match="too old") as caught:
        bind(stub)
    assert caught.value.call == "cuMemCreate"


def test_an_older_name_with_the_same_arguments_serves(stub):
    function = stub.cuEventElapsedTime_v2
    del stub.cuEventElapsedTime_v2
    stub.cuEventElapsedTime = function
    assert bind(stub)["cuEventElapsedTime_v2"] is function


@pytest.mark.parametrize("status", [100, 999])
def test_a_machine_without_a_device_is_said(stub, status):
    stub.cuInit = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_uint)(lambda _: status)
    with pytest.raises(DeviceUnavailable) as caught:
        open_cuda_driver(load=lambda _: stub)
    assert caught.value.status == status
    assert abi.ERRORS[status][0] in str(caught.value)


def test_a_device_that_is_not_there_is_said(stub):
    with pytest.raises(DeviceUnavailable, match="no CUDA device 3") as caught:
        open_cuda_driver(3, load=lambda _: stub)
    assert "CUDA_VISIBLE_DEVICES" in caught.value.fix


def test_a_device_without_virtual_memory_is_said_by_the_probe_and_serves_otherwise(stub):
    stub.attributes = 0
    driver = open_cuda_driver(load=lambda _: stub)
    with pytest.raises(VmmUnavailable, match="does not work on stub") as caught:
        probe(driver)
    assert "best-fit" in caught.value.fix
    driver.free(driver.allocate(100))


def test_a_device_that_others_hold_is_said(stub):
    prototype = ctypes.CFUNCTYPE(ctypes.c_int, *abi.SYMBOLS["cuDevicePrimaryCtxRetain"])
    stub.cuDevicePrimaryCtxRetain = prototype(lambda _out, _device: 46)
    with pytest.raises(DeviceUnavailable, match="not available now") as caught:
        open_cuda_driver(load=lambda _: stub)
    assert "another process holds the GPU" in caught.value.fix
    assert "--device cpu" in caught.value.fix


def test_a_driver_says_its_version_and_the_devices_capability(stub):
    stub.version = 12080
    driver = open_cuda_driver(load=lambda _: stub)
    assert (abi.version_name(driver.version), driver.capability()) == ("12.8", (9, 0))


def test_an_unknown_number_gets_the_drivers_own_name(stub):
    functions = bind(stub)
    with pytest.raises(DriverError, match="CUDA_ERROR_FROM_THE_FUTURE"):
        check(functions, "cuMemMap", 12345)
    with pytest.raises(DriverError, match=r"without a name \(54321\)"):
        check(functions, "cuMemMap", 54321)


def test_nothing_is_loaded_before_a_driver_is_opened():
    asked: list[str] = []

    def load(name: str):
        asked.append(name)
        return no_library(name)

    with pytest.raises(DeviceUnavailable):
        open_cuda_driver(load=load)
    assert len(asked) == 1
    assert not asked[0].endswith("libcuda.so")
