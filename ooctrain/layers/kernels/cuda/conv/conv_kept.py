"""What a block of `conv_gemm.py` computes once and looks up again in every step.

In: numbers of pixels or of terms. Out: words of shared memory, and tuples read back from them. The
one idea: 64 sums, a step's sixteen factors and the next step's eight fill a thread's registers.
Where its pixel (or its term) lies is a few numbers that never change and are needed for a moment in
each step; in registers they would spill sums to memory. So one thread writes them to shared memory,
and after a barrier every thread that fetches reads them back. Read next: `conv_fetch.py`.
"""

from __future__ import annotations

from ooctrain.layers.kernels.cuda.conv.conv_address import (
    OUTSIDE,
    pixel_place,
    target_offset,
    term_shift,
)
from ooctrain.layers.kernels.cuda.conv.conv_plan import PIXELS
from ooctrain.layers.kernels.cuda.runtime.shim import device, int64, uint32


@device
def keep_pixel(places, targets, i, pixel, source, target):
    """Notes where pixel i of the block is read from, and where its results go."""
    rows, columns, offsets = places
    rows[i], columns[i], offsets[i] = pixel_place(pixel, source, target)
    targets[i] = target_offset(pixel, target) if pixel < uint32(target[PIXELS]) else int64(OUTSIDE)


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
