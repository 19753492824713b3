"""Addresses of convolutions whose tensors have more elements than 32 bits can count."""

from __future__ import annotations

import numpy as np

from ooctrain.layers.conv2d import ConvShape
from ooctrain.layers.kernels.cuda.conv import conv_blocking
from ooctrain.layers.kernels.cuda.conv.conv_address import (
    OUTSIDE,
    filter_offset,
    source_offset,
    source_place,
    tap_of,
    target_offset,
)
from ooctrain.layers.kernels.cuda.runtime.shim import cuda, kernel, uint32
from ooctrain.testing.emulator import EmulatedLauncher

HUGE = ConvShape(2, 64, 20480, 20480, 64, 3, 3, padding=(1, 1, 1, 1))
STRIDED = ConvShape(3, 6, 11, 9, 8, 3, 2, (2, 3), (2, 1, 0, 1), (1, 2), 2)


@kernel(
    "void(u4[::1], u4[::1], UniTuple(i4, 9), UniTuple(i4, 9), UniTuple(i4, 11), i8[::1])",
    threads=32,
)
def addresses(pixels, terms, source, taps, target, out):
    """(what is read, the weight of output channel 1, what is written) for each pixel and term."""
    i = cuda.grid(1)
    if i < pixels.size:
        place = source_place(pixels[i], target[0], target[1], source)
        tap_row, tap_column, channel = tap_of(terms[i], taps)
        out[3 * i] = source_offset(place, tap_row, tap_column, channel, source)
        out[3 * i + 1] = filter_offset(1, tap_row, tap_column, channel, taps)
        out[3 * i + 2] = target_offset(uint32(pixels[i]), target)


def computed(correlation, pixels, terms):
    out = np.zeros((len(pixels), 3), np.int64)
    arrays = np.array(pixels, np.uint32), np.array(terms, np.uint32)
    EmulatedLauncher().launch(addresses, -(-len(pixels) // 32), *arrays, *correlation, out)
    return out.tolist()


def expected(shape: ConvShape, pixel: int, term: int):
    """The same for the forward pass, in Python's own whole numbers."""
    n, rest = divmod(pixel, shape.oh * shape.ow)
    i, j = divmod(rest, shape.ow)
    tap, c = divmod(term, shape.cg)
    r, s = divmod(tap, shape.s)
    row = i * shape.stride[0] + r * shape.dilation[0] - shape.padding[0]
    column = j * shape.stride[1] + s * shape.dilation[1] - shape.padding[2]
    inside = 0 <= row < shape.h and 0 <= column < shape.w
    reads = ((n * shape.h + row) * shape.w + column) * shape.c + c if inside else OUTSIDE
    return [reads, (shape.r * shape.s + tap) * shape.cg + c, pixel * shape.k]


def test_the_last_pixels_of_a_huge_image():
    """2 x 20,480 x 20,480 x 64 is 5.4e10 elements: offsets beyond 2^32, and beyond 2^35."""
    pixels = 2 * 20480 * 20480
    asked = [pixels - 1, pixels - 20481, pixels // 2, pixels // 2 - 1, 20479, 0]
    terms = [9 * 64 - 1, 5, 4 * 64 + 63, 0, 8 * 64, 4 * 64]
    wanted = [expected(HUGE, p, t) for p, t in zip(asked, terms, strict=True)]
    assert computed(conv_blocking.forward(HUGE), asked, terms) == wanted
    assert max(w[2] for w in wanted) > 2**35


def test_every_pixel_and_term_of_an_awkward_shape():
    total, depth = STRIDED.n * STRIDED.oh * STRIDED.ow, STRIDED.r * STRIDED.s * STRIDED.cg
    pairs = [(p, t) for p in range(total) for t in range(depth)]
    pixels, terms = zip(*pairs, strict=True)
    wanted = [expected(STRIDED, p, t) for p, t in pairs]
    assert computed(conv_blocking.forward(STRIDED), pixels, terms) == wanted


def test_the_phases_of_the_gradient_cover_every_pixel_once():
    written = np.zeros(STRIDED.n * STRIDED.h * STRIDED.w, int)
    for correlation in conv_blocking.grad_input(STRIDED):
        pixels = range(correlation.target.pixels)
        if correlation.depth:
            offsets = [row[2] for row in computed(correlation, pixels, [0] * len(pixels))]
        else:
            plain = correlation._replace(taps=correlation.taps._replace(count=1))
            offsets = [row[2] for row in computed(plain, pixels, [0] * len(pixels))]
        np.add.at(written, np.array(offsets) // STRIDED.c, 1)
    assert (written == 1).all()
