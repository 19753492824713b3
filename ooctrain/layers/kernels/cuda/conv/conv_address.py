"""Where the elements of a convolution lie: the address arithmetic of all its kernels.

Numbers of pixels, taps and channels, and the tuples of `conv_blocking.py`, give offsets. A pixel's
own offset may need 64 bits (an image of 20,480 x 20,480 x 64 has 2.7e10 elements) but is computed
once for a thread; the offset of a tap relative to it fits into 32 bits. Divisions use uint32, which
costs a sixth of int64. Every sum is enclosed in `int32(...)` or `uint32(...)`, because Numba would
widen it to 64 bits. Read next: `conv_naive.py`.
"""

from __future__ import annotations

from ooctrain.layers.kernels.cuda.conv.conv_blocking import (
    COLUMNS,
    FILTER_SIZE,
    INNER,
    PIXELS,
    ROWS,
    SOURCE_C,
    SOURCE_H,
    SOURCE_W,
    SPACING_H,
    SPACING_W,
    TAP_COUNT,
)
from ooctrain.layers.kernels.cuda.runtime.shim import device, int32, int64, smaller, uint32

#: the offset of what lies in the padding
OUTSIDE = -1
#: a row so far down that no tap leads back into the image: of pixels and terms that do not exist
NOWHERE = 2**30


@device
def terms_of(taps):
    """How many terms each sum has: taps times channels."""
    return int32(taps[TAP_COUNT] * taps[INNER])


@device
def pixel_of(pixel, rows, columns):
    """(image, i, j) of a pixel counted over images, rows and columns."""
    line = uint32(pixel // uint32(columns))
    image = uint32(line // uint32(rows))
    return int32(image), int32(line - image * uint32(rows)), int32(pixel - line * uint32(columns))


@device
def source_place(pixel, rows, columns, source):
    """(row, column, offset) of what the first tap of an output pixel reads; it may lie outside."""
    h, w, c, step_h, step_w, origin_h, origin_w, _, _ = source
    image, i, j = pixel_of(pixel, rows, columns)
    row, column = int32(i * step_h + origin_h), int32(j * step_w + origin_w)
    return row, column, ((int64(image) * h + row) * w + column) * int64(c)


@device
def pixel_place(pixel, source, target):
    """`source_place` of a pixel that is written; NOWHERE if there is no such pixel."""
    exists = pixel < uint32(target[PIXELS])
    existing = pixel if exists else uint32(0)
    row, column, offset = source_place(existing, target[ROWS], target[COLUMNS], source)
    return row if exists else int32(NOWHERE), column, offset


@device
def tap_of(position, taps):
    """(tap row, tap column, channel) of a term of the sum; channels run fastest."""
    _, columns, _, _, _, _, _, _, inner = taps
    tap = uint32(position // uint32(inner))
    tap_row = uint32(tap // uint32(columns))
    channel = int32(position - tap * uint32(inner))
    return int32(tap_row), int32(tap - tap_row * uint32(columns)), channel


@device
def tap_shift(tap_row, tap_column, channel, source):
    """(rows, columns, elements) from a pixel's place to what a tap reads."""
    down, right = int32(tap_row * source[SPACING_H]), int32(tap_column * source[SPACING_W])
    return down, right, (int64(down) * source[SOURCE_W] + right) * source[SOURCE_C] + channel


@device
def term_shift(term, first_channel, source, taps):
    """`tap_shift` of a term of the sum; NOWHERE after the last."""
    exists = term < uint32(terms_of(taps))
    tap_row, tap_column, channel = tap_of(term if exists else uint32(0), taps)
    down, right, distance = tap_shift(tap_row, tap_column, int32(first_channel + channel), source)
    return down if exists else int32(NOWHERE), right, distance


@device
def term_weight(term, taps):
    """How far the weight of a term of the sum lies from its filter's first; OUTSIDE after the
    last term."""
    exists = term < uint32(terms_of(taps))
    tap_row, tap_column, channel = tap_of(term if exists else uint32(0), taps)
    return filter_offset(int32(0), tap_row, tap_column, channel, taps) if exists else int32(OUTSIDE)


@device
def inside_source(row, column, source):
    """Whether an image has such a pixel."""
    # A negative number is a large unsigned one, so one comparison tests both ends.
    in_rows = uint32(row) < uint32(source[SOURCE_H])
    return in_rows and uint32(column) < uint32(source[SOURCE_W])


@device
def shifted(place, shift, source):
    """(whether an image has what lies at a shift from a place, its offset)."""
    (row, column, offset), (down, right, distance) = place, shift
    return inside_source(row + down, column + right, source), offset + distance


@device
def shifted_offset(place, shift, source):
    """Offset of what lies at a shift from a place; OUTSIDE in the padding."""
    inside, offset = shifted(place, shift, source)
    return offset if inside else int64(OUTSIDE)


@device
def source_offset(place, tap_row, tap_column, channel, source):
    """Offset of what a tap of an output pixel reads; OUTSIDE in the padding."""
    return shifted_offset(place, tap_shift(tap_row, tap_column, channel, source), source)


@device
def filter_offset(output, tap_row, tap_column, channel, taps):
    """Offset of an output channel's weight at a tap."""
    _, _, first_h, first_w, step_h, step_w, filter_w, filter_size, inner = taps
    place = int32((first_h + tap_row * step_h) * filter_w + first_w + tap_column * step_w)
    return int32((output * filter_size + place) * inner + channel)


@device
def filter_start(group, column, outer, taps):
    """Offset of a filter's first weight; beyond the group's last filter, of that one's."""
    output = int32(group * outer + smaller(column, int32(outer - 1)))
    return int32(output * int32(taps[FILTER_SIZE] * taps[INNER]))


@device
def target_offset(pixel, target):
    """Offset of the first channel of a pixel that is written."""
    rows, columns, _, h, w, c, first_h, first_w, step_h, step_w, _ = target
    image, i, j = pixel_of(pixel, rows, columns)
    row, column = int32(first_h + i * step_h), int32(first_w + j * step_w)
    return ((int64(image) * h + row) * w + column) * int64(c)
