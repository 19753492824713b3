"""How a sum over the pixels of a batch is cut into blocks of whole rows.

The shape of an image batch and the most pixels that a block may have give numbered blocks. Their
borders are part of the definition of a sum of floats. If no block crosses the border between two
rows of the image (or, where rows are short, between two groups of whole rows), a band of rows
consists of whole blocks. A sum that continues from band to band then adds the same blocks in the
same order as a sum over the whole image, and has the same bits. Read next: `cpu/workspace.py`,
`cuda/chunks.py`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RowBlocks:
    """Blocks of pixels, numbered from the first pixel to the last.

    Args:
        pixels: all there are.
        section: so many pixels on, a block begins anew: a row of an image, or a whole image.
        length: pixels of a block; the last one of a section may have fewer.
    """

    pixels: int
    section: int
    length: int

    @property
    def per_section(self) -> int:
        """Blocks of a section."""
        return -(-self.section // self.length)

    @property
    def count(self) -> int:
        """All blocks."""
        return self.pixels // self.section * self.per_section

    def before(self, pixel: int) -> int:
        """How many blocks end before a pixel with which one begins (or behind the last pixel)."""
        section, rest = divmod(pixel, self.section)
        return section * self.per_section + -(-rest // self.length)


def row_blocks(shape: Sequence[int], limit: int) -> RowBlocks:
    """Blocks of at most `limit` pixels of an array in physical layout, channels last.

    Pieces of a row, or several whole rows of one image. Where there are no rows, (P, C), or an
    image is one pixel: of all.
    """
    pixels = math.prod(shape[:-1])
    height, width = shape[-3:-1] if len(shape) > 2 else (1, 1)
    if height * width <= 1:
        return RowBlocks(pixels, pixels, limit)
    if width >= limit:
        return RowBlocks(pixels, width, limit)
    return RowBlocks(pixels, height * width, width * min(height, limit // width))


def rows_of_block(height: int, width: int, limit: int) -> int:
    """So many rows of an image lie between two borders of blocks that are borders of rows."""
    return 1 if width >= limit else min(height, limit // width)
