"""Planted bugs of CUDA kernels: each turns a block's 64 numbers round, or means to.

In: nothing. Out: `BUGS`, {name: (kernel, what the emulator says)}, and `RIGHT`, kernels that do the
same without a bug. The one idea: on a GPU most of these give the right answer nearly always, on one
machine, at one block size; what is wrong with them is that nothing promises it.
"""

from __future__ import annotations

import numpy as np

from ooctrain.layers.kernels.cuda.intrinsics import ld4, st4
from ooctrain.layers.kernels.cuda.shim import cuda, float32, kernel, uint32
from ooctrain.layers.kernels.cuda.tensor_core import (
    copy_async,
    copy_commit,
    copy_wait_all,
    copy_wait_but_one,
)

COUNT = 64
LAST = COUNT - 1
QUADS = COUNT // 4
ZERO = np.float32(0)
SIGNATURE = "void(f4[::1], f4[::1])"


@kernel(SIGNATURE, threads=COUNT)
def right(x, y):
    words = cuda.shared.array(COUNT, float32)
    thread = cuda.threadIdx.x
    words[thread] = x[thread]
    cuda.syncthreads()
    y[thread] = words[LAST - thread]


@kernel(SIGNATURE, threads=COUNT)
def right_by_copies(x, y):
    words = cuda.shared.array(COUNT, float32)
    thread = cuda.threadIdx.x
    if thread < QUADS:
        copy_async(words, thread * 4, x, thread * 4, True)
    copy_commit(words)
    copy_wait_all(words)
    cuda.syncthreads()
    y[thread] = words[LAST - thread]


@kernel(SIGNATURE, threads=COUNT)
def no_barrier(x, y):
    words = cuda.shared.array(COUNT, float32)
    thread = cuda.threadIdx.x
    words[thread] = x[thread]
    y[thread] = words[LAST - thread]


@kernel(SIGNATURE, threads=COUNT)
def barrier_of_the_warp_only(x, y):
    words = cuda.shared.array(COUNT, float32)
    thread = cuda.threadIdx.x
    words[thread] = x[thread]
    cuda.syncwarp()
    y[thread] = words[LAST - thread]


@kernel(SIGNATURE, threads=COUNT)
def no_barrier_before_the_next_round(x, y):
    """The tile is filled again while slower threads still read it."""
    words = cuda.shared.array(COUNT, float32)
    thread = cuda.threadIdx.x
    for _ in range(2):
        words[thread] = x[thread]
        cuda.syncthreads()
        y[thread] = words[LAST - thread]


@kernel(SIGNATURE, threads=COUNT)
def two_write_one_word(x, y):
    words = cuda.shared.array(COUNT, float32)
    thread = cuda.threadIdx.x
    words[thread // 2] = x[thread]
    cuda.syncthreads()
    y[thread] = words[thread // 2]


@kernel(SIGNATURE, threads=COUNT)
def one_word_too_far(x, y):
    words = cuda.shared.array(COUNT, float32)
    thread = cuda.threadIdx.x
    words[thread] = x[thread]
    cuda.syncthreads()
    y[thread] = words[COUNT - thread]


@kernel(SIGNATURE, threads=COUNT)
def one_element_too_far(x, y):
    words = cuda.shared.array(COUNT, float32)
    thread = cuda.threadIdx.x
    words[thread] = x[thread + 1]
    cuda.syncthreads()
    y[thread] = words[LAST - thread]


@kernel(SIGNATURE, threads=COUNT)
def barrier_for_some(x, y):
    thread = cuda.threadIdx.x
    if thread < 32:
        cuda.syncthreads()
    y[thread] = x[LAST - thread]


@kernel(SIGNATURE, threads=COUNT)
def shuffle_for_some(x, y):
    thread = cuda.threadIdx.x
    value = x[LAST - thread]
    if thread % 32 < 16:
        value = cuda.shfl_xor_sync(0xFFFFFFFF, value, 0)
    y[thread] = value


@kernel(SIGNATURE, threads=COUNT)
def memory_taken_for_zero(x, y):
    words = cuda.shared.array(COUNT, float32)
    thread = cuda.threadIdx.x
    words[thread] += x[thread]
    cuda.syncthreads()
    y[thread] = words[LAST - thread]


@kernel(SIGNATURE, threads=COUNT)
def copy_read_before_the_wait(x, y):
    words = cuda.shared.array(COUNT, float32)
    thread = cuda.threadIdx.x
    if thread < QUADS:
        copy_async(words, thread * 4, x, thread * 4, True)
    copy_commit(words)
    cuda.syncthreads()
    y[thread] = words[LAST - thread]


@kernel(SIGNATURE, threads=COUNT)
def copy_waited_for_but_no_barrier(x, y):
    words = cuda.shared.array(COUNT, float32)
    thread = cuda.threadIdx.x
    if thread < QUADS:
        copy_async(words, thread * 4, x, thread * 4, True)
    copy_commit(words)
    copy_wait_all(words)
    y[thread] = words[LAST - thread]


@kernel(SIGNATURE, threads=COUNT)
def waits_for_all_groups_but_its_own(x, y):
    words = cuda.shared.array(COUNT, float32)
    thread = cuda.threadIdx.x
    if thread < QUADS:
        copy_async(words, thread * 4, x, thread * 4, True)
    copy_commit(words)
    copy_wait_but_one(words)
    cuda.syncthreads()
    y[thread] = words[LAST - thread]


@kernel(SIGNATURE, threads=COUNT)
def quads_from_an_odd_place(x, y):
    thread = uint32(cuda.threadIdx.x)
    if thread < uint32(QUADS - 1):
        first = uint32(thread * uint32(4))
        st4(y, first, ld4(x, uint32(first + uint32(1))))


RIGHT = {k.function.__name__: k for k in (right, right_by_copies)}
BUGS = {
    "no barrier": (no_barrier, "race"),
    "barrier of the warp only": (barrier_of_the_warp_only, "race"),
    "no barrier before the next round": (no_barrier_before_the_next_round, "race"),
    "two write one word": (two_write_one_word, "race: two threads write"),
    "one word too far": (one_word_too_far, "index outside of shared memory"),
    "one element too far": (one_element_too_far, "out of bounds"),
    "barrier for some": (barrier_for_some, "not reached by all threads"),
    "shuffle for some": (shuffle_for_some, "wait at different places"),
    "memory taken for zero": (memory_taken_for_zero, "wrong result"),
    "copy read before the wait": (copy_read_before_the_wait, "before the copy was waited for"),
    "copy waited for but no barrier": (copy_waited_for_but_no_barrier, "copy|race"),
    "waits for all groups but its own": (
        waits_for_all_groups_but_its_own, "before the copy was waited for"
    ),
    "quads from an odd place": (quads_from_an_odd_place, "no multiple of 4"),
}  # fmt: skip
