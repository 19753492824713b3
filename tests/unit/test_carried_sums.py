"""Sums that go on from band to band have the bits of one call, by the kernels of both devices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import pytest
from unit.test_on_rows import run_on_cpu

from ooctrain.devices.cuda.device_array import DeviceArray
from ooctrain.devices.cuda.launches import LaunchRecorder, marks_of
from ooctrain.layers.batch_norm import BatchNormGradReduce, BatchNormStats
from ooctrain.layers.instance_norm import InstanceNormGradReduce, InstanceNormStats
from ooctrain.layers.kernels.cuda.table import CUDA
from ooctrain.layers.kernels.row_blocks import RowBlocks, row_blocks, rows_of_block
from ooctrain.layers.losses import TotalLoss
from ooctrain.layers.reduction import ChannelSum
from ooctrain.rewrite.tile.carried_sums import (
    CarriedSum,
    CarriedTotal,
    rows_together,
    state_bytes,
)
from ooctrain.step.op import Op, Spec, to_logical
from ooctrain.testing.check_cuda import run_cuda

Device = Literal["cpu", "cuda"]
OPS: dict[str, Op] = {
    "batch norm": BatchNormStats(), "its gradient": BatchNormGradReduce(mask=True),
    "instance norm": InstanceNormStats(), "of each image": InstanceNormGradReduce(),
    "bias": ChannelSum(),
}  # fmt: skip
#: Short rows, of which a block has several; rows of more than a block; several chunks on the cpu.
SHAPES = [(2, 3, 23, 9), (2, 5, 7, 130), (1, 33, 40, 64), (2, 3, 200, 150)]


def inputs_of(op: Op, shape: Sequence[int]) -> list[np.ndarray]:
    """A gradient, an input, statistics, a mask."""
    rng = np.random.default_rng(0)
    x, dy, y = (rng.standard_normal(shape).astype("float32") for _ in range(3))
    vectors = shape[:2] if op.carries == "image" else shape[1:2]
    mean, inv_std = (rng.uniform(0.5, 2, vectors).astype("float32") for _ in range(2))
    if isinstance(op, BatchNormStats | InstanceNormStats | ChannelSum):
        return [x]
    return [dy, x, mean, inv_std] + ([y] if op.mask else [])


def run_on(device: Device) -> Callable[[Op, list[np.ndarray]], list[np.ndarray]]:
    if device == "cpu":
        return run_on_cpu
    return lambda op, arrays: [to_logical(np.asarray(a)) for a in run_cuda(op, arrays)]


def carried(
    op: Op, arrays: list[np.ndarray], cuts: Sequence[int], device: Device
) -> list[np.ndarray]:
    """What the operation gives, band by band: statistics from the top, gradients from below."""
    run, shape = run_on(device), arrays[0].shape
    n, _, h, _ = shape
    together = rows_together(op, shape, device)
    rows = sorted({0, h, *(cut // together * together for cut in cuts)})
    bands = [(i, lo, hi) for i in range(n) for lo, hi in pairwise(rows)]
    if not isinstance(op, BatchNormStats | InstanceNormStats):
        bands.reverse()
    specs = [Spec(a.shape) for a in arrays]
    size_bytes = state_bytes(op, specs, op.infer(*specs), device)
    state: list[np.ndarray] = []
    for image, lo, hi in bands:
        read = [_of_band(op, a, image, lo, hi) for a in arrays]
        sum_ = CarriedSum(op, shape, (image, lo), size_bytes, bool(state))
        state = run(sum_, [*read, *state])
    outs = tuple(spec.shape for spec in op.infer(*specs))
    vectors = [a for a in arrays if a.ndim < 4]
    return run(CarriedTotal(op, shape, outs), [*state, *vectors])


def _of_band(op: Op, array: np.ndarray, image: int, lo: int, hi: int) -> np.ndarray:
    if array.ndim == 4:
        return array[image : image + 1, :, lo:hi]
    return array[image : image + 1] if op.carries == "image" else array


def check(name: str, shape: tuple[int, ...], cuts: Sequence[int], device: Device) -> None:
    arrays = inputs_of(OPS[name], shape)
    expected = run_on(device)(OPS[name], arrays)
    found = carried(OPS[name], arrays, cuts, device)
    for e, f in zip(expected, found, strict=True):
        assert np.array_equal(e, f), f"{name} of {shape}: off by {np.abs(e - f).max()}"


@pytest.mark.parametrize(
    "cuts",
    [(8,), pytest.param(tuple(range(200)), marks=pytest.mark.slow)],
    ids=["two", "many"],
)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", OPS)
def test_on_the_cpu(name: str, shape: tuple[int, ...], cuts: tuple[int, ...]) -> None:
    check(name, shape, cuts, "cpu")


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES[:3], ids=str)
@pytest.mark.parametrize("name", OPS)
def test_on_a_gpu(name: str, shape: tuple[int, ...]) -> None:
    check(name, shape, (3, 8, 9, 20), "cuda")


def launched(op: Op, specs: Sequence[Spec]) -> set[int]:
    """The arrays of a call that its launches on a GPU touch, by number: each within its bytes."""
    outs = op.infer(*specs)
    space = Spec((CUDA.workspace_bytes(op, specs, outs, 1),), "uint8")
    arrays = [DeviceArray(n << 40, s.shape, s.dtype) for n, s in enumerate([*specs, *outs, space])]
    marked, recorder = marks_of(arrays), LaunchRecorder()
    CUDA.run(op, recorder, marked[: len(specs)], marked[len(specs) : -1], marked[-1], {})
    touched = set()
    for launch in recorder.launches:
        assert min(launch.grid) >= 1
        for _, which, within in launch.addresses:
            assert 0 <= within <= arrays[which].nbytes
            touched.add(which)
    return touched


#: Of (2, 3, 200, 150): rows that are added at once on the cpu and for a GPU, bytes of the state,
#: and which of its arrays the total uses on a GPU, of what it reads, what it writes, its workspace.
KNOWN: dict[str, tuple[int, int, int, set[int]]] = {
    "batch norm": (1, 3, 4608, {0, 1, 2, 3}), "its gradient": (1, 3, 4608, {0, 3, 4}),
    "instance norm": (1, 3, 6528, {0, 1, 2, 3}), "of each image": (1, 3, 6528, {0, 3, 4}),
    "bias": (1, 3, 2304, {0, 1}), "loss": (1, 1, 720192, {0, 1, 2, 3, 4}),
}  # fmt: skip


@pytest.mark.parametrize("name", KNOWN)
def test_launches_on_a_gpu_touch_all_that_the_call_has_and_nothing_else(name: str) -> None:
    shape = (2, 3, 200, 150)
    if name == "loss":
        op: Op = TotalLoss(counts=True)
        specs, vectors = [Spec((2, 200, 150)), Spec((2, 200, 150), "int64")], []
    else:
        op = OPS[name]
        specs = [Spec(a.shape) for a in inputs_of(op, shape)]
        vectors = [spec for spec in specs if len(spec.shape) < 4]
    outs, whole = op.infer(*specs), specs[0].shape
    rows = rows_together(op, whole, "cuda")
    band = [
        s if s in vectors else Spec((1, *s.shape[1:-2], rows, s.shape[-1]), s.dtype) for s in specs
    ]
    size_bytes = state_bytes(op, specs, outs, "cuda")
    for goes_on in (False, True):
        sum_ = CarriedSum(op, whole, (1, rows), size_bytes, goes_on)
        read = [*band, *sum_.infer(*band)] if goes_on else band
        assert launched(sum_, read) == {*range(len(read) + 1)}
    total = CarriedTotal(op, whole, tuple(spec.shape for spec in outs))
    used = launched(total, [*sum_.infer(*band), *(vectors or specs[1:])])
    assert (rows_together(op, whole, "cpu"), rows, size_bytes, used) == KNOWN[name]


@pytest.mark.parametrize("name", OPS)
def test_the_definition_is_the_operations(name: str) -> None:
    op, arrays = OPS[name], [a.astype("float64") for a in inputs_of(OPS[name], (2, 3, 9, 5))]
    specs: Any = [Spec(a.shape) for a in arrays]
    size_bytes = state_bytes(op, specs, op.infer(*specs), "cpu")
    state: list[np.ndarray] = []
    for image, lo, hi in ((1, 4, 9), (0, 0, 9), (1, 0, 4)):
        read = [_of_band(op, a, image, lo, hi) for a in arrays]
        sum_ = CarriedSum(op, (2, 3, 9, 5), (image, lo), size_bytes, bool(state))
        state = list(sum_.reference(*read, *state, scalars={}))
    outs = tuple(spec.shape for spec in op.infer(*specs))
    found = CarriedTotal(op, (2, 3, 9, 5), outs).reference(*state, *arrays[2:4], scalars={})
    for e, f in zip(op.reference(*arrays, scalars={}), found, strict=True):
        assert f == pytest.approx(e, rel=1e-12, abs=1e-12)


LABELS = np.array([0, 2, -100, 1, 2] * 18).reshape(2, 9, 5)


@pytest.mark.parametrize(
    ("counts", "others"),
    [
        (True, [LABELS]), (True, [LABELS, np.array([0.25, 2.0, 0.5])]), (False, []),
        (False, [np.array([7.5])]), (False, [np.array([7.0, 0.5, 0.25])]),
    ],
)  # fmt: skip
def test_the_definition_of_a_loss_is_the_operations(counts: bool, others: list) -> None:
    """By its labels, by those and weights, as a sum, by a divisor in one part or in three."""
    rng, op = np.random.default_rng(0), TotalLoss(counts=counts)
    arrays = [rng.uniform(0, 2, (2, 9, 5)), *others]
    whole = [arrays[0], *([np.float64(others[0].sum())] if others and not counts else others)]
    expected = op.reference(*whole, scalars={})
    state: list[np.ndarray] = []
    for image, lo, hi in ((0, 0, 3), (0, 3, 9), (1, 0, 9)):
        read = [a[image : image + 1, lo:hi] if a.ndim == 3 else a for a in arrays]
        sum_ = CarriedSum(op, (2, 9, 5), (image, lo), 64, bool(state))
        state = list(sum_.reference(*read, *state, scalars={}))
    total = CarriedTotal(op, (2, 9, 5), tuple(np.shape(e) for e in expected))
    found = total.reference(*state, *(a for a in arrays if a.ndim < 3), scalars={})
    for e, f in zip(expected, found, strict=True):
        assert f == pytest.approx(e, rel=1e-12)


def test_blocks_are_pieces_of_rows_or_whole_rows_of_one_image() -> None:
    assert row_blocks((2, 5, 300, 8), 128) == RowBlocks(3000, 300, 128)
    assert row_blocks((2, 5, 300, 8), 128).count == 2 * 5 * 3
    assert row_blocks((2, 5, 50, 8), 128) == RowBlocks(500, 250, 100)
    assert row_blocks((2, 5, 50, 8), 128).count == 2 * 3
    assert row_blocks((500, 8), 128) == row_blocks((500, 1, 1, 8), 128) == RowBlocks(500, 500, 128)
    assert (rows_of_block(5, 300, 128), rows_of_block(5, 50, 128), rows_of_block(5, 9, 128)) == (
        1, 2, 5
    )  # fmt: skip
