"""What the threads of an emulated block share, in compiled code that detects races.

Each shared array is an array of words with a log, which kernels index like any array. A word
remembers its last writer and its last reader, and the interval between barriers of each access. Two
threads that access a word within one interval, one of them writing, have no order on a GPU,
whatever the order in the emulator. A warp's own barrier orders the threads of that warp. Words that
an asynchronous copy will write stay unreadable until the copying thread has waited for it. An
exchange between the lanes of a warp is two plain functions with a pause of the whole warp between
them: the first writes this lane's operands into its row of the exchange table, the second reads the
rows that the hardware would read. Source: PTX ISA, "shfl.sync", "ldmatrix", "mma.m16n8k8". Read
next: `emulator.py`, which puts them into a kernel's text.
"""

from __future__ import annotations

import operator
from types import MappingProxyType

import numpy as np
from numba.core import cgutils, types
from numba.extending import intrinsic, make_attribute_wrapper, models, overload, register_model

from ooctrain.layers.kernels.cpu.runtime.kernel_jit import raising
from ooctrain.layers.kernels.cuda.conv import tensor_core

WARP = 32
# Columns of the log of one word.
WRITER, WRITTEN, WRITTEN_IN_WARP, READER, READ, READ_IN_WARP, PENDING = range(7)
LOG_COLUMNS = 7
# Readers that are more than one thread: of several warps, or of warp w as `SEVERAL - 1 - w`.
SEVERAL = -1
# A thread's queue of copies: the next to arrive, the next to be queued, the group that is open.
AHEAD, BEHIND, GROUP = range(3)
COUNTS, MOST_COPIES = 3, 32


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
            ("places", types.Array(types.int64, 3, "C")),
            ("values", types.Array(types.float32, 3, "C")),
            ("counts", table),
            ("clock", types.Array(types.int64, 1, "C")),
            ("number", types.int64),
            ("thread", types.int64),
        ]
        super().__init__(manager, shared, members)


for _member in ("words", "log", "places", "values", "counts", "clock", "number", "thread"):
    make_attribute_wrapper(SharedType, _member, _member)


@intrinsic
def shared_of(typing_context, words, log, places, values, counts, clock, number, thread):
    """A thread's view of a shared array: `SharedArray.arrays`, the block's clock, its number."""
    kind = SharedType(words)

    def codegen(context, builder, signature, args):
        view = cgutils.create_struct_proxy(kind)(context, builder)
        view.words, view.log, view.places, view.values, view.counts = args[:5]
        view.clock, view.number, view.thread = args[5:]
        for array_type, array in zip(signature.args[:6], args[:6], strict=True):
            context.nrt.incref(builder, array_type, array)
        return view._getvalue()

    arrays = words, log, places, values, counts, clock
    return kind(*arrays, types.int64, types.int64), codegen


@raising
def check_index(shared, index):
    """Faults unless there is such a word."""
    if index < 0 or index >= shared.words.size:
        raise Fault("index outside of shared memory", shared.number, index, shared.thread, SEVERAL)


@raising
def _unordered(shared, other, interval, warp_interval):
    """Whether an access of `other` has no barrier between it and this thread's next access."""
    if interval != shared.clock[0] or other == shared.thread:
        return False
    warp = shared.thread // WARP
    other_warp = SEVERAL - 1 - other if other < SEVERAL else other // WARP
    same_warp = other != SEVERAL and other_warp == warp
    return not (same_warp and warp_interval < shared.clock[1 + warp])


@raising
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
    same_warp = word[READER] // WARP == warp or word[READER] == SEVERAL - 1 - warp
    # Reads of this warp before its last barrier race with nothing that this one does not race with.
    ordered = same_warp and word[READ_IN_WARP] < shared.clock[1 + warp]
    if word[READ] != shared.clock[0] or word[READER] == shared.thread or ordered:
        word[READER] = shared.thread
    elif same_warp:
        word[READER] = SEVERAL - 1 - warp
    else:
        word[READER] = SEVERAL
    word[READ], word[READ_IN_WARP] = shared.clock[0], shared.clock[1 + warp]


