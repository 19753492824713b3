"""Scratch of the CPU kernels in bytes, known from shapes before anything is compiled or allocated.

A reduction keeps one partial result per chunk, and chunks depend on shapes alone (`chunks.py`). Its
scratch therefore follows from the extents, is the same for any number of threads, is known at trace
time and is part of the list's claims. No Numba here. Read next: `batch_norm.py`, which uses most of
it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ooctrain.layers.kernels.cpu.chunks import chunk_count, reduction_chunk, row_chunk
from ooctrain.layers.kernels.row_blocks import RowBlocks, row_blocks
from ooctrain.step.op import FLOAT_BYTES, whole_lines

#: Channels are padded to this many in scratch, so that groups of four whole vectors can be stored.
CHANNEL_GROUP = 64
#: Rows summed in float32 registers before they are added to a float64 partial.
BLOCK_ROWS = 128
#: Elements summed in float32 registers before they are added to a float64 partial.
BLOCK_ELEMENTS = 2048
DOUBLE_BYTES = 8
#: Float32 in the widest vector of any machine.
MOST_LANES = 16


def padded_channels(channels: int) -> int:
    """Channels rounded up to whole groups of vectors."""
    return -(-channels // CHANNEL_GROUP) * CHANNEL_GROUP


def channel_partials_bytes(rows: int, channels: int, sums: int) -> int:
    """For each chunk and padded channel `sums` float64 partials, and as many float32 block sums."""
    chunks = chunk_count(rows, row_chunk(rows, channels))
    return chunks * sums * padded_channels(channels) * (DOUBLE_BYTES + FLOAT_BYTES)


def batch_norm_workspace_bytes(rows: int, channels: int) -> int:
    """Scratch of `batch_norm.stats` and `batch_norm.grad_reduce` on (rows, channels)."""
    return channel_partials_bytes(rows, channels, sums=2)


def channel_sum_workspace_bytes(rows: int, channels: int) -> int:
    """Scratch of `elementwise.channel_sum` on (rows, channels)."""
    return channel_partials_bytes(rows, channels, sums=1)


def reduction_workspace_bytes(elements: int) -> int:
    """Scratch of `losses.mean_error`, `losses.total` and `optimizers.sum_of_squares`."""
    return chunk_count(elements, reduction_chunk(elements)) * DOUBLE_BYTES


def class_loss_bytes(rows: int) -> int:
    """Scratch of `losses.cross_entropy`: a float32 for each row, and that of their sum."""
    return whole_lines(FLOAT_BYTES * rows) + reduction_workspace_bytes(rows)


def total_loss_bytes(rows: int) -> int:
    """Scratch of `carried_sums.total_loss`, and what it carries from band to band: the partial sum
    of each chunk, a block's sums in each lane of a vector, the weight of the labels.
    """
    return whole_lines(reduction_workspace_bytes(rows)) + MOST_LANES * FLOAT_BYTES + DOUBLE_BYTES


def vectors_bytes(count: int, channels: int) -> int:
    """`count` vectors of channels, in whole cache lines: what `instance_norm.py` puts in front."""
    return whole_lines(count * channels * FLOAT_BYTES)


def axis_sum_bytes(outer: int, rows: int, width: int) -> int:
    """Scratch of `reduction.sum_axes`: the sums of each chunk, where there are several."""
    chunks = chunk_count(rows, row_chunk(rows, width))
    return outer * chunks * width * FLOAT_BYTES if chunks > 1 else 0


class SumsCut(NamedTuple):
    """How a kernel of `RowSums` finds its blocks, and where it adds them up."""

    padded: int  # channels, in whole vectors
    chunks: int
    section: int  # as in `RowBlocks`, and the next two
    length: int
    per_section: int
    per_chunk: int  # blocks
    blocks: int  # in all
    begin: int  # the first block of the pixels that it is given
    end: int


@dataclass(frozen=True, slots=True)
class RowSums:
    """Sums of each channel over the pixels of (..., C).

    A block of at most BLOCK_ROWS pixels is summed in float32; a chunk adds its blocks in float64,
    in order, and has a place of its own for that. So the places are all that has to be carried from
    one band of rows to the next: a band goes on adding where the one before has stopped. Sums of
    forward calls run from the first block to the last, those of backward calls from the last to the
    first, as bands run there.

    Args:
        blocks: what is summed in float32.
        per_chunk: blocks of a chunk, each of which has partial sums of its own.
    """

    channels: int
    blocks: RowBlocks
    per_chunk: int

    @property
    def chunks(self) -> int:
        """How many there are: at most as many as `channel_partials_bytes` has room."""
        return chunk_count(self.blocks.count, self.per_chunk)

    @property
    def space(self) -> tuple[int, int]:
        """(padded channels, chunks): how partial sums lie in a workspace."""
        return padded_channels(self.channels), self.chunks

    def span(self, first_pixel: int, elements: int) -> tuple[int, SumsCut]:
        """How many chunks the pixels of so many elements touch, and what kernels are given."""
        blocks = self.blocks
        begin, end = map(blocks.before, (first_pixel, first_pixel + elements // self.channels))
        cut = SumsCut(
            *self.space, blocks.section, blocks.length, blocks.per_section, self.per_chunk,
            blocks.count, begin, end,
        )  # fmt: skip
        return chunk_count(end, self.per_chunk) - begin // self.per_chunk, cut


def row_sums(shape: Sequence[int]) -> RowSums:
    """Of an array in physical layout, channels last."""
    blocks, channels = row_blocks(shape, BLOCK_ROWS), shape[-1]
    chunks = chunk_count(blocks.pixels, row_chunk(blocks.pixels, channels))
    return RowSums(channels, blocks, chunk_count(blocks.count, chunks))
