"""The copy engines' copy: bytes, one long call without the GIL.

In and out: uint8 arrays of equal length, any alignment. The one idea: a swapped variable is not read
again soon, so its copy should not push the working set of the kernels out of the caches. Read next:
`devices/cpu.py`, whose copy engines call it.
"""

from __future__ import annotations

from ooctrain.layers.kernels.cpu.jit import kernel


@kernel("void(u1[::1], u1[::1])")
def stream_copy(dst, src):
    """dst[:] = src[:], as much as dst holds."""
    src = src[: dst.size]
    for i in range(dst.size):
        dst[i] = src[i]
