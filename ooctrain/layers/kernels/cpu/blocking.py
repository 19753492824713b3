"""How work on the cpu is cut up: numbers that blockings share with kernels, on any instruction set.

Memory layouts (panels of 32 columns, rows of tables) are the same for every instruction set. A
blocking made on one machine therefore gives the workspace of any other with as many threads. Pure
Python. Read next: `conv/conv_workspace.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from ooctrain.layers.conv2d import ConvShape

PANEL = 32  # columns of packed weights that lie side by side: two AVX-512 or four AVX2 vectors
ROWS = 12  # the most rows that a register tile of any instruction set has
ALIGNMENT = 16  # floats; 64 bytes, a cache line
CHUNKS = 32  # chunks wanted of a large call, so that threads finish together
CHUNK_FLOPS = 4_000_000  # about 25 us of one thread; a chunk costs well below 1 us to hand out


def ceil_div(a: int, b: int) -> int:
    """a / b, rounded up."""
    return -(-a // b)


def aligned(floats: int) -> int:
    """The next multiple of a cache line, in floats."""
    return ceil_div(floats, ALIGNMENT) * ALIGNMENT


def place(*sizes_floats: int) -> tuple[int, ...]:
    """Offsets of regions laid one after another on cache lines, and at the end their total size."""
    offsets, total = [], 0
    for size in sizes_floats:
        offsets.append(total)
        total += aligned(size)
    return (*offsets, total)


def chunk_items(items: int, flops: int) -> int:
    """Items of one chunk, for a call of `items` equal items and `flops` operations in all."""
    return max(1, ceil_div(items, CHUNKS), min(items, ceil_div(items * CHUNK_FLOPS, flops)))


def cut_blocks(images: int, rows: int, columns: int, target: int) -> tuple[int, int]:
    """(images, rows) of a block of about `target` pixels: rows of one image, or whole images.

    Of the sizes from half the target up to it, the one that leaves the fewest rows of register
    tiles (of ROWS pixels) idle.
    """
    unit, most = (columns, rows) if rows * columns >= target else (rows * columns, images)
    largest = max(1, min(most, target // unit))

    def idle_share(size: int) -> float:
        whole, rest = divmod(most, size)
        tiles = whole * ceil_div(size * unit, ROWS) + ceil_div(rest * unit, ROWS)
        return tiles * ROWS / (most * unit)

    size = min(range(largest, (largest - 1) // 2, -1), key=idle_share)
    return (1, size) if unit == columns and most == rows else (size, rows)


# What the blockings of all convolution algorithms have in common. A kernel gets everything it must
# know as named tuples of integers (`numbers`, so that it reads `p.image.out_h`) and one block of
# memory, so its signature is the same for every shape. The block is the workspace, seen as float32
# and as int64.


class ImagePair(NamedTuple):
    """What a part of a convolution reads, `in_`, and what of the same batch it computes or reads
    beside that, `out_`."""

    images: int
    in_h: int
    in_w: int
    in_c: int
    out_h: int
    out_w: int
    out_c: int
    groups: int
    in_cg: int  # channels of a group
    out_cg: int


def images_of(shape: ConvShape, *, backward: bool = False) -> ImagePair:
    """x and y; backward dy and dx."""
    (in_h, in_w, in_c), (out_h, out_w, out_c) = shape.ends(backward=backward)
    groups = shape.groups
    return ImagePair(
        shape.n, in_h, in_w, in_c, out_h, out_w, out_c, groups, in_c // groups, out_c // groups
    )


Numbers = TypeVar("Numbers", bound=tuple)


@dataclass(frozen=True, slots=True)
class KernelBlocking(Generic[Numbers]):
    """How one part of a convolution is cut up.

    Args:
        numbers: what the kernels read.
        size_floats: size of the workspace.
        chunk: items of the part that a thread computes at a time.
        early_chunk: the same of what is packed or transformed before.
        tables: int64 values for the front of the workspace.
    """

    numbers: Numbers
    size_floats: int
    chunk: int
    early_chunk: int = 1
    tables: tuple[int, ...] = ()
