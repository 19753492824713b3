"""How the products of `conv_gemm.py` load their factors and store their results, four at a time.

In: places and terms. Out: tuples of four float32, zero where there is nothing. The one idea: where
the number of channels is a multiple of four, four terms of a sum lie side by side and are one
128-bit load; else (the three colours of an image) each term may belong to another tap and is loaded
by itself. The rest of a kernel is the same for both. A `line` describes what a thread loads for:
(place of its pixel, first channel, its output channel, whether there is one). Read next:
`conv_gemm.py`.
"""

from __future__ import annotations

import numpy as np

from ooctrain.layers.kernels.cuda.conv.conv_address import (
    filter_offset,
    shifted_offset,
    source_offset,
    source_place,
    tap_of,
    terms_of,
)
from ooctrain.layers.kernels.cuda.conv.conv_kept import kept_shift
from ooctrain.layers.kernels.cuda.runtime.intrinsics import ld4, st4
from ooctrain.layers.kernels.cuda.runtime.shim import device, int32, int64, uint32

ZERO = np.float32(0)


@device
def fetch_quads(x, w, line, term, source, taps):
    """Four terms of a pixel and of an output channel from `term`, in one load each."""
    place, first_channel, output, has_output = line
    a, b = (ZERO, ZERO, ZERO, ZERO), (ZERO, ZERO, ZERO, ZERO)
    if term < uint32(terms_of(taps)):
        tap_row, tap_column, channel = tap_of(term, taps)
        offset = source_offset(place, tap_row, tap_column, int32(first_channel + channel), source)
        if offset >= 0:
            a = ld4(x, offset)
        if has_output:
            b = ld4(w, filter_offset(output, tap_row, tap_column, channel, taps))
    return a, b


@device
def fetch_single(x, w, line, term, source, taps):
    """One term of a pixel and of an output channel."""
    place, first_channel, output, has_output = line
    a, b = ZERO, ZERO
    if term < uint32(terms_of(taps)):
        tap_row, tap_column, channel = tap_of(term, taps)
        offset = source_offset(place, tap_row, tap_column, int32(first_channel + channel), source)
        if offset >= 0:
            a = x[offset]
        if has_output:
            b = w[filter_offset(output, tap_row, tap_column, channel, taps)]
    return a, b


@device
def fetch_singles(x, w, line, term, source, taps):
    """As `fetch_quads`, for any number of channels: each term by itself."""
    a0, b0 = fetch_single(x, w, line, term, source, taps)
    a1, b1 = fetch_single(x, w, line, uint32(term + uint32(1)), source, taps)
    a2, b2 = fetch_single(x, w, line, uint32(term + uint32(2)), source, taps)
    a3, b3 = fetch_single(x, w, line, uint32(term + uint32(3)), source, taps)
    return (a0, a1, a2, a3), (b0, b1, b2, b3)


@device
def fetch_pixel_quads(x, dy, pixel, image, shifts, term, filters, source):
    """Four terms, from `term` of the block, and four filters of one output pixel, in one load each.

    `image` is (pixel that ends the sums, rows, columns), `filters` is (filters of dy, the first
    one, how many there are from there on).
    """
    a, b = (ZERO, ZERO, ZERO, ZERO), (ZERO, ZERO, ZERO, ZERO)
    (end, rows, columns), (all_filters, first_filter, filters_left) = image, filters
    if pixel < end:
        place = source_place(pixel, rows, columns, source)
        offset = shifted_offset(place, kept_shift(shifts, term), source)
        if offset >= 0:
            a = ld4(x, offset)
        if filters_left > 0:
            b = ld4(dy, int64(pixel) * all_filters + first_filter)
    return a, b


@device
def term_of_pixel(x, place, shift, source):
    """What a term of the sums reads for an output pixel."""
    offset = shifted_offset(place, shift, source)
    return x[offset] if offset >= 0 else ZERO


@device
def fetch_pixel_singles(x, dy, pixel, image, shifts, term, filters, source):
    """As `fetch_pixel_quads`, for any number of channels and filters."""
    a, b = (ZERO, ZERO, ZERO, ZERO), (ZERO, ZERO, ZERO, ZERO)
    (end, rows, columns), (all_filters, first_filter, filters_left) = image, filters
    if pixel < end:
        b = load_upto(dy, int64(pixel) * all_filters + first_filter, filters_left)
        place = source_place(pixel, rows, columns, source)
        a = (
            term_of_pixel(x, place, kept_shift(shifts, term), source),
            term_of_pixel(x, place, kept_shift(shifts, uint32(term + uint32(1))), source),
            term_of_pixel(x, place, kept_shift(shifts, uint32(term + uint32(2))), source),
            term_of_pixel(x, place, kept_shift(shifts, uint32(term + uint32(3))), source),
        )
    return a, b


@device
def store_column(tile, at, stride, values):
    """tile[at + lane * stride] = values[lane]: four terms of one line become a column."""
    tile[at] = values[0]
    tile[uint32(at + stride)] = values[1]
    tile[uint32(at + uint32(stride * uint32(2)))] = values[2]
    tile[uint32(at + uint32(stride * uint32(3)))] = values[3]


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
