"""Images whose pixels come from other places, on the GPU: enlarged, reduced, or mirrored.

The kernels map x (N, H, W, C) to y (N, OH, OW, C). Gradients *gather* over all outputs that may
read an input, with weight 0 for those that do not. Read next: `../cpu/resampling.py`.
"""

from __future__ import annotations

import numpy as np

from ooctrain.layers.kernels.cuda.image_rows import (
    F0,
    LANES,
    SMALL,
    THREADS,
    U0,
    U1,
    Array,
    lanes_of,
    load,
    pixel_of,
    place_of,
    row_blocks,
    row_start,
    scaled,
    sizes_of,
    store,
)
from ooctrain.layers.kernels.cuda.runtime.launcher import Launcher
from ooctrain.layers.kernels.cuda.runtime.shim import (
    cuda,
    device,
    float32,
    int32,
    kernel,
    larger,
    smaller,
    uint32,
    uint64,
)
from ooctrain.layers.kernels.signature import B1, U4, F4s, I4x3, I4x4, U4x4, U4x5

# Nearest pixel and bilinear. The position of an output pixel among the inputs is a fraction of
# whole numbers. So the pixel before it and the share of the pixel after it are a quotient and a
# remainder: exact without float64, even 20,000 pixels from the border.

F1 = np.float32(1)
U2, U3 = np.uint32(2), np.uint32(3)
#: First row of x, rows of all x, first row of y, rows of all y; (): x and y are whole.
Place = tuple[int, ...]


