"""Images whose pixels come from other places, on the cpu: enlarged, reduced, or mirrored.

Arrays are NHWC. The index of an output pixel determines, by a few operations, which pixels it reads
and with what weights, so there are no tables. Gradients *gather* over all outputs that may read an
input, with weight 0 for those that do not, so no two threads write the same row. Read next:
`losses.py`.
"""

from __future__ import annotations

import math

import numpy as np

from ooctrain.layers.kernels.cpu.chunks import image_sizes, row_chunk
from ooctrain.layers.kernels.cpu.runtime.kernel_jit import inner, kernel
from ooctrain.layers.kernels.cpu.runtime.pool import ThreadPool
from ooctrain.layers.kernels.cpu.simd.simd import VL, vfma, vsplat
from ooctrain.layers.kernels.cpu.simd.simd_memory import vload_upto, vstore_upto
from ooctrain.layers.kernels.signature import B1, F4s, I8x3, I8x4, I8x5

# Enlarging or reducing x (N, H, W, C) to y (N, OH, OW, C): nearest pixel, or bilinear.

#: First row of x, rows of all x, first row of y, rows of all y; (): x and y are whole.
Place = tuple[int, ...]


@inner
def _position(o, size, out, corners):
    """Where output `o` lies among the inputs: half-pixel centres, or corner on corner."""
    if corners:
        return o * ((size - 1) / (out - 1)) if out > 1 else 0.0
    return max(0.0, (o + 0.5) * (size / out) - 0.5)


@inner
def _weight(o, i, size, out, corners):
    """How much of input `i` is in output `o`."""
    at = _position(o, size, out, corners)
    lower = min(int(at), size - 1)
    share = at - lower
    weight = 0.0
    if lower == i:
        weight += 1.0 - share
    if min(lower + 1, size - 1) == i:
        weight += share
    return np.float32(weight)


@inner
def _readers(i, size, out, corners):
    """(first, last + 1) of a range that contains every output which reads input `i`.

    These are the outputs that `_position` puts between i - 1 and i + 1, and perhaps some more,
    whose `_weight` is 0.
    """
    if corners:
        scale = (out - 1) / (size - 1) if size > 1 and out > 1 else float(out)
        return max(0, math.floor((i - 1) * scale)), min(out, math.ceil((i + 1) * scale) + 1)
    scale = out / size
    first = math.floor((i - 0.5) * scale - 0.5)
    return max(0, first), min(out, math.ceil((i + 1.5) * scale - 0.5) + 1)


