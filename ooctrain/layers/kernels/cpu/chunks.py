"""How the work of a kernel is cut into chunks: by shapes alone, never by the number of threads.

The functions here compute from extents how many items one call of a range kernel takes. Chunk
borders are part of the definition of a reduction, because each chunk has its own partial sum and
these are combined in chunk order. If borders depend neither on threads nor on load nor on the
machine, then 1, 2 and 3 threads give the same bits. The caller alone runs a problem that fits in
one chunk, since starting and joining the workers costs half a microsecond, and more where they
sleep. No Numba here: sizes of workspaces are needed at trace time. Read next: `workspace.py`.
"""

from __future__ import annotations

from functools import cache

import numpy as np

#: Elements of a reduction, or of rows, below which a problem is one chunk.
SMALL_ELEMENTS = 1 << 16
#: Elements of an elementwise kernel below which a problem is one chunk: a copy of as many takes one
#: thread 1.7 us and two 1.2 us.
INLINE_ELEMENTS = 1 << 15
#: Elements of its chunks above that. Smaller ones would balance the threads better, but what a
#: thread takes from another's span often lies in the other's cache.
PART_ELEMENTS = 1 << 14
#: Time of a kernel over three arrays relative to a copy, which goes through two.
THREE_ARRAYS = 1.25
#: Upper bound of the number of chunks of a reduction: each has partial results of its own.
MOST_PARTIALS = 16
#: Upper bound where a chunk has no partial result. During the last chunk one thread waits for the
#: other, on average for half of that chunk: 3 % with 16 chunks and two threads (measured).
MOST_CHUNKS = 32
#: Chunk borders are multiples of this many elements, so that vectors are cut only at the very end.
ALIGN_ELEMENTS = 1 << 10
#: Results of this size and more are written past the caches.
PAST_CACHES_BYTES = 24 << 20


@cache
def element_chunk(elements: int, work: float = 1) -> int:
    """Elements per chunk of an elementwise kernel; its time is `work` times that of a copy."""
    if elements * work <= INLINE_ELEMENTS:
        return INLINE_ELEMENTS
    parts = -(-int(elements * work) // PART_ELEMENTS)
    chunks = 1 << (parts - 1).bit_length()  # so that two and four threads get equally many
    return _aligned(-(-elements // min(chunks, MOST_CHUNKS)))


@cache
def reduction_chunk(elements: int) -> int:
    """Elements per chunk of a reduction."""
    return _aligned(max(SMALL_ELEMENTS, -(-elements // MOST_PARTIALS)))


@cache
def row_chunk(rows: int, row_elements: int) -> int:
    """Rows per chunk of a kernel over rows of `row_elements` elements each."""
    return max(-(-SMALL_ELEMENTS // max(row_elements, 1)), -(-rows // MOST_PARTIALS))


def past_caches(out: np.ndarray, *sources: np.ndarray) -> bool:
    """Whether a kernel that runs at memory speed should write `out` past the caches.

    Little of a result of 24 MiB or more is in the caches when its reader comes; more of smaller
    ones is, and reading that from memory would cost what is gained. Measured with 32 MiB of cache,
    batch norm and the convolution that reads it: together 3 to 9 % less time past the caches from
    24 MiB on, 2 % more at 8 MiB. What is updated in place lies in the caches already.
    """
    if out.nbytes < PAST_CACHES_BYTES:
        return False
    start = out.ctypes.data
    return start % 64 == 0 and all(source.ctypes.data != start for source in sources)


def chunk_count(items: int, chunk: int) -> int:
    """Number of chunks, the last one perhaps shorter."""
    return -(-items // chunk)


def _aligned(chunk: int) -> int:
    return -(-chunk // ALIGN_ELEMENTS) * ALIGN_ELEMENTS


def image_sizes(inner: np.ndarray, outer: np.ndarray) -> tuple[int, int, int, int, int]:
    """(H, W, OH, OW, C) of what an operation on images reads and writes, or the other way round."""
    return *inner.shape[1:3], *outer.shape[1:3], inner.shape[3]


def flat(array: np.ndarray) -> np.ndarray:
    """A 1-d view of a C-contiguous array. Raises ValueError where only a copy could be flat."""
    if array.ndim == 1:
        return array  # kernels themselves refuse strides
    if not array.flags.c_contiguous:
        raise ValueError(f"kernels want C-contiguous arrays, not strides {array.strides}")
    return array.ravel()
