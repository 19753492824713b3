"""Every operation's GPU kernels on random data, against the NumPy definition in float64.

The samples of all operations, and convolutions and norms of the sizes of real networks, get a check
each. A sum of products has a bound that follows from the number of its terms and the sizes of its
factors, element by element; other results may differ from their definition by 2e-5 of the largest
value, as in the tests. Each kernel also has to give the same bits twice and in place, change no
input, and write nothing outside its arrays. Read next: `workbench.py`,
`tests/support/op_samples.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from support.op_samples import SAMPLES, normal

from benchmarks.gpu.bench import Bench, NotRunError
from benchmarks.gpu.workbench import Workbench
from ooctrain.devices.cuda.open import TF32_CAPABILITY
from ooctrain.engine.incore import run_reference
from ooctrain.layers.batch_norm import BatchNormApply, BatchNormStats
from ooctrain.layers.conv2d import (
    CUDA_ALGORITHMS,
    Conv2d,
    Conv2dGradInput,
    Conv2dGradWeight,
    Geometry,
)
from ooctrain.layers.conv_transpose import ConvTranspose2d
from ooctrain.layers.kernels.cuda.table import CUDA
from ooctrain.layers.linear import Linear, LinearGradInput, LinearGradWeight, MatMul
from ooctrain.layers.losses import SoftmaxCrossEntropy
from ooctrain.layers.pooling import MaxPool2d
from ooctrain.layers.relu import ReLU
from ooctrain.layers.update import SGDUpdate
from ooctrain.step.op import Op, to_physical
from ooctrain.testing.check_op import (
    SCALARS,
    as_input,
    check_agreement,
    run_guarded,
    same_bits,
    spec_of,
)

#: Sums of products: the definition on |inputs| bounds its error.
PRODUCTS = (
    Conv2d, Conv2dGradInput, Conv2dGradWeight, ConvTranspose2d, Linear, LinearGradInput,
    LinearGradWeight, MatMul,
)  # fmt: skip
#: "naive" shows nothing more on large shapes.
FAST = tuple(algorithm for algorithm in CUDA_ALGORITHMS if algorithm != "naive")
OTHERS_TOLERANCE = 2e-5
ROUNDOFF, TF32_ROUNDOFF = 2.0**-24, 2.0**-11
FEW = (ReLU, SGDUpdate, Linear, MaxPool2d, SoftmaxCrossEntropy, Conv2d)
ARENA_BYTES, FEW_BYTES = 256 << 20, 1 << 20
#: (images, channels, rows, columns), filters, kernel, stride, groups
REAL_CONVS = (
    ((8, 64, 28, 28), 128, 3, 1, 1), ((4, 128, 15, 14), 256, 3, 2, 1),
    ((8, 256, 14, 14), 64, 1, 1, 1), ((4, 3, 65, 64), 64, 7, 2, 1), ((4, 64, 14, 14), 96, 3, 1, 2),
    ((2, 512, 7, 7), 512, 3, 1, 1),
)  # fmt: skip

Case = tuple[Op, tuple[Any, ...]]


def run(bench: Bench) -> None:
    """One check for each operation, algorithm and size."""
    size_bytes = FEW_BYTES if bench.small else ARENA_BYTES
    with Workbench(size_bytes, size_bytes) as workbench:
        cases = few() if bench.few else samples() if bench.small else _all()
        check_all(bench, workbench, cases)


def check_all(bench: Bench, workbench: Workbench, cases: Iterable[Case]) -> None:
    """A check for each case."""
    definition = _Definition()
    for number, (op, arrays) in enumerate(cases):
        inputs = [as_input(array) for array in arrays]
        shapes = " ".join("x".join(map(str, a.shape)) or "scalar" for a in inputs)
        algorithm = getattr(op, "algorithm", "")
        name = " ".join(filter(None, (f"{number}.", op.name, algorithm, shapes)))
        bench.check(name, _check, workbench, definition, op, inputs)


def few() -> Iterator[Case]:
    """The first sample of some operations; of convolution, by the algorithm that is usual."""
    for kind in FEW:
        op, arrays = next(case for case in SAMPLES if isinstance(case[0], kind))
        yield replace(op, algorithm=FAST[0]) if kind is Conv2d else op, arrays


def samples() -> Iterator[Case]:
    """Every sample of every operation, which are small."""
    for op, arrays in SAMPLES:
        yield from _by_algorithms(op, arrays)


def _all() -> Iterator[Case]:
    yield from samples()
    for x, filters, kernel, stride, groups in REAL_CONVS:
        yield from _conv_cases(x, filters, kernel, stride, groups)
    yield BatchNormStats(1e-5), (normal(16, 64, 28, 28),)
    vectors = (normal(64), np.abs(normal(64, seed=1)), normal(64, seed=2), normal(64, seed=3))
    yield BatchNormApply(batch_stats=False, relu=True), (normal(16, 64, 28, 28), *vectors)


def _by_algorithms(op: Op, arrays: tuple[Any, ...]) -> Iterator[Case]:
    """A convolution by each algorithm of the GPU, once for those of the cpu device."""
    asked = getattr(op, "algorithm", None)
    if asked is None:
        yield op, arrays
    elif asked != "direct":
        few_channels = op.geometry.groups > 1
        for algorithm in ("naive",) if few_channels else CUDA_ALGORITHMS:
            yield replace(op, algorithm=algorithm), arrays


def _conv_cases(
    x_shape: tuple[int, ...], filters: int, kernel: int, stride: int, groups: int
) -> Iterator[Case]:
    """Forward and both gradients of a convolution, by each algorithm."""
    geometry = Geometry((stride,) * 2, (kernel // 2,) * 4, (1, 1), groups)
    x, w = normal(*x_shape), normal(filters, x_shape[1] // groups, kernel, kernel)
    forward = Conv2d(geometry, (kernel, kernel))
    dy = normal(*forward.infer(spec_of(x), spec_of(w))[0].shape)
    rows, columns = x_shape[2:]
    for op, arrays in (
        (forward, (x, w, normal(filters))),
        (Conv2dGradInput(geometry, (rows, columns)), (dy, w)),
        (Conv2dGradWeight(geometry, (kernel, kernel)), (x, dy)),
    ):  # fmt: skip
        for algorithm in FAST:
            yield replace(op, algorithm=algorithm), arrays


class _Definition:
    """What a sum of products has to be, with the bound of its error: kept from one algorithm to the
    next."""

    def __init__(self) -> None:
        self._of: tuple[Any, ...] = ()
        self._found: tuple[np.ndarray, ...] = ()

    def of(self, op: Op, inputs: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
        """(values, sums of the sizes of the products, how many terms each sum has)."""
        plain = replace(op, algorithm="") if hasattr(op, "algorithm") else op
        key = (plain, *map(id, inputs))
        if key != self._of:
            exact = [to_physical(a.astype(np.float64)) for a in inputs]
            asked = (exact, [np.abs(a) for a in exact], [np.ones_like(a) for a in exact])
            self._found = tuple(run_reference(plain, arrays, SCALARS)[0] for arrays in asked)
            self._of = key
        return self._found


def _check(
    workbench: Workbench, definition: _Definition, op: Op, inputs: Sequence[np.ndarray]
) -> dict[str, float]:
    tf32 = getattr(op, "algorithm", "") == "tf32"
    if tf32 and workbench.driver.capability() < TF32_CAPABILITY:
        raise NotRunError("this GPU has no tensor cores for TF32")
    specs = [spec_of(a) for a in inputs]
    space_bytes = CUDA.workspace_bytes(op, specs, op.infer(*specs), 1)
    run = partial(workbench.run, op, scalars=SCALARS)
    once = partial(run_guarded, op, inputs, run, space_bytes)
    outputs = once()
    numbers: dict[str, float] = {}
    if isinstance(op, PRODUCTS):
        expected = definition.of(op, inputs)
        numbers["error_over_bound"] = _error_over_bound(outputs[0], *expected, tf32)
        assert numbers["error_over_bound"] <= 1, f"error over its bound: {numbers}"
    else:
        check_agreement(op, inputs, outputs, SCALARS, OTHERS_TOLERANCE)
    assert same_bits(outputs, once()), f"{op}: a second run gives other bits"
    if op.reusable():
        assert same_bits(outputs, once(in_place=True)), f"{op}: in place"
    return numbers


def _error_over_bound(
    found: np.ndarray, wanted: np.ndarray, sizes: np.ndarray, terms: np.ndarray, tf32: bool
) -> float:
    """Largest |error| over (terms + 1) u sum |a b|, and 2 u of the factors, 2^-11 in TF32."""
    factors = TF32_ROUNDOFF if tf32 else ROUNDOFF
    bound = ((terms + 1) * ROUNDOFF + 2 * factors) * sizes
    assert np.isfinite(found).all(), "not finite"
    return float((np.abs(found - wanted) / np.maximum(bound, 1e-30)).max(initial=0))
