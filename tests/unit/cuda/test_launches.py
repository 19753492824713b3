"""Launches of our own: the driver gets from them what it gets from Numba's, to the byte.

Both run over the stub driver, in a process of its own, with Numba's real compiler and linker.
"""

from __future__ import annotations

import ctypes
import json
import os
import struct
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from doubles.hollow_kernels import HollowStore
from doubles.stub_driver import Stub, environment, why_no_stub
from hypothesis import given
from hypothesis import strategies as st
from support.op_samples import SAMPLES
from support.ptx_facts import assemble, read_ptx, why_no_assembler

from benchmarks import bench_launches
from ooctrain.devices.cuda import launches
from ooctrain.devices.cuda.device_array import DeviceArray
from ooctrain.devices.cuda.launches import BLOCK_BYTES, DriverKernels, LaunchRecorder
from ooctrain.devices.cuda.open import make_kernels
from ooctrain.devices.cuda.staging import Staging
from ooctrain.devices.cuda.step_graph import GraphMaker
from ooctrain.devices.cuda.streams import CudaStreams
from ooctrain.devices.thread_streams import COMPUTE, OUT
from ooctrain.errors import CaptureRefused, ConfigError
from ooctrain.layers.conv2d import CUDA_ALGORITHMS
from ooctrain.layers.kernels.cuda.conv import conv_tf32
from ooctrain.layers.kernels.cuda.losses import _cross_entropy
from ooctrain.layers.kernels.cuda.runtime.cubins import make_cubin
from ooctrain.layers.kernels.cuda.runtime.packing import (
    layout_of,
    letters_by_argument,
    moved,
    pack_arguments,
)
from ooctrain.layers.kernels.cuda.runtime.shim import Kernel, why_no_ptx
from ooctrain.layers.kernels.cuda.table import CUDA
from ooctrain.layers.relu import ReLU
from ooctrain.layers.update import SGDUpdate
from ooctrain.step.op import physical_shape
from ooctrain.testing.check_op import SCALARS, as_input, spec_of
from ooctrain.testing.fake_driver import FakeDriver

ROOT = Path(__file__).parents[3]
REASON = why_no_stub() or why_no_ptx()
needs_both = pytest.mark.skipif(bool(REASON), reason=REASON)
needs_stub = pytest.mark.skipif(bool(why_no_stub()), reason=why_no_stub())

BOTH = """
import json, sys, warnings
warnings.simplefilter("ignore")
from dataclasses import replace
from support.op_samples import SAMPLES
from ooctrain.devices.cuda.launches import DriverKernels
from ooctrain.devices.cuda.open import open_cuda_driver
from ooctrain.layers.kernels.cuda.runtime.launcher import NumbaKernels
from ooctrain.layers.conv2d import CUDA_ALGORITHMS
from ooctrain.layers.kernels.cuda.table import CUDA
from ooctrain.step.op import physical_shape
from ooctrain.testing.check_op import SCALARS, as_input, spec_of
from ooctrain.testing.fake_driver import FakeDriver
from doubles.hollow_kernels import HollowStore
from doubles.stub_driver import Stub

wanted, seen, told = set(sys.argv[1:]), set(), {}
stub = Stub(total_bytes=1 << 28, fresh=0)
driver = open_cuda_driver()
stream, memory = driver.create_stream(), driver.allocate(1 << 24)
makers = {"numba": NumbaKernels(stream), "ours": DriverKernels(driver, stream)}
def on_this_device(op):
    algorithm = getattr(op, "algorithm", "naive")
    if algorithm in CUDA_ALGORITHMS:
        return op
    groups = op.geometry.groups
    return replace(op, algorithm="naive" if groups > 1 else CUDA_ALGORITHMS[len(seen) % 4])

for op, arrays in SAMPLES:
    if (wanted and op.name not in wanted) or not CUDA.runs(op):
        continue
    if wanted and op.name in seen:
        continue
    seen.add(op.name)
    op = on_this_device(op)
    specs = [spec_of(as_input(array)) for array in arrays]
    outs = op.infer(*specs)
    space = CUDA.workspace_bytes(op, specs, outs, 1)
    places = [memory + 65536 * n for n in range(len(specs) + len(outs) + 1)]
    kept = {}
    for name, kernels in makers.items():
        made = [
            kernels.array(at, physical_shape(spec.shape), spec.dtype)
            for at, spec in zip(places, [*specs, *outs])
        ]
        for _ in range(2):
            before = stub.number("launches")
            kernels.launch(
                op, made[: len(specs)], made[len(specs) :],
                kernels.array(places[-1], (space,), "uint8"), SCALARS,
            )
            driver.synchronize_stream(stream)
            count = stub.number("launches") - before
            kept[name] = [
                (l.grid, l.block, l.shared_bytes, l.stream, l.arguments.hex())
                for l in stub.launches()[-count:]
            ]
    assert kept["numba"], op
    told[str(op)] = kept["numba"] == kept["ours"]
print(json.dumps(told))
"""


