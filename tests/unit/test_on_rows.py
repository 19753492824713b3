"""An operation on rows of larger values: defined, on the cpu device, emulated, and on the fake."""

from __future__ import annotations

from contextlib import closing

import numpy as np
import pytest
from support.quick import quick
from support.same_bits import out_of_core
from unit.test_cuda_training import SCALARS, fakes, same

import ooctrain as oc
from ooctrain import nn
from ooctrain.devices.cuda.device_array import DeviceArray
from ooctrain.engine.eager import aligned_bytes, make_pool
from ooctrain.engine.incore import initial_values
from ooctrain.errors import ConfigError, ShapeError
from ooctrain.execution.fit import prepare
from ooctrain.execution.settings import Settings
from ooctrain.layers.combine import Add
from ooctrain.layers.conv2d import Conv2d, Conv2dGradWeight, Geometry
from ooctrain.layers.kernels.cpu.table import CPU
from ooctrain.layers.pooling import MaxPool2d, PoolGeometry
from ooctrain.layers.relu import ReLU
from ooctrain.rewrite.tile.on_rows import InPieces, OnRows
from ooctrain.step.op import Op, Spec, physical_shape, to_logical, to_physical
from ooctrain.testing.check_cuda import check_cuda

__all__ = ["fakes"]  # a fixture
RNG = np.random.default_rng(0)


def images(*shapes: tuple[int, ...]) -> list[np.ndarray]:
    return [RNG.standard_normal(shape).astype(np.float32) for shape in shapes]


CONV = Conv2d(Geometry(padding=(1, 0, 1, 1)), (3, 3), "direct")
SAMPLES = {
    "rows of the second image": (OnRows(ReLU(), ((1, 2, 5),)), images((2, 4, 7, 3))),
    "beside rows above": (OnRows(ReLU(), (None,), above=True), images((1, 4, 3, 2), (1, 4, 2, 2))),
    "between rows": (
        OnRows(CONV, ((1, 1, 6), None, None), above=True, below=True),
        images((2, 4, 9, 5), (8, 4, 3, 3), (8,), (1, 8, 2, 5), (1, 8, 1, 5)),
    ),
    "rows of two inputs": (OnRows(Add(), ((0, 3, 6), None)), images((1, 4, 6, 3), (1, 4, 3, 3))),
    "two outputs": (
        OnRows(MaxPool2d(PoolGeometry((2, 2), (2, 2))), ((0, 1, 5),), below=True),
        images((1, 4, 6, 6), (1, 4, 1, 3)),
    ),
}


def run_on_cpu(op: Op, arrays: list[np.ndarray]) -> list[np.ndarray]:
    """What the kernels give, logical."""
    ins = [Spec(a.shape, a.dtype.name) for a in arrays]
    outs = op.infer(*ins)
    results = [np.empty(physical_shape(spec.shape), spec.dtype) for spec in outs]
    with closing(make_pool(2)) as pool:
        workspace = aligned_bytes(CPU.workspace_bytes(op, ins, outs, 2))
        CPU.run(op, pool, [to_physical(a) for a in arrays], results, workspace, {})
    return [to_logical(result) for result in results]


@pytest.mark.parametrize("sample", SAMPLES)
def test_kernels_do_what_the_definition_says(sample: str) -> None:
    op, arrays = SAMPLES[sample]
    expected = op.reference(*arrays, scalars={})
    found = run_on_cpu(op, arrays)
    assert [f.shape for f in found] == [e.shape for e in expected]
    for e, f in zip(expected, found, strict=True):
        assert f == pytest.approx(e, rel=1e-5, abs=1e-5)


def test_it_costs_what_its_rows_cost_and_the_copy_beside_them() -> None:
    op, arrays = SAMPLES["between rows"]
    ins = [Spec(a.shape) for a in arrays]
    outs = op.infer(*ins)
    inner = [Spec((1, 4, 5, 5)), *ins[1:3]]
    result = CONV.infer(*inner)
    assert op.flops(ins, outs) == CONV.flops(inner, result)
    beside = 2 * (ins[3].nbytes + ins[4].nbytes)
    assert op.bytes_moved(ins, outs) == CONV.bytes_moved(inner, result) + beside
    assert (op.name, op.algorithm) == ("conv2d_on_rows", "direct")