@device
def _divided(count, by):
    """(quotient, remainder / by), of a 64-bit count."""
    if count < uint64(SMALL) * uint64(SMALL):
        small = uint32(count)
        whole = uint32(small // by)
        return whole, float32(uint32(small - uint32(whole * by))) / float32(by)
    whole = uint32(count // uint64(by))
    return whole, float32(uint32(count - uint64(whole) * uint64(by))) / float32(by)


@device
def _position(o, size, out, corners):
    """Where output `o` lies among the inputs: (pixel before it, share of the pixel after it).

    Corner on corner: o (size - 1) / (out - 1). Half-pixel centres: ((2 o + 1) size - out) / (2
    out), at least 0.
    """
    if corners:
        return _divided(uint64(o) * uint64(uint32(size - U1)), larger(U1, uint32(out - U1)))
    count = uint64(uint32(U2 * o + U1)) * uint64(size)
    before = uint64(out)
    return _divided(count - before if count > before else uint64(0), uint32(U2 * out))


@device
def _weight(o, i, size, out, corners):
    """How much of input `i` is in output `o`."""
    lower, share = _position(o, size, out, corners)
    weight = F0
    if lower == i:
        weight += F1 - share
    if smaller(uint32(lower + U1), uint32(size - U1)) == i:
        weight += share
    return weight


@device
def _first_reader(i, size, out, corners):
    """First of a range that contains every output which reads input `i`."""
    if i == U0 or size == U1:
        return U0
    if corners:
        return scaled(uint32(i - U1), uint32(out - U1), uint32(size - U1), U0)
    return scaled(uint32(U2 * i - U1), out, uint32(U2 * size), U0)


@device
def _end_reader(i, size, out, corners):
    """One past the last output of that range."""
    if size == U1:
        return out
    if corners:
        last = scaled(uint32(i + U1), uint32(out - U1), uint32(size - U1), U0)
    else:
        last = scaled(uint32(U2 * i + U3), out, uint32(U2 * size), U0)
    return smaller(out, uint32(last + U1))


@kernel(threads=THREADS)
def _nearest(x: F4s, y: F4s, sizes: U4x5, rows_at: U4x4, lanes: U4):
    """A thread: some channels of an output pixel."""
    height, width, rows, columns, channels = sizes
    before, all_height, after, all_rows = rows_at
    row, place = uint32(cuda.blockIdx.x), place_of(cuda.blockIdx.y, cuda.threadIdx.x)
    n, oh, ow, c = pixel_of(row, place, rows, channels, lanes)
    if ow < columns:
        h = uint32(scaled(uint32(after + oh), all_height, all_rows, U0) - before)
        w = scaled(ow, width, columns, U0)
        source = row_start(uint32(n * height + h), width, channels) + uint32(w * channels + c)
        target = row_start(row, columns, channels) + uint32(ow * channels + c)
        store(y, target, load(x, source, lanes), lanes)


@kernel(threads=THREADS)
def _nearest_grad(dy: F4s, dx: F4s, sizes: U4x5, rows_at: U4x4, lanes: U4):
    """A thread: some channels of an input pixel.

    Row h is read by the output rows ceil(h OH / H) to ceil((h + 1) OH / H) - 1; so for columns.
    """
    height, width, rows, columns, channels = sizes
    before, all_height, after, all_rows = rows_at
    total = cuda.local.array(LANES, float32)
    row, place = uint32(cuda.blockIdx.x), place_of(cuda.blockIdx.y, cuda.threadIdx.x)
    n, h, w, c = pixel_of(row, place, height, channels, lanes)
    if w < width:
        at, less = uint32(before + h), uint32(all_height - U1)
        oh = larger(after, scaled(at, all_rows, all_height, less))
        oh_end = scaled(uint32(at + U1), all_rows, all_height, less)
        oh_end = smaller(uint32(after + rows), oh_end)
        ow_first = scaled(w, columns, width, uint32(width - U1))
        ow_end = scaled(uint32(w + U1), columns, width, uint32(width - U1))
        for lane in range(LANES):
            total[lane] = F0
        while oh < oh_end:
            start = row_start(uint32(n * rows + uint32(oh - after)), columns, channels)
            ow = ow_first
            while ow < ow_end:
                values = load(dy, start + uint32(ow * channels + c), lanes)
                for lane in range(LANES):
                    total[lane] += values[lane]
                ow = uint32(ow + U1)
            oh = uint32(oh + U1)
        store(dx, row_start(row, width, channels) + uint32(w * channels + c), total, lanes)


@kernel(threads=THREADS)
def _bilinear(x: F4s, y: F4s, sizes: U4x5, rows_at: U4x4, corners: B1, lanes: U4):
    """A thread: some channels of an output pixel, from the four pixels around it."""
    height, width, rows, columns, channels = sizes
    before, all_height, after, all_rows = rows_at
    total = cuda.local.array(LANES, float32)
    row, place = uint32(cuda.blockIdx.x), place_of(cuda.blockIdx.y, cuda.threadIdx.x)
    n, oh, ow, c = pixel_of(row, place, rows, channels, lanes)
    if ow < columns:
        h, below = _position(uint32(after + oh), all_height, all_rows, corners)
        w, right = _position(ow, width, columns, corners)
        h_after = uint32(smaller(uint32(h + U1), uint32(all_height - U1)) - before)
        h = uint32(h - before)
        w_after = smaller(uint32(w + U1), uint32(width - U1))
        above, left = F1 - below, F1 - right
        row0 = row_start(uint32(n * height + h), width, channels)
        row1 = row_start(uint32(n * height + h_after), width, channels)
        at0, at1 = uint32(w * channels + c), uint32(w_after * channels + c)
        v00, v01 = load(x, row0 + at0, lanes), load(x, row0 + at1, lanes)
        v10, v11 = load(x, row1 + at0, lanes), load(x, row1 + at1, lanes)
        for lane in range(LANES):
            upper = above * left * v00[lane] + above * right * v01[lane]
            total[lane] = upper + (below * left * v10[lane] + below * right * v11[lane])
        store(y, row_start(row, columns, channels) + uint32(ow * channels + c), total, lanes)


@kernel(threads=THREADS)
def _bilinear_grad(dy: F4s, dx: F4s, sizes: U4x5, rows_at: U4x4, corners: B1, lanes: U4):
    """A thread: some channels of an input pixel, over the outputs that may read it."""
    height, width, rows, columns, channels = sizes
    before, all_height, after, all_rows = rows_at
    total = cuda.local.array(LANES, float32)
    row, place = uint32(cuda.blockIdx.x), place_of(cuda.blockIdx.y, cuda.threadIdx.x)
    n, h, w, c = pixel_of(row, place, height, channels, lanes)
    if w < width:
        at = uint32(before + h)
        oh = larger(after, _first_reader(at, all_height, all_rows, corners))
        oh_end = smaller(uint32(after + rows), _end_reader(at, all_height, all_rows, corners))
        ow_first = _first_reader(w, width, columns, corners)
        ow_end = _end_reader(w, width, columns, corners)
        for lane in range(LANES):
            total[lane] = F0
        while oh < oh_end:
            down = _weight(oh, at, all_height, all_rows, corners)
            start = row_start(uint32(n * rows + uint32(oh - after)), columns, channels)
            ow = ow_first if down > F0 else ow_end
            while ow < ow_end:
                weight = down * _weight(ow, w, width, columns, corners)
                if weight > F0:
                    values = load(dy, start + uint32(ow * channels + c), lanes)
                    for lane in range(LANES):
                        total[lane] += weight * values[lane]
                ow = uint32(ow + U1)
            oh = uint32(oh + U1)
        store(dx, row_start(row, width, channels) + uint32(w * channels + c), total, lanes)


def upsample(
    launcher: Launcher, x: Array, y: Array, mode: str, corners: bool, place: Place = ()
) -> None:
    """y = x in another size: the nearest pixel, y[n, i, j] = x[n, floor(i H / OH), floor(j W /
    OW)], or the four nearest ones, interpolated bilinearly.

    Args:
        mode: "nearest" or "bilinear".
        corners: whether the centres of the corner pixels of x and y coincide (torch's
            `align_corners`); else the borders of the images do.
        place: where rows of larger images lie; see `layers/resampling.py`.
    """
    sizes, lanes = sizes_of(x, y), lanes_of(x.shape[3])
    whole = place or (0, x.shape[1], 0, y.shape[1])
    if mode == "nearest":
        launcher.launch(_nearest, row_blocks(y), x, y, sizes, whole, lanes)
    else:
        launcher.launch(_bilinear, row_blocks(y), x, y, sizes, whole, corners, lanes)


def upsample_grad(
    launcher: Launcher, dy: Array, dx: Array, mode: str, corners: bool, place: Place = ()
) -> None:
    """dx = for each pixel the weighted sum over all outputs that read it."""
    sizes, lanes = sizes_of(dx, dy), lanes_of(dx.shape[3])
    whole = place or (0, dx.shape[1], 0, dy.shape[1])
    if mode == "nearest":
        launcher.launch(_nearest_grad, row_blocks(dx), dy, dx, sizes, whole, lanes)
    else:
        launcher.launch(_bilinear_grad, row_blocks(dx), dy, dx, sizes, whole, corners, lanes)


# Reflection padding: borders in which an image is mirrored at its outermost pixels. A pixel has
# copies in at most three rows and three columns of the padded image, itself and its mirror images;
# its gradient adds them up in ascending order.

Sides = tuple[int, int, int, int]
I0, I1, I2 = np.int32(0), np.int32(1), np.int32(2)
NOWHERE = np.int32(-1)
#: A pixel may have a copy before the image, in it and behind it.
VIEWS = 3


@device
def _mirror(i, extent):
    """The index in [0, extent) whose pixel reflection shows at `i`, at most extent - 1 outside."""
    if i < I0:
        return int32(-i)
    return int32(I2 * int32(extent - I1) - i) if i >= extent else i


@device
def _seen_at(i, view, before, extent, padded):
    """Where in the padded image pixel `i` is seen; NOWHERE if it is not, or is there as itself."""
    if view == I1:
        return int32(before + i)
    at = int32(before - i) if view == I0 else int32(before + int32(I2 * int32(extent - I1)) - i)
    inside = at >= I0 and at < padded and at != int32(before + i)
    return at if inside else NOWHERE


@kernel(threads=THREADS)
def _reflect(x: F4s, y: F4s, sizes: I4x3, sides: I4x4, lanes: U4):
    """A thread: some channels of an output pixel."""
    height, width, channels = sizes
    top, bottom, left, right = sides
    tall, wide = uint32(top + height + bottom), uint32(left + width + right)
    row, place = uint32(cuda.blockIdx.x), place_of(cuda.blockIdx.y, cuda.threadIdx.x)
    n, oh, ow, c = pixel_of(row, place, tall, uint32(channels), lanes)
    if ow < wide:
        h = _mirror(int32(int32(oh) - top), height)
        w = _mirror(int32(int32(ow) - left), width)
        start = row_start(uint32(n * uint32(height) + uint32(h)), width, channels)
        values = load(x, start + uint32(uint32(w) * uint32(channels) + c), lanes)
        target = row_start(row, wide, channels) + uint32(ow * uint32(channels) + c)
        store(y, target, values, lanes)


@kernel(threads=THREADS)
def _reflect_grad(dy: F4s, dx: F4s, sizes: I4x3, sides: I4x4, lanes: U4):
    """A thread: some channels of an input pixel, over the places where it is seen."""
    height, width, channels = sizes
    top, bottom, left, right = sides
    tall, wide = int32(top + height + bottom), int32(left + width + right)
    total = cuda.local.array(LANES, float32)
    row, place = uint32(cuda.blockIdx.x), place_of(cuda.blockIdx.y, cuda.threadIdx.x)
    n, line, w, c = pixel_of(row, place, uint32(height), uint32(channels), lanes)
    if w < uint32(width):
        h = int32(line)
        for lane in range(LANES):
            total[lane] = F0
        for row_view in range(VIEWS):
            oh = _seen_at(h, row_view, top, height, tall)
            start = row_start(uint32(n * uint32(tall) + uint32(oh)), wide, channels)
            for column_view in range(VIEWS):
                ow = _seen_at(int32(w), column_view, left, width, wide)
                if oh != NOWHERE and ow != NOWHERE:
                    at = start + uint32(uint32(ow) * uint32(channels) + c)
                    values = load(dy, at, lanes)
                    for lane in range(LANES):
                        total[lane] += values[lane]
        target = row_start(row, width, channels) + uint32(w * uint32(channels) + c)
        store(dx, target, total, lanes)


def reflect(launcher: Launcher, x: Array, y: Array, sides: Sides) -> None:
    """y = x with mirrored borders of (top, bottom, left, right) pixels, each less than the image's
    extent.
    """
    lanes = lanes_of(x.shape[3])
    launcher.launch(_reflect, row_blocks(y), x, y, x.shape[1:], sides, lanes)


def reflect_grad(launcher: Launcher, dy: Array, dx: Array, sides: Sides) -> None:
    """dx = for each pixel the sum of dy over all its copies."""
    lanes = lanes_of(dx.shape[3])
    launcher.launch(_reflect_grad, row_blocks(dx), dy, dx, dx.shape[1:], sides, lanes)