def same_launches(*names: str) -> dict[str, bool]:
    """{operation: whether both launchers gave the driver the same}."""
    given = environment() | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")])}
    done = subprocess.run(
        [sys.executable, "-c", BOTH, *names], env=given, text=True, capture_output=True,
        check=False, cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@needs_both
@pytest.mark.slow
def test_the_driver_gets_the_same_from_both_launchers():
    found = same_launches("relu", "sgd", "dropout", "max_pool2d")
    assert len(found) == 4
    assert all(found.values()), found


@needs_both
@pytest.mark.slow
def test_a_launch_costs_the_host_microseconds():
    """At most twice the goals of the benchmark, since other programs share the caches; by Numba's
    launcher a convolution takes 161 us, and a step of ResNet-50 157 ms."""
    found = bench_launches.main(quick=True)["host_us"]
    single = [us for what, us in found.items() if what.count(" ") < 3 and "step" not in what]
    assert len(single) == len(bench_launches.CASES)
    assert max(single) <= 2 * bench_launches.LAUNCH_US
    assert found["ResNet-50 step, in-core, driver"] <= 2e3 * bench_launches.STEP_MS
    assert found["ResNet-50 step, in-core, graph"] <= 2e3 * bench_launches.GRAPH_MS


@pytest.mark.slow
@needs_both
def test_the_driver_gets_the_same_from_both_launchers_for_every_operation():
    found = same_launches()
    assert len(found) > 40
    assert all(found.values()), [op for op, same in found.items() if not same]


NUMBERS = {
    "b1": ctypes.c_bool, "i4": ctypes.c_int32, "u4": ctypes.c_uint32, "i8": ctypes.c_int64,
    "u8": ctypes.c_uint64, "f4": ctypes.c_float,
}  # fmt: skip


@given(kinds=st.lists(st.sampled_from(sorted(NUMBERS)), min_size=1, max_size=9), data=st.data())
def test_numbers_lie_as_in_a_struct_of_c(kinds, data):
    values = [
        data.draw(st.floats(width=32) if k == "f4" else st.integers(-(2**63), 2**63)) for k in kinds
    ]
    signature = f"void({', '.join(kinds)})"
    fields = [(f"p{i}", NUMBERS[kind]) for i, kind in enumerate(kinds)]
    struct = type("Arguments", (ctypes.Structure,), {"_fields_": fields})
    expected = struct(*(v % 2**64 if k == "u8" else v for k, v in zip(kinds, values, strict=True)))
    kernel = Kernel(len, signature, 32)
    found = pack_arguments(kernel, values)
    last = getattr(struct, f"p{len(kinds) - 1}")
    assert len(found) == layout_of(kernel).size == last.offset + last.size
    for name, kind in fields:
        at, size = getattr(struct, name).offset, ctypes.sizeof(kind)
        assert found[at : at + size] == bytes(expected)[at : at + size]


@pytest.mark.slow
@needs_both
@pytest.mark.skipif(bool(why_no_assembler()), reason=why_no_assembler())
@pytest.mark.parametrize("kernel", [conv_tf32._correlate, _cross_entropy], ids=lambda k: k.name)
def test_the_stub_reads_of_a_cubin_what_the_assembler_says(kernel):
    stub = Stub()
    made, facts = make_cubin(kernel, (9, 0)), read_ptx(kernel, (9, 0))
    function, value = stub.open().function(made.image, made.entry), ctypes.c_int()
    asked = {}
    for number, name in ((1, "shared"), (4, "registers")):
        stub.library.cuFuncGetAttribute(ctypes.byref(value), number, ctypes.c_void_p(function))
        asked[name] = value.value
    said = assemble(facts)
    assert asked["shared"] == said.shared_bytes
    # Another release of the assembler may give some registers more or less.
    assert abs(asked["registers"] - said.registers) <= 8


# A call's launches are worked out once: kernels, grids and shapes for all calls that are alike,
# addresses for each place, numbers for each step.


class Plain:
    """A launcher that packs what it is given, each time anew."""

    def __init__(self):
        self.packed, self.kernels = [], []

    def launch(self, kernel, blocks, *args):
        self.packed.append(pack_arguments(kernel, args))
        self.kernels.append(kernel)

    def part(self, workspace, offset_bytes, count, dtype):
        return LaunchRecorder().part(workspace, offset_bytes, count, dtype)


def scalars_of(step):
    return {"lr": 0.5 / (step + 1), "seed": 3, "step": step}


def check_every_call(stub, driver, made, op, arrays):
    """A call in four places, once in place, in four steps: launched as if it were worked out."""
    specs = [spec_of(as_input(array)) for array in arrays]
    outs = op.infer(*specs)
    space = CUDA.workspace_bytes(op, specs, outs, 1)
    memory, expected = driver.allocate(1 << 22), []
    before = stub.number("launches")

    def place(shift):
        at = [memory + 65536 * n + 256 * shift for n in range(len(specs) + len(outs) + 1)]
        if shift == 3:  # an output takes over an input's storage
            for out, source in op.reusable().items():
                at[len(specs) + out] = at[source]
        found = [
            made.array(address, physical_shape(spec.shape), spec.dtype)
            for address, spec in zip(at, [*specs, *outs], strict=False)
        ]
        return found[: len(specs)], found[len(specs) :], made.array(at[-1], (space,), "uint8")

    places = [place(shift) for shift in range(4)]
    for step in (0, 1, 4, 0):
        for call in places:
            made.launch(op, *call, scalars_of(step))
            plain = Plain()
            CUDA.run(op, plain, *call, scalars_of(step))
            expected += plain.packed
    stub.library.cuCtxSynchronize()
    found = stub.launches()[-(stub.number("launches") - before) :] if expected else []
    assert [launch.arguments for launch in found] == expected, op
    driver.free(memory)


def alike(wanted):
    """Samples that launches of our own take as they are."""
    seen = set()
    for op, arrays in SAMPLES:
        algorithm = getattr(op, "algorithm", CUDA_ALGORITHMS[0])
        if not CUDA.runs(op) or algorithm not in CUDA_ALGORITHMS or (wanted and op.name in seen):
            continue
        if not wanted or op.name in wanted:
            seen.add(op.name)
            yield op, arrays


QUICK = frozenset({"insert", "sgd", "adam", "rmsprop", "dropout", "batch_norm_update", "relu"})


@needs_stub
@pytest.mark.parametrize("names", [QUICK, pytest.param(frozenset(), marks=pytest.mark.slow)])
def test_what_is_filled_in_is_what_would_be_packed(kernels, names):
    count = 0
    for op, arrays in alike(names):
        check_every_call(*kernels, op, arrays)
        count += 1
    assert count >= len(names)


@needs_stub
def test_a_step_works_each_operation_out_once(kernels, monkeypatch):
    """Ten parameters, three steps: SGD is asked once in each step for its numbers."""
    stub, driver, made = kernels
    address, asked, update = driver.allocate(1 << 20), [], SGDUpdate(0.9, 0.5, 1e-4)
    work_out = launches.form_of
    monkeypatch.setattr(
        launches, "form_of", lambda op, *rest: asked.append(op) or work_out(op, *rest)
    )
    parameters = [arrays_of(made, address + 40960 * n, 5) for n in range(10)]
    empty = made.array(0, (0,), "uint8")
    for step in range(3):
        for arrays in parameters:
            made.launch(update, arrays[:3], arrays[3:], empty, scalars_of(step))
    assert len(asked) == 3
    assert stub.number("launches") == 30


@pytest.fixture
def kernels():
    stub = Stub(total_bytes=64 << 20)
    driver = stub.open()
    made = DriverKernels(driver, driver.create_stream(), HollowStore())
    yield stub, driver, made
    assert stub.number("sticky") == 0


def arrays_of(kernels, address, count):
    return [kernels.array(address + 4096 * n, (1024,), "float32") for n in range(count)]


@needs_stub
def test_a_call_that_comes_again_asks_nobody_and_launches_the_same(kernels):
    stub, driver, made = kernels
    address = driver.allocate(1 << 20)
    x, y = arrays_of(made, address, 2)
    empty = made.array(0, (0,), "uint8")
    relu = ReLU()
    for _ in range(3):
        made.launch(relu, [x], [y], empty, SCALARS)
    made.launch(relu, [y], [x], empty, SCALARS)  # other arrays
    stub.library.cuCtxSynchronize()
    first, second, third, other = stub.launches()
    assert first == second == third != other
    assert made._store.asked == 1
    assert stub.calls("cuModuleLoadData") == 1


@needs_stub
def test_a_scalar_that_changes_reaches_the_kernel_and_one_that_nobody_reads_costs_nothing(kernels):
    stub, driver, made = kernels
    arrays = arrays_of(made, driver.allocate(1 << 20), 5)
    empty, update = made.array(0, (0,), "uint8"), SGDUpdate(0.9, 0.0, 1e-4)
    for scalars in (
        {"lr": 0.5, "seed": 1, "step": 0}, {"lr": 0.5, "seed": 2, "step": 0},
        {"lr": 0.25, "seed": 2, "step": 0},
    ):  # fmt: skip
        made.launch(update, arrays[:3], arrays[3:], empty, scalars)
    stub.library.cuCtxSynchronize()
    first, second, third = stub.launches()
    assert first == second
    assert third.arguments != second.arguments


@needs_stub
def test_what_is_launched_on_one_address_is_not_launched_on_another(kernels):
    """Arrays that are gone leave no trace: an id that comes again is another array's."""
    stub, driver, made = kernels
    address, relu = driver.allocate(1 << 20), ReLU()
    for number in range(20):
        x, y = arrays_of(made, address + 8192 * number, 2)
        made.launch(relu, [x], [y], made.array(0, (0,), "uint8"), SCALARS)
        del x, y
    stub.library.cuCtxSynchronize()
    assert len({launch.arguments for launch in stub.launches()}) == 20


def test_a_workspace_is_not_left():
    recorder = LaunchRecorder()
    workspace = DeviceArray(256, (64,), "uint8")
    assert recorder.part(workspace, 32, 8, "float32").address == 288
    with pytest.raises(ConfigError, match="more workspace"):
        recorder.part(workspace, 36, 8, "float32")


def test_an_array_keeps_its_bytes_in_every_form():
    array = DeviceArray(512, (2, 3, 4), "float32")
    assert array.reshape((6, -1)).shape == (6, 4)
    assert array.ravel().view(np.uint8).words == (0, 0, 96, 1, 512, 96, 1)
    assert array.nbytes == array.view("uint8").size == 96


# A recorded step: its numbers lie in device memory, from which moved kernels read them.


class Recorder:
    """Streams, staging and kernels over the stub driver, and some calls to record."""

    def __init__(self, names):
        self.stub = Stub(total_bytes=64 << 20, late=1)
        self.driver = self.stub.open()
        self.streams, self.staging = CudaStreams(self.driver), Staging(self.driver)
        self.kernels = DriverKernels(self.driver, self.streams.handles[COMPUTE], HollowStore())
        self.maker = GraphMaker(self.driver, self.streams, self.staging, self.kernels)
        self.memory, self.used = self.driver.allocate(16 << 20), 0
        self.calls = [self.placed(*sample) for sample in alike(names) for _ in range(2)]
        self.scalars, self.views, self.cuts = scalars_of(0), [], 0

    def placed(self, op, arrays):
        specs = [spec_of(as_input(array)) for array in arrays]
        outs = op.infer(*specs)
        made = [self.array(physical_shape(s.shape), s.dtype) for s in (*specs, *outs)]
        space = self.array((CUDA.workspace_bytes(op, specs, outs, 1),), "uint8")
        return op, made[: len(specs)], made[len(specs) :], space

    def array(self, shape, dtype):
        self.used += 1 << 16
        return self.kernels.array(self.memory + self.used - (1 << 16), shape, dtype)

    def queue(self):
        """All calls, with a cut behind the third; then the first bytes of memory are wanted."""
        for number, call in enumerate(self.calls):
            if number == 3:
                self.maker.cut()
            self.streams.submit(
                COMPUTE, (0, 0, 0), lambda c=call: self.kernels.launch(*c, self.scalars)
            )
        taken = lambda: self.staging.capture(self.memory, 64, self.streams.current, 0)  # noqa: E731
        self.streams.submit(OUT, (len(self.calls), 0, 0), lambda: self.views.append(taken()))

    def bytes_at(self, address, count):
        return self.staging.read(address, count, self.streams.handles[COMPUTE]).tobytes()

    def with_numbers(self, kernel, packed):
        """The arguments of a moved kernel, with the numbers in the place of their addresses."""
        words, first = list(layout_of(moved(kernel)).unpack(packed)), 0
        for argument, letters in enumerate(letters_by_argument(kernel)):
            for place, letter in enumerate(letters, first):
                if argument in kernel.changing:
                    cell = self.bytes_at(words[place], struct.calcsize(letter))
                    (words[place],) = struct.unpack(letter, cell)
            first += len(letters)
        return layout_of(kernel).pack(*words)

    def held(self):
        return [self.stub.number(name) for name in ("execs", "host", "used_bytes", "events")]


def expected_at(calls, step):
    plain = Plain()
    for op, ins, outs, space in calls:
        CUDA.run(op, plain, ins, outs, space, scalars_of(step))
    return list(zip(plain.kernels, plain.packed, strict=True))


@needs_stub
def test_a_recorded_step_finds_the_numbers_of_each_step_in_memory():
    """They are those of plain launches; calls of equal operations share their cells."""
    made = Recorder({"insert", "sgd", "adam", "rmsprop", "dropout", "relu"})
    for call in made.calls:  # a step is recorded when it has been walked
        made.kernels.launch(*call, made.scalars)
    made.streams.synchronize()
    before = made.held()
    graph = made.maker.record(made.queue)
    assert made.kernels.numbers is None
    assert graph.scalars == [made.scalars] * 4
    graph.begin([made.scalars] * 4)  # launches what must be there before the host looks
    made.streams.synchronize()
    early = made.stub.launches()[len(expected_at(made.calls, 0)) :]
    assert len(early) == len(expected_at(made.calls[:3], 0))
    graph.go_on()
    for step in (0, 3, 1, 1, 7):
        made.streams.synchronize()
        count = made.stub.number("launches")
        graph.begin([scalars_of(step)] * 4)
        graph.go_on()
        made.streams.synchronize()
        launched = made.stub.launches()[count - made.stub.number("launches") :]
        wanted = expected_at(made.calls, step)
        assert len(launched) == len(wanted)
        for (kernel, packed), launch in zip(wanted, launched, strict=True):
            found = launch.arguments
            assert (made.with_numbers(kernel, found) if kernel.changing else found) == packed
    assert graph.elapsed_us() >= 0
    assert made.views[0].tobytes() == made.bytes_at(made.memory, 64)
    assert made.held()[0] == 2
    graph.close()
    made.streams.close()
    made.staging.close()
    assert made.held() == [0, 0, before[2], 0]


@needs_stub
def test_what_cannot_be_recorded_leaves_nothing_and_what_can_is_recorded_afterwards():
    made = Recorder({"adam"})
    made.kernels.launch(*made.calls[0], made.scalars)
    made.streams.synchronize()
    before = made.held()

    def refused(words):
        with pytest.raises(CaptureRefused, match=words):
            made.maker.record(made.queue)
        made.streams.synchronize()
        assert (made.kernels.numbers, made.held()[:3]) == (None, before[:3])

    cells = BLOCK_BYTES // 8
    adam = made.calls[0]
    distinct = [replace(adam[0], weight_decay=1 / (1 + n)) for n in range(cells)]
    made.calls = [(op, *adam[1:]) for op in distinct]
    refused("more numbers than the block")
    made.calls = [(op, *adam[1:]) for op in distinct[:5]]
    graph = made.maker.record(made.queue)
    assert len(graph.scalars) == 5
    graph.close()


def test_the_events_of_a_step_serve_again_as_soon_as_its_times_are_read_or_lost():
    """However long what was measured is kept."""
    driver = FakeDriver(1 << 20, 4096)
    streams, kept, counts = CudaStreams(driver), [], []
    for number in range(6):
        for stream in (COMPUTE, OUT, 2, COMPUTE):
            streams.submit(stream, (0, 0, 0), lambda: None, 10 * number + stream)
        streams.synchronize()
        kept.append(streams.restart())
        if number % 2:
            kept[-1].lose()
        tags = [10 * number + stream for stream in (COMPUTE, COMPUTE, OUT, 2)]
        assert [span.tag for span in kept[-1]] == ([] if number % 2 else tags)
        counts.append(driver.held()["events"])
    assert len(set(counts)) == 1
    streams.close()
    assert driver.held()["events"] == 0


@needs_stub
@pytest.mark.parametrize(
    ("word", "graphs"), [(None, False), ("", False), ("driver", False), ("graph", True)]
)
def test_the_environment_names_the_launcher(monkeypatch, word, graphs):
    monkeypatch.delenv("OOCTRAIN_LAUNCHER", raising=False)
    if word is not None:
        monkeypatch.setenv("OOCTRAIN_LAUNCHER", word)
    driver = Stub(total_bytes=1 << 20).open()
    made = make_kernels(driver, driver.create_stream())
    assert isinstance(made, DriverKernels)
    assert made.graphs is graphs
    monkeypatch.setenv("OOCTRAIN_LAUNCHER", "rocket")
    with pytest.raises(ConfigError, match="rocket"):
        make_kernels(driver, driver.create_stream())
