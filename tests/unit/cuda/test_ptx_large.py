"""Arrays of more than 4 GiB: the last blocks of a launch, run from the compiled text.

Only the widths of the compiler's indices decide here. The arrays take addresses but next to no
memory, since only their last pages are touched; the other blocks do not run.
"""

from __future__ import annotations

import numpy as np
import pytest
from doubles.ptx_machine import PtxLauncher

from ooctrain.layers.batch_norm import BatchNormApply
from ooctrain.layers.conv2d import Conv2d, Geometry
from ooctrain.layers.function import Tanh
from ooctrain.layers.kernels.cuda.runtime.shim import why_no_ptx
from ooctrain.layers.kernels.cuda.table import CUDA
from ooctrain.layers.pooling import MaxPool2d, PoolGeometry
from ooctrain.layers.relu import ReLU
from ooctrain.layers.resampling import Upsample
from ooctrain.step.op import Op, Spec, physical_shape
from ooctrain.testing.check_op import SCALARS

Shape = tuple[int, ...]
pytestmark = pytest.mark.skipif(bool(why_no_ptx()), reason=why_no_ptx())
#: of 16 channels and 8 x 8 pixels: 4 GiB and 4 MiB
IMAGES = 2**20 + 2**10
VECTOR = (16,)
POINTWISE, SQUARE = Geometry(), (16, 16, 1, 1)
#: (operation, channels and pixels of its input, its other inputs)
CASES: dict[str, tuple[Op, Shape, tuple[Shape, ...]]] = {
    "relu": (ReLU(), (16, 8, 8), ()),
    "tanh": (Tanh(), (16, 8, 8), ()),
    "max pool": (MaxPool2d(PoolGeometry((2, 2), (2, 2))), (16, 8, 8), ()),
    "upsample": (Upsample((8, 8)), (16, 4, 4), ()),
    "upsample, bilinear": (Upsample((8, 8), "bilinear"), (16, 4, 4), ()),
    "batch norm": (BatchNormApply(relu=True), (16, 8, 8), (VECTOR,) * 4),
    "conv naive": (Conv2d(POINTWISE, (1, 1), "naive"), (16, 8, 8), (SQUARE,)),
    "conv tiled": (Conv2d(POINTWISE, (1, 1), "tiled"), (16, 8, 8), (SQUARE,)),
    "conv implicit_gemm": (Conv2d(POINTWISE, (1, 1), "implicit_gemm"), (16, 8, 8), (SQUARE,)),
    "conv tf32": (Conv2d(POINTWISE, (1, 1), "tf32"), (16, 8, 8), (SQUARE,)),
}
QUICK = ("max pool", "conv tiled")


def outputs(op: Op, shapes: list[Shape], inputs: list[np.ndarray], launcher: PtxLauncher):
    """The physical outputs, of which what no block wrote is zero."""
    specs = [Spec(shape) for shape in shapes]
    found = [np.zeros(physical_shape(s.shape), s.dtype) for s in op.infer(*specs)]
    space = np.zeros(CUDA.workspace_bytes(op, specs, op.infer(*specs), 1), np.uint8)
    CUDA.run(op, launcher, inputs, found, space, SCALARS)
    return found


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n in QUICK else pytest.mark.slow) for n in CASES]
)
def test_the_last_block_of_an_array_beyond_4_gib(name):
    op, image, others = CASES[name]
    random = np.random.default_rng(0)
    last = random.integers(1, 9, physical_shape((1, *image))).astype(np.float32)
    rest = [random.integers(1, 4, physical_shape(shape)).astype(np.float32) for shape in others]
    try:
        x = np.zeros(physical_shape((IMAGES, *image)), np.float32)
        x[-1] = last[0]
        by_last = PtxLauncher(last_blocks=4, watched=False)
        large = outputs(op, [(IMAGES, *image), *others], [x, *rest], by_last)
    except MemoryError:
        pytest.skip("no 8 GiB of addresses")
    small = outputs(op, [(1, *image), *others], [last, *rest], PtxLauncher())
    assert max(array.nbytes for array in (x, *large)) > 2**32
    for few, many in zip(small, large, strict=True):
        written = many[-1] != 0
        assert written.any()
        np.testing.assert_array_equal(many[-1][written], few[0][written])
