"""The PTX interpreter bites: each planted bug of a compiled kernel is named.

The reference is the result of the right text, to the bit: with whole numbers, whose sums are all
exact, or with the result of the same numbers in a small array.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest
from doubles.ptx_machine import PtxLauncher
from support.conv_shapes import draw, parts
from support.quick import quick
from zoo.ptx_bugs import BUGS

from ooctrain.layers.conv2d import Conv2d, ConvShape, Geometry
from ooctrain.layers.kernels.cuda.conv.tensor_core import round_tf32_twin
from ooctrain.layers.kernels.cuda.runtime.shim import why_no_ptx
from ooctrain.layers.kernels.cuda.table import CUDA
from ooctrain.layers.linear import Linear
from ooctrain.layers.losses import SoftmaxCrossEntropy
from ooctrain.layers.relu import ReLU
from ooctrain.step.op import to_logical
from ooctrain.testing.check_cuda import run_cuda
from ooctrain.testing.check_op import SCALARS

pytestmark = pytest.mark.skipif(bool(why_no_ptx()), reason=why_no_ptx())
SHAPE = ConvShape(1, 40, 4, 5, 12, 2, 3, padding=(1, 0, 1, 1))
FEW = ConvShape(1, 3, 4, 5, 12, 3, 3, padding=(1, 0, 1, 1))
LARGE = 2**30 + 2**12


def convolution(algorithm: str, launcher: PtxLauncher, shape: ConvShape = SHAPE) -> bool:
    op, inputs = next(parts(shape, algorithm, draw(shape)))
    (want,) = op.reference(*inputs, scalars={})
    return bool((to_logical(run_cuda(op, inputs, {}, launcher)[0]) == want).all())


def rounding(launcher: PtxLauncher) -> bool:
    """Factors are rounded to TF32, ties to even; one channel, so that nothing is added."""
    x = np.zeros((1, 8, 4, 4), np.float32)
    x[0, 0] = (1 + 2**-11 * np.arange(16, dtype=np.float32)).reshape(4, 4)
    w = np.zeros((8, 8, 1, 1), np.float32)
    w[:, 0] = 1
    (found,) = run_cuda(Conv2d(Geometry(), (1, 1), "tf32"), [x, w], {}, launcher)
    want = np.array([round_tf32_twin(v) for v in x[0, 0].ravel()]).reshape(4, 4)
    return bool((to_logical(found) == want).all())


def loss(launcher: PtxLauncher) -> bool:
    logits = np.log(np.array([[1, 2, 4, 9], [3, 8, 2, 3], [5, 1, 1, 1]], np.float32))
    op, labels = SoftmaxCrossEntropy(), np.array([0, 1, 3])
    found = run_cuda(op, [logits, labels], SCALARS, launcher)
    want = op.reference(logits.astype(np.float64), labels, scalars=SCALARS)
    return all(np.allclose(f, w, rtol=1e-5) for f, w in zip(found, want, strict=True))


def product(launcher: PtxLauncher) -> bool:
    """Inexact: each of the fused products is rounded to nearest, in the order of k."""
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(shape).astype(np.float32) for shape in ((5, 24), (6, 24)))
    (found,) = run_cuda(Linear(), [x, w], {}, launcher)
    want = np.zeros((5, 6), np.float32)
    for k in range(24):
        exact = x[:, None, k].astype("f8") * w[None, :, k]
        want = (exact + want).astype(np.float32)
    return bool((found == want).all())


def elements(launcher: PtxLauncher) -> bool:
    x = np.random.default_rng(0).standard_normal((7, 334)).astype(np.float32)
    return bool((run_cuda(ReLU(), [x], {}, launcher)[0] == np.maximum(x, 0)).all())


def elements_beyond_4_gib(launcher: PtxLauncher) -> bool:
    """The last block of so many that a place takes more than 32 bits; the rest is not touched."""
    try:
        x, y = np.zeros(LARGE, np.float32), np.zeros(LARGE, np.float32)
    except MemoryError:
        pytest.skip("no 8 GiB of addresses, of which 20 KiB are used")
    x[-1000:] = np.arange(1000) - 500
    CUDA.run(ReLU(), launcher, [x], [y], np.zeros(0, np.uint8), {})
    return bool((y[-1000:] == np.maximum(x[-1000:], 0)).all())


CASES: dict[str, Callable[[PtxLauncher], bool]] = {
    "tensor cores": lambda launcher: convolution("tf32", launcher),
    "few channels": lambda launcher: convolution("tf32", launcher, FEW),
    "tensor cores, rounding": rounding, "tiled": lambda launcher: convolution("tiled", launcher),
    "loss": loss, "product": product, "elements": elements,
    "elements beyond 4 GiB": elements_beyond_4_gib,
}  # fmt: skip


def launch(case: str, edit=None) -> bool:
    """Whether the result is right."""
    large = "4 GiB" in case
    return CASES[case](PtxLauncher(edit=edit, last_blocks=1 if large else None, watched=not large))


@pytest.mark.slow  # `unit/cuda/test_ptx_samples.py` runs them, too
@pytest.mark.parametrize("case", CASES)
def test_the_kernels_as_they_are_pass(case):
    assert launch(case)


@pytest.mark.parametrize("name", quick([*BUGS], *range(0, len(BUGS), 9)))
def test_a_bug_is_named(name):
    bug, changed = BUGS[name], []

    def edit(kernel, text):
        if kernel.name != bug.kernel:
            return text
        changed.append(bug.edit(text))
        return changed[-1]

    try:
        said = "right" if launch(bug.case, edit) else "wrong result"
    except AssertionError as error:
        said = f"{type(error).__name__}: {error}".replace("\n", " ")
    assert changed, f"{bug.kernel} was not launched"
    assert re.search(bug.said, said), said
