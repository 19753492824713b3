"""How the work of a CUDA kernel is cut into blocks: by shapes alone.

Extents give the number of blocks and the part that each block takes. The borders of the parts are
part of the definition of a reduction, because each part has its own partial result and these are
combined in a fixed order. So the borders must not depend on the GPU; then every GPU, and the
emulator, sums in the same order. Scratch follows from them and is known when the step is traced: no
Numba here. Read next: `quads.py`, which says how a block walks over its part, and `batch_norm.py`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ooctrain.layers.kernels.row_blocks import row_blocks

FLOAT_BYTES = 4
THREADS = 256
#: Elements of one 128-bit load.
QUAD = 4
#: Distance of the two quads of one thread: with two loads under way in each of the 2048 threads of
#: a multiprocessor, 64 KiB are in flight there; about half of that hides the latency of an H200.
STRIDE = THREADS * QUAD
#: Elements that a block of a pointwise kernel takes.
TILE = 2 * STRIDE

#: Rows that a thread of a reduction over rows has under way at once.
BATCH_ROWS = 8
#: Batches of one thread are at most so many: the error of a sum grows with their number.
MOST_BATCHES = 64
#: A reduction makes about this many blocks where there is work for them: several to each of the
#: multiprocessors of the largest GPUs.
ENOUGH_BLOCKS = 1024
#: Blocks of a product that a large GPU works on at a time, two a multiprocessor: a *wave*.
WAVE_BLOCKS = 264
#: Most blocks of all parts of a sum together, unless one part has more: each has a partial result.
MOST_BLOCKS = 4 * WAVE_BLOCKS
#: A block's partial result is written and read again, which takes as long as this many terms of it,
#: and scratch besides.
PARTIAL_TERMS = 2
#: Most channels side by side in a block: a warp reads 128 contiguous bytes.
MOST_LANES = 32
#: Channels side by side in a block that combines partial results.
FINISH_LANES = 8


#: Quads that `same_channels` looks at for a distance that leaves few threads idle.
MOST_APART = 2048


def divisor(extent: int) -> tuple[int, int, int]:
    """What `quads.parted` needs to divide a number below 2^31 by an extent: a product and a shift.

    With s bits in extent - 1 and m = 2^(31 + s) / extent, rounded up, floor(n m / 2^(31 + s)) is
    floor(n / extent): m is too large by less than extent / 2^(31 + s), relative to it, so that
    n m is too large by less than 1 / extent. Source: Granlund and Montgomery 1994, theorem 4.2.
    """
    shift = 31 + (extent - 1).bit_length()
    return extent, -(-(1 << shift) // extent), shift


def parts_of_sum(blocks: int, terms: int, least_terms: int) -> int:
    """Parts into which the sum of a product is cut, each with as many blocks.

    Blocks run in waves, and the last wave takes as long as a full one: 288 blocks take as long as
    528. So the number is the one whose waves take least time, partial results included.

    Args:
        blocks: blocks of one part: tiles of the result.
        terms: terms of the sum.
        least_terms: least number of terms of a part.
    """

    def cost(parts: int) -> float:
        waves = -(-blocks * parts // WAVE_BLOCKS)
        return waves * terms / parts + PARTIAL_TERMS * blocks * parts

    most = min(WAVE_BLOCKS, terms // least_terms, MOST_BLOCKS // blocks)
    return min(range(1, max(1, most) + 1), key=cost)


def tiles(elements: int) -> int:
    """Blocks of a pointwise kernel."""
    return -(-elements // TILE)


def same_channels(elements: int, channels: int) -> tuple[tuple[int, int], int]:
    """(blocks, quads from a thread's first quad to its second), both of the same channels.

    The distance is a multiple of the quads after which channels recur, so that a thread works out
    its channels once and loads what belongs to them once. Of those multiples it is the one for
    which the fewest threads are idle: where every 15th quad has the same channels, 255.
    """
    period = channels // math.gcd(channels, QUAD)
    multiples = range(period, max(period, MOST_APART) + 1, period)
    apart = max(multiples, key=lambda quads: quads / (-(-quads // THREADS) * THREADS))
    quads = -(-elements // QUAD)
    return (-(-quads // (2 * apart)), -(-apart // THREADS)), apart


@dataclass(frozen=True, slots=True)
class Columns:
    """How the sums over the rows of each of some (rows, channels) arrays are cut.

    A block has `lanes` channels side by side and THREADS / lanes rows of threads; it takes
    `rows_per_chunk` rows of one group of channels.

    Args:
        rows, channels: rows and channels of an array.
        lanes: a power of two, at most MOST_LANES.
        rows_per_chunk: a multiple of what a block has under way at once; in images, whole rows of
            pixels or a part of one.
        images: arrays that lie one behind the other and are summed each by itself.
        section: so many rows on, a chunk begins anew (`row_blocks.py`); 0: nowhere.
    """

    rows: int
    channels: int
    lanes: int
    rows_per_chunk: int
    images: int = 1
    section: int = 0

    @property
    def per_section(self) -> int:
        """Chunks of a section."""
        return -(-(self.section or self.rows) // self.rows_per_chunk)

    @property
    def chunks(self) -> int:
        """Partial results of each channel."""
        return self.rows // (self.section or self.rows) * self.per_section

    @property
    def cut(self) -> tuple[int, int, int, int]:
        """What kernels are given: lanes, rows per chunk, rows and chunks per section."""
        return self.lanes, self.rows_per_chunk, self.section or self.rows, self.per_section

    @property
    def blocks(self) -> tuple[int, int, int]:
        """Chunks of rows, groups of channels, images."""
        return self.chunks, -(-self.channels // self.lanes), self.images

    @property
    def finish_blocks(self) -> int:
        """Blocks that combine the partial results of an image."""
        return -(-self.channels // FINISH_LANES)

    @property
    def partials(self) -> int:
        """Elements of one partial result for each image, chunk and channel."""
        return self.images * self.chunks * self.channels


def columns(rows: int, channels: int, images: int = 1) -> Columns:
    """Cuts (rows, channels) arrays for a reduction over the rows of each."""
    lanes = min(MOST_LANES, 1 << max(channels - 1, 0).bit_length())
    at_once = BATCH_ROWS * (THREADS // lanes)
    groups = -(-channels // lanes)
    wanted_chunks = max(1, ENOUGH_BLOCKS // (groups * images))
    batches = -(-rows // (at_once * wanted_chunks))
    rows_per_chunk = at_once * max(1, min(batches, MOST_BATCHES))
    return Columns(rows, channels, lanes, rows_per_chunk, images)


def image_columns(shape: Sequence[int], images: int = 1) -> Columns:
    """Cuts the pixels of (..., C), channels last, such that bands of whole rows of an image hold
    whole chunks.

    Args:
        images: 1: the sums are over all images; else over each of so many by itself.
    """
    of_one = shape[1:] if images > 1 else shape
    pixels = math.prod(of_one[:-1])
    cut = columns(pixels, shape[-1], images)
    blocks = row_blocks(of_one, cut.rows_per_chunk)
    return replace(cut, rows_per_chunk=blocks.length, section=blocks.section)


def element_chunk(elements: int) -> int:
    """Elements that a block of a reduction over all elements takes: whole tiles."""
    return TILE * max(1, -(-elements // (TILE * ENOUGH_BLOCKS)))
