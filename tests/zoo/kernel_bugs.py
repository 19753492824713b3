"""Planted bugs of CUDA kernels that are meant to reverse a block's 64 numbers.

`BUGS` is {name: (kernel, what the emulator says)}, and `RIGHT` has kernels that do the same without
a bug; most bugs are one of these with a line changed. On a GPU most of them give the right answer
nearly always, on one machine, at one block size; but nothing guarantees it. Read next:
`planting.py`, `test_kernel_bugs.py`.
"""

from __future__ import annotations

from zoo.planting import with_bug

from ooctrain.layers.kernels.cuda.conv.tensor_core import (
    copy_async,
    copy_commit,
    copy_wait_all,
    copy_wait_but_one,  # noqa: F401 (a bug calls it)
)
from ooctrain.layers.kernels.cuda.runtime.intrinsics import ld4, st4
from ooctrain.layers.kernels.cuda.runtime.shim import Kernel, cuda, float32, kernel, uint32

COUNT = 64
LAST = COUNT - 1
QUADS = COUNT // 4
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
def quads_from_an_odd_place(x, y):
    thread = uint32(cuda.threadIdx.x)
    if thread < uint32(QUADS - 1):
        first = uint32(thread * uint32(4))
        st4(y, first, ld4(x, uint32(first + uint32(1))))


def changed(right: Kernel, piece: str, wrong: str) -> Kernel:
    """A kernel of this file with one piece of its text changed."""
    return with_bug(right.function, piece, wrong)


FILL = "words[thread] = x[thread]"
TURN = "y[thread] = words[LAST - thread]"
BARRIER = "cuda.syncthreads()"
#: The tile is filled again while slower threads still read it.
TWO_ROUNDS = f"""\
for _ in range(2):
        {FILL}
        {BARRIER}
        {TURN}"""

RIGHT = {k.function.__name__: k for k in (right, right_by_copies)}
BUGS: dict[str, tuple[Kernel, str]] = {
    "no barrier": (changed(right, BARRIER, "pass"), "race"),
    "barrier of the warp only": (changed(right, BARRIER, "cuda.syncwarp()"), "race"),
    "no barrier before the next round": (
        changed(right, f"{FILL}\n    {BARRIER}\n    {TURN}", TWO_ROUNDS), "race"
    ),
    "two write one word": (
        changed(right, "words[thread]", "words[thread // 2]"), "race: two threads write"
    ),
    "one word too far": (
        changed(right, "words[LAST", "words[COUNT"), "index outside of shared memory"
    ),
    "one element too far": (changed(right, "x[thread]", "x[thread + 1]"), "out of bounds"),
    "barrier for some": (barrier_for_some, "not reached by all threads"),
    "shuffle for some": (shuffle_for_some, "wait at different places"),
    "memory taken for zero": (
        changed(right, "words[thread] =", "words[thread] +="), "wrong result"
    ),
    "copy read before the wait": (
        changed(right_by_copies, "copy_wait_all(words)", "pass"), "before the copy was waited for"
    ),
    "copy waited for but no barrier": (changed(right_by_copies, BARRIER, "pass"), "copy|race"),
    "waits for all groups but its own": (
        changed(right_by_copies, "copy_wait_all", "copy_wait_but_one"),
        "before the copy was waited for",
    ),
    "quads from an odd place": (quads_from_an_odd_place, "not a multiple of 4"),
}  # fmt: skip
