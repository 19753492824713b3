"""tiles: an image in bands of rows, so that no call is large.

A call needs all that it reads and writes on the device at once, and no planner can change that. So
large calls are cut: a chain of layers runs over the first rows of an image, then over the next
ones, and so on. A convolution at the upper border of a band reads some rows of the band before;
these few are kept, not computed twice. At the lower border it can compute only the rows whose
inputs are all there, so the border recedes a little from layer to layer. That is the whole method.
Cutting and joining are operations with gradients like all others: the tape differentiates bands by
itself, and a planner sees a longer list of smaller calls.

Grown-up room: `ooctrain/rewrite/tile`. It cuts any network, carries sums from band to band so that
even batch norm and weight gradients have the bits of the whole image, and reads images that are
never there as a whole. Read next: train.py.
"""

from dataclasses import dataclass, replace

import numpy as np
from tape import Conv, MaxPool, ReLU, Tape


@dataclass(frozen=True)
class Window:
    """Row o of the output reads `kernel` rows of the input, from row o * stride - pad on."""

    kernel: int
    stride: int
    pad: int

    def first(self, row: int) -> int:
        """The first input row that this output row reads."""
        return row * self.stride - self.pad

    def computable(self, rows: int, extent: int) -> int:
        """How many output rows need no more than the first rows of an image of `extent` rows."""
        if rows == extent:
            rows += self.pad  # the zeros below the image are there, too
        return max(0, (rows + self.pad - self.kernel) // self.stride + 1)


def window_of(op) -> Window:
    match op:
        case Conv():
            return Window(op.kernel, 1, op.top)
        case MaxPool():
            return Window(2, 2, 0)
        case ReLU():
            return Window(1, 1, 0)
    raise TypeError(f"{op} does not go from row to row")


@dataclass(frozen=True)
class Rows:
    """Rows [first, stop) of an image of `extent` rows."""

    first: int
    stop: int
    extent: int
    inputs = ("x",)
    gradient_reads = {"x": ("dy",)}

    def shape(self, x):
        return (*x[:2], self.stop - self.first, x[3])

    def run(self, x):
        return x[:, :, self.first : self.stop]

    def dx(self, dy):
        rows = (self.first, self.extent - self.stop)
        return np.pad(dy, ((0, 0), (0, 0), rows, (0, 0)))


@dataclass(frozen=True)
class Join:
    """`x`, and the rows of `below` under it."""

    split: int  # rows of x
    inputs = ("x", "below")
    gradient_reads = {"x": ("dy",), "below": ("dy",)}

    def shape(self, x, below):
        return (*x[:2], x[2] + below[2], x[3])

    def run(self, x, below):
        return np.concatenate([x, below], axis=2)

    def dx(self, dy):
        return dy[:, :, : self.split]

    def dbelow(self, dy):
        return dy[:, :, self.split :]


@dataclass(frozen=True)
class Band:
    """Rows [first, stop) of an image, and the value that holds them."""

    image: str
    value: str
    first: int
    stop: int


def cut(tape: Tape, band: Band, first: int, stop: int) -> Band | None:
    """Rows of a band; None where there are none."""
    if first >= stop:
        return None
    assert band.first <= first < stop <= band.stop, f"{band} has no rows {first}:{stop}"
    if (first, stop) == (band.first, band.stop):
        return band
    op = Rows(first - band.first, stop - band.first, band.stop - band.first)
    value = tape.call(f"rows {first}:{stop} of {band.image}", op, band.value)
    return Band(band.image, value, first, stop)


def join(tape: Tape, above: Band | None, below: Band) -> Band:
    """A band, under the one above it if there is one."""
    if above is None:
        return below
    name = f"rows {above.first}:{below.stop} of {below.image}"
    value = tape.call(name, Join(above.stop - above.first), above.value, below.value)
    return Band(below.image, value, above.first, below.stop)


def frontiers(layers, extent: int, bands: int) -> list[list[int]]:
    """For the image and for each layer: how many rows are there after 0, 1, ... bands."""
    found = [[extent * band // bands for band in range(bands + 1)]]
    for _, op, *_ in layers:
        rows = found[-1]
        found.append([window_of(op).computable(row, rows[-1]) for row in rows])
    return found


def in_bands(tape: Tape, image: str, layers, bands: int) -> str:
    """Records a chain of layers over an image, band after band; returns the name of the result.

    Args:
        layers: (name, operation, names of its parameters), one after the other.
    """
    there = frontiers(layers, tape.shapes[image][2], bands)
    kept: list[Band | None] = [None] * len(layers)  # of each layer's input, for the next band
    result = None
    for number in range(bands):
        band = cut(tape, Band(image, image, 0, there[0][-1]), *there[0][number : number + 2])
        for layer, (name, op, *parameters) in enumerate(layers):
            window, extent = window_of(op), there[layer][-1]
            # The output rows of this band, and the input rows that they read: these may begin
            # above the image, and end below it.
            begin, end = there[layer + 1][number : number + 2]
            assert begin < end, f"{name} has no row in band {number}: take fewer bands"
            reads, reads_to = window.first(begin), window.first(end - 1) + window.kernel
            # There is what the band before has kept, and what is new. Some of it is kept again.
            band = join(tape, kept[layer], band)
            if number + 1 < bands:
                kept[layer] = cut(tape, band, max(0, window.first(end)), band.stop)
            band = cut(tape, band, max(0, reads), min(reads_to, extent))
            if isinstance(op, Conv):  # inside the image no zeros are added
                op = replace(op, top=max(0, -reads), bottom=max(0, reads_to - extent))
            value = tape.call(f"{name}[{begin}:{end}]", op, band.value, *parameters)
            band = Band(name, value, begin, end)
        result = join(tape, result, band)
    return result.value
