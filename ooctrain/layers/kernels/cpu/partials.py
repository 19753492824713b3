"""Adding up partial weight gradients.

In: the sums of at most four parts of a batch, one after another in a workspace. Out: their total.
The one idea: parts are fixed by the shape and added in their order, so the total has the same
bits whichever thread made which part. Read next: `conv_direct.py`.
"""

from __future__ import annotations

from ooctrain.layers.kernels.cpu.jit import kernel
from ooctrain.layers.kernels.cpu.simd_memory import vload, vstore
from ooctrain.layers.kernels.cpu.vector import VL


@kernel("void(f4[::1], i8, i8, i8, f4[::1], i8, i8, i8)")
def sum_partials(space, partials_at, stride, parts, total, lo, hi, thread):
    """Items: elements. total = the partial sums added in their order."""
    i = lo
    while i < hi:
        if i + VL <= hi:
            value = vload(space, partials_at + i)
            for part in range(1, parts):
                value = value + vload(space, partials_at + part * stride + i)
            vstore(total, i, value)
            i += VL
        else:
            scalar = space[partials_at + i]
            for part in range(1, parts):
                scalar += space[partials_at + part * stride + i]
            total[i] = scalar
            i += 1
