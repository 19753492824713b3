"""What a block of `conv_gemm.py` works out once and looks up again in every step.

In: numbers of pixels or of terms. Out: words of shared memory, and tuples read back from them. The
one idea: 64 sums, a step's sixteen factors and the next step's eight fill a thread's registers;
where its pixel lies (or its term) is four numbers that never change, wanted for a moment in each
step, so one thread notes them and whoever fetches reads them back. In registers they would drive
sums out into memory. A barrier must stand between. Read next: `conv_fetch.py`.
"""

from __future__ import annotations

from ooctrain.layers.kernels.cuda.conv_address import (
    OUTSIDE,
    pixel_place,
    target_offset,
    term_shift,
)
from ooctrain.layers.kernels.cuda.shim import device, int64, uint32


@device
def keep_pixel(places, targets, i, pixel, source, target):
    """Notes where pixel i of the block is read from, and where its results go."""
    rows, columns, offsets = places
    rows[i], columns[i], offsets[i] = pixel_place(pixel, source, target)
    targets[i] = target_offset(pixel, target) if pixel < uint32(target[2]) else int64(OUTSIDE)


@device
def kept_place(places, i):
    """`pixel_place` of pixel i of the block."""
    rows, columns, offsets = places
    return rows[i], columns[i], offsets[i]


@device
def keep_term(shifts, i, term, first_channel, source, taps):
    """Notes how far term i of the block lies from a pixel's place."""
    rows, columns, distances = shifts
    rows[i], columns[i], distances[i] = term_shift(term, first_channel, source, taps)


@device
def kept_shift(shifts, i):
    """`term_shift` of term i of the block."""
    rows, columns, distances = shifts
    return rows[i], columns[i], distances[i]