@raising
def note_write(shared, index):
    """Checks and logs a write of a word."""
    check_index(shared, index)
    word = shared.log[index]
    if word[PENDING] != 0 and word[WRITER] != shared.thread:
        raise Fault("race: write of what a copy will write", shared.number, index, shared.thread,
                    word[WRITER])  # fmt: skip
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


@raising
def copy_later(shared, offset, source, source_offset, valid):
    """tensor_core.copy_async: the words are unreadable until this thread has waited."""
    if offset % 4 != 0 or (valid and source_offset % 4 != 0):
        raise Fault("copy at an offset that is not a multiple of 4", shared.number, offset,
                    shared.thread, SEVERAL)  # fmt: skip
    count = shared.counts[shared.thread]
    if count[BEHIND] - count[AHEAD] >= MOST_COPIES:
        raise Fault("too many copies under way", shared.number, offset, shared.thread, SEVERAL)
    slot = count[BEHIND] % MOST_COPIES
    for lane in range(4):
        note_write(shared, offset + lane)
        shared.log[offset + lane, PENDING] += 1
        value = source[source_offset + lane] if valid else np.float32(0)
        shared.values[shared.thread, slot, lane] = value
    shared.places[shared.thread, slot, 0] = offset
    shared.places[shared.thread, slot, 1] = count[GROUP]
    count[BEHIND] += 1


@raising
def commit(shared):
    """tensor_core.copy_commit."""
    shared.counts[shared.thread, GROUP] += 1


@raising
def _wait(shared, pending):
    """Lets all copies of this thread arrive but those of the `pending` newest groups."""
    count = shared.counts[shared.thread]
    while count[AHEAD] < count[BEHIND]:
        slot = count[AHEAD] % MOST_COPIES
        if shared.places[shared.thread, slot, 1] >= count[GROUP] - pending:
            return
        offset = shared.places[shared.thread, slot, 0]
        for lane in range(4):
            note_write(shared, offset + lane)
            shared.log[offset + lane, PENDING] -= 1
            shared.words[offset + lane] = shared.values[shared.thread, slot, lane]
        count[AHEAD] += 1


@raising
def wait_all(shared):
    """tensor_core.copy_wait_all."""
    _wait(shared, 0)


@raising
def wait_but_one(shared):
    """tensor_core.copy_wait_but_one."""
    _wait(shared, 1)


#: what stands in for the instructions of asynchronous copies
COPIES = MappingProxyType({
    tensor_core.copy_async: copy_later,
    tensor_core.copy_commit: commit,
    tensor_core.copy_wait_all: wait_all,
    tensor_core.copy_wait_but_one: wait_but_one,
})  # fmt: skip


class SharedArray:
    """The arrays behind one shared array of a block, made once for a launch.

    Args:
        size: words.
        dtype: element type of a word.
        threads: threads of a block, each with its own queue of copies.
    """

    def __init__(self, size: int, dtype: str, threads: int):
        self.words = np.zeros(size, dtype)
        self.log = np.full((size, LOG_COLUMNS), SEVERAL, np.int64)
        self.log[:, PENDING] = 0
        self._places = np.zeros((threads, MOST_COPIES, 2), np.int64)
        self._values = np.zeros((threads, MOST_COPIES, 4), np.float32)
        self._counts = np.zeros((threads, COUNTS), np.int64)

    @property
    def arrays(self) -> tuple[np.ndarray, ...]:
        """What `shared_of` takes first."""
        return self.words, self.log, self._places, self._values, self._counts

    def poison(self) -> None:
        """NaN (or the largest integer) everywhere, as a new block must expect."""
        floating = self.words.dtype.kind == "f"
        self.words[:] = np.nan if floating else np.iinfo(self.words.dtype).max
        self.log[:, PENDING] = 0
        self._counts[:] = 0


@raising
def local_array(size, dtype):
    """A thread's own array, full of NaN (or -1), since hardware clears nothing."""
    array = np.empty(size, dtype)
    array.view(np.uint8)[:] = 255
    return array


