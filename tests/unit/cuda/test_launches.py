"""Launches of our own: the driver gets from them what it gets from Numba's, to the byte.

Both run over the stub driver, in a process of its own, with Numba's real compiler and linker.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
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
from ooctrain.devices.cuda.launches import DriverKernels, LaunchRecorder
from ooctrain.errors import ConfigError
from ooctrain.layers.conv2d import CUDA_ALGORITHMS
from ooctrain.layers.kernels.cuda.conv import conv_tf32
from ooctrain.layers.kernels.cuda.losses import _cross_entropy
from ooctrain.layers.kernels.cuda.runtime.cubins import make_cubin
from ooctrain.layers.kernels.cuda.runtime.packing import layout_of, pack_arguments
from ooctrain.layers.kernels.cuda.runtime.shim import Kernel, why_no_ptx
from ooctrain.layers.kernels.cuda.table import CUDA
from ooctrain.layers.relu import ReLU
from ooctrain.layers.update import SGDUpdate
from ooctrain.step.op import physical_shape
from ooctrain.testing.check_op import SCALARS, as_input, spec_of

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
        self.packed = []

    def launch(self, kernel, blocks, *args):
        self.packed.append(pack_arguments(kernel, args))

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
