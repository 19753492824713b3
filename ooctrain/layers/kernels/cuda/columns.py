"""Sums over the rows of a (rows, channels) array, one per channel, by blocks, threads, chunks.

The sum takes two kernels. In the first, a block takes a chunk of rows of up to 32 channels
(`chunks.Columns`). Neighbouring threads take neighbouring channels, so that a warp reads contiguous
bytes, and each thread adds up rows of one channel at a fixed distance, with eight loads in flight.
Threads beyond the last channel repeat it, and rows beyond the chunk count as 0, so no thread
branches. The second kernel adds the chunks. The order is fixed by shapes, and nothing is atomic.
Running sums are compensated (Kahan 1965), so the error does not grow with the number of rows, and
no float64 is needed. Read next: `layers/kernels/cuda/batch_norm.py`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ooctrain.layers.kernels.cuda.chunks import (
    BATCH_ROWS,
    FINISH_LANES,
    FLOAT_BYTES,
    THREADS,
    Columns,
)
from ooctrain.layers.kernels.cuda.runtime.launcher import Launcher
from ooctrain.layers.kernels.cuda.runtime.shim import (
    cuda,
    device,
    float32,
    int64,
    kernel,
    smaller,
    uint32,
    uint64,
)
from ooctrain.layers.kernels.signature import I8, U4, F4s

ZERO, U1 = np.float32(0), np.uint32(1)
#: The error of a sum is at most this many roundings of the sum of absolute values: seven in a
#: batch, two in each of four compensated sums (in a thread and in a block, of rows and of chunks).
SUM_ROUNDINGS = BATCH_ROWS - 1 + 4 * 2


@device
def at(x, i):
    """x[i] for i >= 0, without Numba's test for negative indices."""
    return x[uint64(i)]


@device
def add_compensated(total, lost, value):
    """(total + value, what its rounding lost), given what was lost before.

    An infinite total stays so: what it lost, the difference of two infinities, is not a number.
    """
    kept = value - lost
    new = total + kept
    return new, (new - total) - kept if new - new == ZERO else ZERO


@device
def column_of(block, thread, lanes, channels):
    """The channel of a thread; the last one for those beyond it. `lanes` is a power of two."""
    lane = uint32(thread & uint32(lanes - U1))
    return smaller(uint32(block * lanes + lane), uint32(channels - U1))


@device
def rows_of_chunk(block, rows_per_chunk, rows):
    """(first row, number of rows) of a block's chunk."""
    first = int64(block) * int64(rows_per_chunk)
    return first, uint32(smaller(int64(rows_per_chunk), rows - first))


