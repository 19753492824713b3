"""Shared memory of an emulated block that notices races, stray indices and early reads.

In: one word array per shared array, with a log beside it. Out: a value that kernels index like an
array. The one idea: every word remembers who wrote and who read it last, and in which interval
between barriers; two threads that meet at a word within one interval, one of them writing, have no
order on a GPU, whatever the emulator's own order makes of it. A warp's own barrier orders the
threads of that warp. Words that an asynchronous copy will write stay unreadable until the copying
thread has waited for it. Read next: `emulator.py`.
"""

from __future__ import annotations

import operator

import numpy as np
from numba.core import cgutils, types
from numba.extending import (
    intrinsic,
    make_attribute_wrapper,
    models,
    overload,
    register_model,
)

from ooctrain.layers.kernels.cpu.jit import inner

WARP = 32
# Columns of the log of one word.
WRITER, WRITTEN, WRITTEN_IN_WARP, READER, READ, READ_IN_WARP, PENDING = range(7)
LOG_COLUMNS = 7
# Readers that are more than one thread: of several warps, or of warp w as `SEVERAL - 1 - w`.
SEVERAL = -1


class Fault(Exception):
    """(what, array number, word, thread, other thread): raised inside compiled code."""


class SharedType(types.Type):
    """Numba's type of an emulated shared array."""

    def __init__(self, words):
        self.words = words
        super().__init__(name=f"EmulatedShared({words})")


@register_model(SharedType)
class _SharedModel(models.StructModel):
    def __init__(self, manager, shared):
        table = types.Array(types.int64, 2, "C")
        members = [
            ("words", shared.words),
            ("log", table),
            ("clock", types.Array(types.int64, 1, "C")),
            ("number", types.int64),
            ("thread", types.int64),
        ]
        super().__init__(manager, shared, members)


for _member in ("words", "log", "clock", "number", "thread"):
    make_attribute_wrapper(SharedType, _member, _member)


@intrinsic
def shared_of(typing_context, words, log, clock, number, thread):
    """A thread's view of a shared array."""
    kind = SharedType(words)

    def codegen(context, builder, signature, args):
        view = cgutils.create_struct_proxy(kind)(context, builder)
        view.words, view.log, view.clock, view.number, view.thread = args
        for array_type, array in zip(signature.args[:3], args[:3], strict=True):
            context.nrt.incref(builder, array_type, array)
        return view._getvalue()

    return kind(words, log, clock, types.int64, types.int64), codegen


@inner
def check_index(shared, index):
    """Faults unless there is such a word."""
    if index < 0 or index >= shared.words.size:
        raise Fault("index outside of shared memory", shared.number, index, shared.thread, SEVERAL)


@inner
def _unordered(shared, other, interval, warp_interval):
    """Whether an access of `other` has no barrier between it and this thread's next access."""
    if interval != shared.clock[0] or other == shared.thread:
        return False
    warp = shared.thread // WARP
    other_warp = SEVERAL - 1 - other if other < SEVERAL else other // WARP
    same_warp = other != SEVERAL and other_warp == warp
    return not (same_warp and warp_interval < shared.clock[1 + warp])


@inner
def note_read(shared, index):
    """Checks and logs a read of a word."""
    check_index(shared, index)
    word = shared.log[index]
    if word[PENDING] != 0:
        raise Fault("read before the copy was waited for", shared.number, index, shared.thread,
                    word[WRITER])  # fmt: skip
    if _unordered(shared, word[WRITER], word[WRITTEN], word[WRITTEN_IN_WARP]):
        raise Fault("race: read of what another thread writes", shared.number, index,
                    shared.thread, word[WRITER])  # fmt: skip
    warp = shared.thread // WARP
    if word[READ] != shared.clock[0] or word[READER] == shared.thread:
        word[READER] = shared.thread
    elif word[READER] // WARP == warp or word[READER] == SEVERAL - 1 - warp:
        word[READER] = SEVERAL - 1 - warp
    else:
        word[READER] = SEVERAL
    word[READ], word[READ_IN_WARP] = shared.clock[0], shared.clock[1 + warp]


@inner
def note_write(shared, index):
    """Checks and logs a write of a word."""
    check_index(shared, index)
    word = shared.log[index]
    if _unordered(shared, word[WRITER], word[WRITTEN], word[WRITTEN_IN_WARP]):
        raise Fault("race: two threads write", shared.number, index, shared.thread, word[WRITER])
    if _unordered(shared, word[READER], word[READ], word[READ_IN_WARP]):
        raise Fault("race: write of what another thread reads", shared.number, index,
                    shared.thread, word[READER])  # fmt: skip
    word[WRITER] = shared.thread
    word[WRITTEN] = shared.clock[0]
    word[WRITTEN_IN_WARP] = shared.clock[1 + shared.thread // WARP]


@overload(operator.getitem)
def _getitem(shared, index):
    if isinstance(shared, SharedType):

        def read(shared, index):
            note_read(shared, index)
            return shared.words[index]

        return read
    return None


@overload(operator.setitem)
def _setitem(shared, index, value):
    if isinstance(shared, SharedType):

        def write(shared, index, value):
            note_write(shared, index)
            shared.words[index] = value

        return write
    return None


class SharedArray:
    """The arrays behind one shared array of a block, made once for a launch.

    Args:
        size: words.
        dtype: of a word.
    """

    def __init__(self, size: int, dtype: str):
        self.words = np.zeros(size, dtype)
        self.log = np.full((size, LOG_COLUMNS), SEVERAL, np.int64)
        self.log[:, PENDING] = 0

    def poison(self) -> None:
        """NaN (or the largest integer) everywhere, as a new block must expect."""
        floating = self.words.dtype.kind == "f"
        self.words[:] = np.nan if floating else np.iinfo(self.words.dtype).max
        self.log[:, PENDING] = 0


@inner
def local_array(size, dtype):
    """A thread's own array, full of NaN (or -1), since hardware clears nothing."""
    array = np.empty(size, dtype)
    array.view(np.uint8)[:] = 255
    return array
