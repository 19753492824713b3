"""Values that a block of `conv_gemm.py` computes once and looks up again in every step.

They are stored for pixels or terms as words of shared memory, and read back as tuples. Where a term
of the sums lies relative to a pixel takes two divisions and a dozen products to find, is the same
for all pixels, and is needed for a moment in each step. So each thread of a block computes it for
one term, and after a barrier every thread that fetches reads it back. Keeping it in registers would
spill sums to memory, because a thread's registers are filled by its 64 sums, a step's sixteen
factors and the next step's eight. Read next: `conv_fetch.py`.
"""

from __future__ import annotations

from ooctrain.layers.kernels.cuda.conv.conv_address import (
    NOWHERE,
    OUTSIDE,
    source_place,
    target_offset,
    term_shift,
    term_weight,
)
from ooctrain.layers.kernels.cuda.conv.conv_plan import PIXELS
from ooctrain.layers.kernels.cuda.conv.tile_product import THREADS
from ooctrain.layers.kernels.cuda.runtime.shim import device, int32, int64, uint32


@device
def keep_target(targets, i, pixel, target):
    """Notes where the results of pixel i of the block go."""
    targets[i] = target_offset(pixel, target) if pixel < uint32(target[PIXELS]) else int64(OUTSIDE)


@device
def keep_place(places, i, pixel, image, source):
    """Notes where the first tap of an output pixel reads; NOWHERE from the end of the sums on."""
    (rows, columns, offsets), (end, image_rows, image_columns) = places, image
    exists = pixel < end
    existing = pixel if exists else uint32(0)
    row, columns[i], offsets[i] = source_place(existing, image_rows, image_columns, source)
    rows[i] = row if exists else int32(NOWHERE)


@device
def kept_place(places, i):
    """`source_place` of the pixel that was noted there."""
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


@device
def keep_weighed_term(terms, i, term, first_channel, source, taps):
    """`keep_term`, and how far the term's weight lies from a filter's first."""
    places, distances = terms
    down, right, distances[i] = term_shift(term, first_channel, source, taps)
    places[i], places[uint32(i + uint32(THREADS))] = down, right
    places[uint32(i + uint32(2 * THREADS))] = term_weight(term, taps)
