"""How a product of two matrices is cut for a GPU: tiles of the result, splits of the sum.

The rows, columns and depth of a product give its blocks, splits and bytes of scratch. With few rows
(a small batch) and a long sum, the tiles of the result would not fill a GPU. Then the sum is split
into parts of whole steps, whose results are stored one after the other in the workspace and added
in that order. All numbers depend on shapes alone. No Numba here. Read next: `matmul.py`.
"""

from __future__ import annotations

from ooctrain.errors import ShapeError
from ooctrain.layers.kernels.cuda.chunks import FLOAT_BYTES, parts_of_sum

#: Rows and columns of the tile of a block, and how much of the sum it takes at once. Columns lie
#: side by side in memory.
ROWS, COLUMNS, STEP = 64, 128, 16
#: Fewest terms of a split: shorter ones cost more in partial results than they save.
SPLIT_TERMS = 512
#: Largest extent of a matrix: rows, columns and terms are counted in 32 bits, some with a sign.
MOST_EXTENT = 2**26


def tiles(rows: int, columns: int) -> tuple[int, int]:
    """Tiles of the result along its columns, and along its rows."""
    return -(-columns // COLUMNS), -(-rows // ROWS)


def terms_of_split(rows: int, columns: int, depth: int) -> int:
    """Terms of the sum that one split takes, a multiple of STEP."""
    across, down = tiles(rows, columns)
    parts = parts_of_sum(across * down, depth, SPLIT_TERMS)
    return -(-depth // (parts * STEP)) * STEP


def splits(rows: int, columns: int, depth: int) -> int:
    """Parts of the sum, none of them empty."""
    return -(-depth // terms_of_split(rows, columns, depth))


def workspace_bytes(rows: int, columns: int, depth: int) -> int:
    """Scratch of a product: the results of all splits, where there are several.

    Raises:
        ShapeError: a matrix larger than kernels can count.
    """
    if max(rows, columns, depth) > MOST_EXTENT:
        raise ShapeError(
            f"a product of {rows} x {depth} x {columns} is too large for the cuda device",
            numbers=f"extents are at most {MOST_EXTENT}",
            fix="pool or split what goes into the linear layer",
        )
    parts = splits(rows, columns, depth)
    return parts * rows * columns * FLOAT_BYTES if parts > 1 else 0