@kernel
def _nearest(x: F4s, y: F4s, sizes: I8x5, place: I8x4, lo, hi, thread):
    """Items are output rows (n, oh)."""
    height, width, rows, columns, channels = sizes
    before, all_height, after, all_rows = place
    for item in range(lo, hi):
        n, h = item // rows, (after + item % rows) * all_height // all_rows - before
        for ow in range(columns):
            i = ((n * height + h) * width + ow * width // columns) * channels
            j = (item * columns + ow) * channels
            for c in range(channels):
                y[j + c] = x[i + c]


@kernel
def _nearest_grad(dy: F4s, dx: F4s, sizes: I8x5, place: I8x4, lo, hi, thread):
    """Items are input rows (n, h).

    Row h is read by the output rows ceil(h OH / H) to ceil((h + 1) OH / H) - 1; so for columns.
    """
    height, width, rows, columns, channels = sizes
    before, all_height, after, all_rows = place
    for item in range(lo, hi):
        n, h = item // height, before + item % height
        oh0 = max(-(-h * all_rows // all_height), after)
        oh1 = min(-(-(h + 1) * all_rows // all_height), after + rows)
        for w in range(width):
            ow0, ow1 = -(-w * columns // width), -(-(w + 1) * columns // width)
            j = (item * width + w) * channels
            for c in range(0, channels, VL):
                total, lanes = vsplat(np.float32(0)), channels - c
                for oh in range(oh0, oh1):
                    for ow in range(ow0, ow1):
                        i = ((n * rows + oh - after) * columns + ow) * channels + c
                        total = total + vload_upto(dy, i, lanes)
                vstore_upto(dx, j + c, total, lanes)


@kernel
def _bilinear(x: F4s, y: F4s, sizes: I8x5, place: I8x4, corners: B1, lo, hi, thread):
    """Items are output rows (n, oh)."""
    height, width, rows, columns, channels = sizes
    before, all_height, after, all_rows = place
    for item in range(lo, hi):
        n, at_h = item // rows, _position(after + item % rows, all_height, all_rows, corners)
        h0 = min(int(at_h), all_height - 1)
        h1, below = min(h0 + 1, all_height - 1), np.float32(at_h - h0)
        row0, row1 = (n * height + h0 - before) * width, (n * height + h1 - before) * width
        for ow in range(columns):
            at_w = _position(ow, width, columns, corners)
            w0 = min(int(at_w), width - 1)
            w1, right = min(w0 + 1, width - 1), np.float32(at_w - w0)
            left, above = np.float32(1) - right, np.float32(1) - below
            f00, f01 = vsplat(above * left), vsplat(above * right)
            f10, f11 = vsplat(below * left), vsplat(below * right)
            j = (item * columns + ow) * channels
            for c in range(0, channels, VL):
                lanes = channels - c
                v = f00 * vload_upto(x, (row0 + w0) * channels + c, lanes)
                v = vfma(f01, vload_upto(x, (row0 + w1) * channels + c, lanes), v)
                v = vfma(f10, vload_upto(x, (row1 + w0) * channels + c, lanes), v)
                v = vfma(f11, vload_upto(x, (row1 + w1) * channels + c, lanes), v)
                vstore_upto(y, j + c, v, lanes)


@kernel
def _bilinear_grad(dy: F4s, dx: F4s, sizes: I8x5, place: I8x4, corners: B1, lo, hi, thread):
    """Items are input rows (n, h)."""
    height, width, rows, columns, channels = sizes
    before, all_height, after, all_rows = place
    for item in range(lo, hi):
        n, h = item // height, before + item % height
        oh0, oh1 = _readers(h, all_height, all_rows, corners)
        oh0, oh1 = max(oh0, after), min(oh1, after + rows)
        for w in range(width):
            ow0, ow1 = _readers(w, width, columns, corners)
            j = (item * width + w) * channels
            for c in range(0, channels, VL):
                total, lanes = vsplat(np.float32(0)), channels - c
                for oh in range(oh0, oh1):
                    down = _weight(oh, h, all_height, all_rows, corners)
                    for ow in range(ow0, ow1):
                        weight = down * _weight(ow, w, width, columns, corners)
                        if weight != 0:
                            i = ((n * rows + oh - after) * columns + ow) * channels + c
                            total = vfma(vsplat(weight), vload_upto(dy, i, lanes), total)
                vstore_upto(dx, j + c, total, lanes)


def upsample(
    pool: ThreadPool, x: np.ndarray, y: np.ndarray, mode: str, corners: bool, place: Place = ()
) -> None:
    """y = x in another size: the nearest pixel, y[n, i, j] = x[n, floor(i H / OH), floor(j W /
    OW)], or the four nearest ones, interpolated bilinearly.

    Args:
        mode: "nearest" or "bilinear".
        corners: whether the centres of the corner pixels of x and y coincide (torch's
            `align_corners`); else the borders of the images do.
        place: where rows of larger images lie; see `layers/resampling.py`.
    """
    whole = place or (0, x.shape[1], 0, y.shape[1])
    if mode == "nearest":
        _run(pool, _nearest, x, y, y, image_sizes(x, y), whole)
    else:
        _run(pool, _bilinear, x, y, y, image_sizes(x, y), whole, corners)


def upsample_grad(
    pool: ThreadPool, dy: np.ndarray, dx: np.ndarray, mode: str, corners: bool, place: Place = ()
) -> None:
    """dx = for each pixel the weighted sum over all outputs that read it."""
    whole = place or (0, dx.shape[1], 0, dy.shape[1])
    if mode == "nearest":
        _run(pool, _nearest_grad, dy, dx, dx, image_sizes(dx, dy), whole)
    else:
        _run(pool, _bilinear_grad, dy, dx, dx, image_sizes(dx, dy), whole, corners)


def _run(pool, function, source, target, rows_of, *settings) -> None:
    rows = rows_of.shape[0] * rows_of.shape[1]
    chunk = row_chunk(rows, max(source.size, target.size) // rows)
    pool.run(function, rows, chunk, source, target, *settings)


# Reflection padding: borders in which an image is mirrored at its outermost pixels. In the gradient
# an input row sums the output rows that are copies of it, at most three, in ascending order.

Sides = tuple[int, int, int, int]


@inner
def _mirror(i, extent):
    """The index in [0, extent) whose pixel reflection shows at `i`, at most extent - 1 outside."""
    if i < 0:
        return -i
    return 2 * (extent - 1) - i if i >= extent else i


@inner
def _add_pixel(source, i, target, j, channels):
    """target[j : j + channels] += source[i : i + channels]."""
    for c in range(channels):
        target[j + c] += source[i + c]


@kernel
def _reflect(x: F4s, y: F4s, sizes: I8x3, sides: I8x4, lo, hi, thread):
    """Items are output rows (n, oh)."""
    height, width, channels = sizes
    top, bottom, left, right = sides
    tall, wide = top + height + bottom, left + width + right
    for item in range(lo, hi):
        n, h = item // tall, _mirror(item % tall - top, height)
        row, out = (n * height + h) * width * channels, item * wide * channels
        for ow in range(wide):
            i, j = row + _mirror(ow - left, width) * channels, out + ow * channels
            for c in range(channels):
                y[j + c] = x[i + c]


@kernel
def _reflect_grad(dy: F4s, dx: F4s, sizes: I8x3, sides: I8x4, lo, hi, thread):
    """Items are input rows (n, h); copies of h: the mirror image above, itself, the one below."""
    height, width, channels = sizes
    top, bottom, left, right = sides
    tall, wide = top + height + bottom, left + width + right
    for item in range(lo, hi):
        n, h = item // height, item % height
        row = item * width * channels
        dx[row : row + width * channels] = 0.0
        for copy in range(3):
            oh = top + (-h if copy == 0 else h if copy == 1 else 2 * (height - 1) - h)
            if oh < 0 or oh >= tall or (copy != 1 and oh == top + h):
                continue
            source = (n * tall + oh) * wide * channels
            for ow in range(wide):
                j = row + _mirror(ow - left, width) * channels
                _add_pixel(dy, source + ow * channels, dx, j, channels)


def reflect(pool: ThreadPool, x: np.ndarray, y: np.ndarray, sides: Sides) -> None:
    """y = x with mirrored borders of (top, bottom, left, right) pixels, each less than the image's
    extent.
    """
    rows = y.shape[0] * y.shape[1]
    chunk = row_chunk(rows, y.shape[2] * y.shape[3])
    pool.run(_reflect, rows, chunk, x, y, x.shape[1:], sides)


def reflect_grad(pool: ThreadPool, dy: np.ndarray, dx: np.ndarray, sides: Sides) -> None:
    """dx = for each pixel the sum of dy over all its copies."""
    rows = dx.shape[0] * dx.shape[1]
    chunk = row_chunk(rows, dx.shape[2] * dx.shape[3])
    pool.run(_reflect_grad, rows, chunk, dy, dx, dx.shape[1:], sides)
