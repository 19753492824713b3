"""How the products of `conv_gemm.py` load their factors, four at a time.

Places and tables of terms give tuples of four float32, with zeros outside the image or the sum;
results are stored in fours too. Where the number of channels is a multiple of four, four terms of a
sum are contiguous: they are one 128-bit load, with one entry in the table of terms. Otherwise (the
three colours of an image) each term may belong to another tap, so it has an entry of its own and is
loaded by itself. The rest of a kernel is the same for both. One to three channels can also be
padded to four with zeros. Read next: `conv_gemm.py`.
"""

from __future__ import annotations

import numpy as np

from ooctrain.layers.kernels.cuda.conv.conv_address import (
    NOWHERE,
    OUTSIDE,
    shifted,
    source_place,
    target_offset,
    term_shift,
    term_weight,
)
from ooctrain.layers.kernels.cuda.conv.conv_blocking import PIXELS, SOURCE_C
from ooctrain.layers.kernels.cuda.conv.tile_product import THREADS
from ooctrain.layers.kernels.cuda.runtime.intrinsics import ld4, st4
from ooctrain.layers.kernels.cuda.runtime.shim import device, int32, int64, uint32, uint64

# Values that a block computes once, keeps in shared memory, and looks up again in every step. Where
# a term of the sums lies relative to a pixel takes two divisions and a dozen products to find, and
# is the same for all pixels. So each thread of a block computes it for one term, and after a
# barrier every thread that fetches reads it back. Registers have no space for it: they are filled
# by a thread's 64 sums, a step's sixteen factors and the next step's eight.


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


# Loads and stores.

ZERO = np.float32(0)


@device
def term_in_source(terms, i, place, source):
    """(whether a pixel has what a term reads, where it lies), by entry i of the table of terms.

    `i` is a uint64, so that constants added to it cost nothing.
    """
    places, distances = terms
    shift = places[i], places[i + uint64(THREADS)], distances[i]
    return shifted(place, shift, source)


@device
def source_quad(x, place, terms, quad, source):
    """Four terms of a pixel, in one load; entry `quad` of the table of terms is theirs."""
    inside, offset = term_in_source(terms, uint64(quad), place, source)
    a = (ZERO, ZERO, ZERO, ZERO)
    if inside:
        a = ld4(x, offset)
    return a


@device
def filter_quad(w, start, terms, quad):
    """Four terms of a filter, in one load; zeros after the last term."""
    weight = terms[0][uint64(quad) + uint64(2 * THREADS)]
    b = (ZERO, ZERO, ZERO, ZERO)
    if weight >= 0:
        b = ld4(w, uint32(start + weight))
    return b


@device
def source_single(x, place, terms, term, source):
    """One term of a pixel."""
    inside, offset = term_in_source(terms, term, place, source)
    # Unsigned, since Numba counts from the end below 0, which takes nine instructions.
    return x[uint64(offset)] if inside else ZERO


@device
def filter_single(w, start, terms, term):
    """One term of a filter."""
    weight = terms[0][term + uint64(2 * THREADS)]
    return w[uint32(start + weight)] if weight >= 0 else ZERO


@device
def source_singles(x, place, terms, quad, source):
    """As `source_quad`, for any number of channels: each term has an entry of its own."""
    term = uint64(quad) * uint64(4)
    return (
        source_single(x, place, terms, term, source),
        source_single(x, place, terms, term + uint64(1), source),
        source_single(x, place, terms, term + uint64(2), source),
        source_single(x, place, terms, term + uint64(3), source),
    )


@device
def filter_singles(w, start, terms, quad):
    """As `filter_quad`, for any number of channels."""
    term = uint64(quad) * uint64(4)
    return (
        filter_single(w, start, terms, term),
        filter_single(w, start, terms, term + uint64(1)),
        filter_single(w, start, terms, term + uint64(2)),
        filter_single(w, start, terms, term + uint64(3)),
    )


@device
def pixel_quad(x, place, shifts, term, source):
    """Four terms of the block, from `term` on, of an output pixel, in one load."""
    inside, offset = shifted(place, kept_shift(shifts, term), source)
    a = (ZERO, ZERO, ZERO, ZERO)
    if inside:
        a = ld4(x, offset)
    return a


@device
def term_of_pixel(x, place, shift, source):
    """What a term of the sums reads for an output pixel."""
    inside, offset = shifted(place, shift, source)
    return x[uint64(offset)] if inside else ZERO


@device
def pixel_singles(x, place, shifts, term, source):
    """As `pixel_quad`, for any number of channels."""
    return (
        term_of_pixel(x, place, kept_shift(shifts, term), source),
        term_of_pixel(x, place, kept_shift(shifts, uint32(term + uint32(1))), source),
        term_of_pixel(x, place, kept_shift(shifts, uint32(term + uint32(2))), source),
        term_of_pixel(x, place, kept_shift(shifts, uint32(term + uint32(3))), source),
    )


@device
def pixel_few(x, place, shifts, term, source):
    """All channels of a tap of an output pixel, at most three, and zeros up to four."""
    inside, offset = shifted(place, kept_shift(shifts, term), source)
    return few_words(x, uint64(offset), source[SOURCE_C] if inside else int32(0))


@device
def filters_quad(dy, pixel, end, filters):
    """Four filters of an output pixel, in one load; zeros where the sums have ended.

    `filters` is (filters of dy, the first one, how many there are from there on).
    """
    all_filters, first_filter, left = filters
    b = (ZERO, ZERO, ZERO, ZERO)
    if pixel < end and left > 0:
        b = ld4(dy, int64(pixel) * all_filters + first_filter)
    return b


@device
def filters_singles(dy, pixel, end, filters):
    """As `filters_quad`, for any number of filters."""
    all_filters, first_filter, left = filters
    count = left if pixel < end else int32(0)
    return load_upto(dy, int64(pixel) * all_filters + first_filter, count)


@device
def few_words(x, at, count):
    """x[at : at + count], for a uint64 and up to three words, as four of which the rest are zeros.

    No memory is read for those.
    """
    return (
        x[at] if count > 0 else ZERO,
        x[at + uint64(1)] if count > 1 else ZERO,
        x[at + uint64(2)] if count > 2 else ZERO,
        ZERO,
    )


@device
def load_upto(x, offset, count):
    """x[offset : offset + 4], zeros from `count` on."""
    return (
        x[offset] if count > 0 else ZERO,
        x[offset + 1] if count > 1 else ZERO,
        x[offset + 2] if count > 2 else ZERO,
        x[offset + 3] if count > 3 else ZERO,
    )


@device
def store_upto(y, offset, values, count, in_fours):
    """y[offset : offset + count] = values, up to four; in one store if all offsets allow it."""
    if in_fours:
        if count > 0:
            st4(y, offset, values)
    else:
        if count > 0:
            y[offset] = values[0]
        if count > 1:
            y[offset + 1] = values[1]
        if count > 2:
            y[offset + 2] = values[2]
        if count > 3:
            y[offset + 3] = values[3]