# Exchanges between the lanes of a warp: shuffles and matrices, as publish and collect.

#: values that a lane may publish at once
SLOTS = 8


def same_type(like, value):
    """`value`, stored as float64, as the type of `like`; exact for 32-bit numbers."""


@overload(same_type)
def _same_type(like, value):
    cast = types.unliteral(like)
    return lambda like, value: cast(value)


@raising
def publish_value(table, turn, thread, value, lane):
    """Offers one value."""
    table[turn, thread, 0] = value


publish_shfl = publish_up = publish_down = publish_xor = publish_value


@raising
def collect_shfl(table, turn, thread, value, lane):
    """cuda.shfl_sync: the value of lane `lane`."""
    return same_type(value, table[turn, thread - thread % WARP + lane % WARP, 0])


@raising
def collect_xor(table, turn, thread, value, lane):
    """cuda.shfl_xor_sync: the value of this lane's partner."""
    return same_type(value, table[turn, thread ^ lane, 0])


@raising
def collect_down(table, turn, thread, value, delta):
    """cuda.shfl_down_sync: the value of the lane `delta` further; its own beyond the warp."""
    inside = thread % WARP + delta < WARP
    return same_type(value, table[turn, thread + delta if inside else thread, 0])


@raising
def collect_up(table, turn, thread, value, delta):
    """cuda.shfl_up_sync: the value of the lane `delta` before; its own beyond the warp."""
    inside = thread % WARP >= delta
    return same_type(value, table[turn, thread - delta if inside else thread, 0])


#: name in a kernel's source -> ending of the two functions here
SHUFFLES = MappingProxyType({
    "cuda.shfl_sync": "shfl", "cuda.shfl_xor_sync": "xor",
    "cuda.shfl_down_sync": "down", "cuda.shfl_up_sync": "up",
})  # fmt: skip


@raising
def publish_ldmatrix(table, turn, thread, tile, offset):
    """Offers the offset of one row."""
    if offset % 4 != 0:
        raise ValueError("ldmatrix at an offset that is not a multiple of 4", offset)
    table[turn, thread, 0] = offset


@raising
def _matrix_word(table, turn, thread, tile, matrix):
    lane = thread % WARP
    row = np.int64(table[turn, thread - lane + matrix * 8 + lane // 4, 0])
    return tile[row + lane % 4]


@raising
def collect_ldmatrix(table, turn, thread, tile, offset):
    """tensor_core.ldmatrix_x4: word lane % 4 of row lane // 4 of each matrix."""
    return (
        _matrix_word(table, turn, thread, tile, 0), _matrix_word(table, turn, thread, tile, 1),
        _matrix_word(table, turn, thread, tile, 2), _matrix_word(table, turn, thread, tile, 3),
    )  # fmt: skip


@raising
def publish_mma(table, turn, thread, a, b, c):
    """Offers this lane's elements of a and b."""
    for i in range(4):
        table[turn, thread, i] = a[i]
    for i in range(2):
        table[turn, thread, 4 + i] = b[i]


@raising
def _product(offered, first, row, column, total):
    """total + row `row` of a times column `column` of b, elements where tensor_core says."""
    for k in range(8):
        a = offered[first + row % 8 * 4 + k % 4, row // 8 + k // 4 * 2]
        total += a * offered[first + column * 4 + k % 4, 4 + k // 4]
    return np.float32(total)


@raising
def collect_mma(table, turn, thread, a, b, c):
    """tensor_core.mma_tf32: this lane's four elements of c + a b."""
    lane = thread % WARP
    first, row, column = thread - lane, lane // 4, lane % 4 * 2
    offered = table[turn]
    return (
        _product(offered, first, row, column, c[0]),
        _product(offered, first, row, column + 1, c[1]),
        _product(offered, first, row + 8, column, c[2]),
        _product(offered, first, row + 8, column + 1, c[3]),
    )


#: the same for intrinsics
EXCHANGES = MappingProxyType({
    tensor_core.ldmatrix_x4: "ldmatrix",
    tensor_core.mma_tf32: "mma",
})  # fmt: skip
