"""How the sums over all pixels of each channel are cut on the cpu, and where they are kept.

In: the shape of an image batch. Out: blocks, chunks of blocks, scratch. The one idea: a block of at
most BLOCK_ROWS pixels is summed in float32, a chunk adds its blocks in float64, in order, and has a
place of its own for that. So the places are all that has to be carried from one band of rows to the
next: a band goes on adding where the one before has stopped. Sums of forward calls run from the
first block to the last; those of backward calls from the last to the first, as bands run there.
Source: ours. Read next: `batch_norm.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ooctrain.layers.kernels.cpu.chunks import chunk_count, row_chunk
from ooctrain.layers.kernels.cpu.workspace import BLOCK_ROWS, padded_channels
from ooctrain.layers.kernels.row_blocks import RowBlocks, row_blocks


@dataclass(frozen=True, slots=True)
class RowSums:
    """Sums of each channel over the pixels of (..., C).

    Args:
        blocks: what is summed in float32.
        per_chunk: blocks of a chunk, each of which has partial sums of its own.
    """

    channels: int
    blocks: RowBlocks
    per_chunk: int

    @property
    def chunks(self) -> int:
        """How many there are: at most as many as `workspace.channel_partials_bytes` has room."""
        return chunk_count(self.blocks.count, self.per_chunk)

    @property
    def space(self) -> tuple[int, int]:
        """(padded channels, chunks): how partial sums lie in a workspace."""
        return padded_channels(self.channels), self.chunks

    def span(self, first_pixel: int, pixels: int) -> tuple[int, int, int]:
        """(chunks that some pixels touch, their first block, the end of their blocks)."""
        begin = self.blocks.before(first_pixel)
        end = self.blocks.before(first_pixel + pixels)
        return chunk_count(end, self.per_chunk) - begin // self.per_chunk, begin, end

    @property
    def cut(self) -> tuple[int, int, int, int, int]:
        """What kernels are told: section, length, blocks per section, per chunk and in all."""
        blocks = self.blocks
        return blocks.section, blocks.length, blocks.per_section, self.per_chunk, blocks.count


def row_sums(shape: Sequence[int]) -> RowSums:
    """Of an array in physical layout, channels last."""
    blocks, channels = row_blocks(shape, BLOCK_ROWS), shape[-1]
    chunks = chunk_count(blocks.pixels, row_chunk(blocks.pixels, channels))
    return RowSums(channels, blocks, chunk_count(blocks.count, chunks))