@device
def rows_in_section(chunk, rows_per_chunk, section, per_section):
    """(first row, number of rows) of a chunk, where chunks begin anew with each section."""
    before = uint32(chunk // per_section)
    within = int64(uint32(chunk - uint32(before * per_section))) * int64(rows_per_chunk)
    first = int64(before) * int64(section) + within
    return first, uint32(smaller(int64(rows_per_chunk), int64(section) - within))


@device
def chunk_of_block(block, thread, rows, channels, cut, begin):
    """(channel, chunk, where the channel's column begins, how many rows) of a thread.

    Args:
        block: its indices: chunk, group of channels, image.
        rows: rows of an image.
        cut: lanes, rows per chunk, rows and chunks per section.
        begin: the chunk that the array begins with.
    """
    lanes, rows_per_chunk, section, per_section = cut
    c = column_of(uint32(block[1]), thread, lanes, channels)
    chunk, origin = uint32(begin + uint32(block[0])), int64(0)
    if begin > uint32(0):
        origin, _ = rows_in_section(begin, rows_per_chunk, section, per_section)
    first, left = rows_in_section(chunk, rows_per_chunk, section, per_section)
    return c, chunk, place_of(block[2], first - origin, rows, c, channels), left


@device
def place_of(image, row, rows, c, channels):
    """Index of an element of (images, rows, channels)."""
    return (int64(image) * int64(rows) + int64(row)) * int64(channels) + int64(c)


@device
def load_rows(batch, x, base, row, step, left, channels):
    """batch[k] = x[base + r * channels] for the rows r = row, row + step, ...; at most the last."""
    for k in range(BATCH_ROWS):
        r = smaller(uint32(row + uint32(k) * step), uint32(left - 1))
        batch[k] = at(x, base + int64(r) * int64(channels))


@device
def load_whole(batch, x, base, row, step, channels):
    """The same where all rows belong to the chunk, as in every batch of a thread but its last."""
    first, further = base + int64(row) * int64(channels), int64(step) * int64(channels)
    for k in range(BATCH_ROWS):
        batch[k] = at(x, first + k * further)


@device
def in_chunk(k, row, step, left):
    """Whether the k-th row of a batch belongs to the chunk."""
    return uint32(row + uint32(k) * step) < left


@device
def thread_total(x, base, thread, lanes, left, channels):
    """A thread's sum of x[base + r * channels] over the rows r below `left` that are its own."""
    batch = cuda.local.array(BATCH_ROWS, float32)
    row, step = uint32(thread // lanes), uint32(THREADS // lanes)
    total, lost = ZERO, ZERO
    while in_chunk(BATCH_ROWS - 1, row, step, left):
        load_whole(batch, x, base, row, step, channels)
        part = ZERO
        for k in range(BATCH_ROWS):
            part += batch[k]
        total, lost = add_compensated(total, lost, part)
        row = uint32(row + uint32(BATCH_ROWS) * step)
    if row < left:
        load_rows(batch, x, base, row, step, left, channels)
        part = ZERO
        for k in range(BATCH_ROWS):
            part += batch[k] if in_chunk(k, row, step, left) else ZERO
        total, lost = add_compensated(total, lost, part)
    return total


@device
def column_total(sums, lane, lanes):
    """sums[lane] + sums[lane + lanes] + ...: over the threads of one channel, in their order."""
    total, lost = ZERO, ZERO
    for i in range(lane, THREADS, lanes):
        total, lost = add_compensated(total, lost, sums[i])
    return total


@kernel(threads=THREADS)
def _sum_chunks(
    x: F4s, partials: F4s, channels: U4, lanes: U4, rows_per_chunk: U4, section: I8,
    per_section: U4, begin: U4,
):  # fmt: skip
    """partials[chunk, c] = sum of x over the rows of the chunk; x begins with chunk `begin`."""
    totals = cuda.shared.array(THREADS, float32)
    thread = uint32(cuda.threadIdx.x)
    block = cuda.blockIdx.x, cuda.blockIdx.y, 0
    cut = lanes, rows_per_chunk, section, per_section
    c, chunk, base, left = chunk_of_block(block, thread, 0, channels, cut, begin)
    totals[thread] = thread_total(x, base, thread, lanes, left, channels)
    cuda.syncthreads()
    if thread < lanes:
        partials[int64(chunk) * int64(channels) + int64(c)] = column_total(totals, thread, lanes)


@kernel(threads=THREADS)
def _finish_sums(partials: F4s, sums: F4s, others: F4s, chunks: U4, channels: U4):
    """sums[z, c] = partials[z, 0, c] + partials[z, 1, c] + ..., for image z; blocks with y = 1 take
    the set behind it."""
    totals = cuda.shared.array(THREADS, float32)
    thread, lanes = uint32(cuda.threadIdx.x), uint32(FINISH_LANES)
    c = column_of(uint32(cuda.blockIdx.x), thread, lanes, channels)
    image = uint32(cuda.blockIdx.z)
    of_set = uint32(uint32(cuda.blockIdx.y) * uint32(cuda.gridDim.z) + image)
    total, lost = ZERO, ZERO
    for chunk in range(thread // lanes, chunks, THREADS // FINISH_LANES):
        value = at(partials, place_of(of_set, chunk, chunks, c, channels))
        total, lost = add_compensated(total, lost, value)
    totals[thread] = total
    cuda.syncthreads()
    if thread < lanes:
        result = column_total(totals, thread, lanes)
        if cuda.blockIdx.y == 0:
            sums[uint32(image * channels + c)] = result
        else:
            others[uint32(image * channels + c)] = result


def sum_chunks(launcher: Launcher, cut: Columns, x: Any, partials: Any, first_row: int = 0) -> None:
    """partials[chunk, c] = sum of x over the rows of the chunk, for whole chunks of x, which is
    the array from `first_row` on.
    """
    begin, chunks = chunks_of(cut, first_row, x.size // cut.channels)
    blocks = chunks, *cut.blocks[1:]
    launcher.launch(_sum_chunks, blocks, x, partials, cut.channels, *cut.cut, begin)


def chunks_of(cut: Columns, first_row: int, rows: int) -> tuple[int, int]:
    """(the first, how many) of the chunks that some rows are."""
    begin, end = (
        row // (cut.section or cut.rows) * cut.per_section
        + -(-(row % (cut.section or cut.rows)) // cut.rows_per_chunk)
        for row in (first_row, first_row + rows)
    )
    return begin, end - begin


def finish_sums(
    launcher: Launcher, cut: Columns, partials: Any, sums: Any, others: Any = None
) -> None:
    """sums = the partial sums added over the chunks; `others` those of a second set behind it."""
    blocks = cut.finish_blocks, 1 if others is None else 2, cut.images
    outs = sums, sums if others is None else others
    launcher.launch(_finish_sums, blocks, partials, *outs, cut.chunks, cut.channels)


def two_partials(launcher: Launcher, cut: Columns, workspace: Any) -> tuple[Any, Any]:
    """The workspace as two sets of partial results, one behind the other."""
    size_bytes = cut.partials * FLOAT_BYTES
    first = launcher.part(workspace, 0, cut.partials, "float32")
    return first, launcher.part(workspace, size_bytes, cut.partials, "float32")


def partials_of(launcher: Launcher, cut: Columns, image: int, workspace: Any) -> tuple[Any, Any]:
    """Of these two sets the partial results of one image."""
    count, size_bytes = cut.chunks * cut.channels, cut.partials * FLOAT_BYTES
    start = image * count * FLOAT_BYTES
    first = launcher.part(workspace, start, count, "float32")
    return first, launcher.part(workspace, size_bytes + start, count, "float32")