def test_rows_beside_the_result_must_fit_it() -> None:
    with pytest.raises(ShapeError, match="do not fit"):
        OnRows(ReLU(), (None,), above=True).infer(Spec((1, 4, 3, 2)), Spec((1, 3, 2, 2)))


@pytest.mark.parametrize(
    "sample", quick(["rows of the second image", "beside rows above", "two outputs"], 0)
)
def test_the_gpus_kernels_do_it_too(sample: str) -> None:
    op, arrays = SAMPLES[sample]
    found = check_cuda(op, *arrays, tolerance=1e-6)
    for array, expected in zip(found, op.reference(*arrays, scalars={}), strict=True):
        assert array.shape == physical_shape(expected.shape)


def test_a_part_of_a_devices_array_begins_where_numpy_says() -> None:
    array = DeviceArray(1000, (2, 5, 3, 4), np.float32)
    part = array[1:2, 2:4]
    assert (part.address, part.shape) == (1000 + 4 * (60 + 24), (1, 2, 3, 4))
    with pytest.raises(AssertionError, match="one piece"):
        array[:, 2:4]


@pytest.mark.parametrize("width", [12, 13], ids=["whole groups of four", "others"])
def test_bands_train_on_the_cuda_device_out_of_core_as_in_core(fakes, width: int) -> None:
    oc.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(3, 2, 1), nn.Conv2d(8, 4, 3),
        nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
    )  # fmt: skip
    shape = (2, 3, 16, width)
    step = oc.trace(model, shape, device="cuda", threads=1)
    batches = [(RNG.standard_normal(shape, np.float32), RNG.integers(0, 4, 2))]
    banded = oc.tile(step, (3, 1), halo="keep", again=False)
    found = []
    for trace, planner, budget in ((banded, "keep-all", None), (banded, "naive", "64KiB")):
        how = Settings(
            budget=budget, planner=planner, allocator="best-fit", device="cuda",
            time_limit_s=None, machine="cpu-generic",
        )  # fmt: skip
        start = initial_values(trace, model)
        found.append(out_of_core(prepare(trace, how), how, start, batches, SCALARS))
    assert same(*found)


def test_single_bytes_that_a_gpu_cannot_copy_are_refused() -> None:
    """Positions of maxima, where windows overlap and channels are not a multiple of 4."""
    model = nn.Sequential(nn.Conv2d(3, 6, 3, padding=1), nn.MaxPool2d(3, 2, 1), nn.Flatten())
    step = oc.trace(model, (1, 3, 16, 12), device="cuda", threads=1)
    with pytest.raises(ConfigError, match="a pixel has 6 bytes"):
        oc.tile(step, (3, 1), halo="keep")


def test_parts_of_a_sum_over_pieces_are_read_added_and_written():
    """A gradient of a weight over three pieces: two parts are added to the first."""
    op = Conv2dGradWeight(Geometry(), (1, 1), "direct")
    image, gradient = Spec((1, 4, 300, 16)), Spec((1, 2, 300, 16))
    pieces = InPieces(op, (image, gradient), ((100, 100, 100), (100, 100, 100)))
    (weight,) = pieces.outs
    assert len(pieces.runs()) == 3
    assert pieces.extra_bytes() == 3 * 2 * weight.nbytes


@pytest.mark.parametrize(("height", "runs"), [(1, 1), (2, 1), (3, 3), (8, 3)])
def test_pieces_that_are_copied_as_a_whole_anyway_are_computed_at_once(height, runs):
    """A window of three over two pieces: four rows are copied around their border. With as many
    copies fewer calls are better."""
    op = MaxPool2d(PoolGeometry((3, 3), (1, 1), (1, 1, 1, 1)))
    pieces = InPieces(op, (Spec((1, 1, 2 * height, 8)),), ((height, height),))
    assert len(pieces.runs()) == runs
    assert pieces.extra_bytes() == 2 * 4 * 8 * min(4, 2 * height)
