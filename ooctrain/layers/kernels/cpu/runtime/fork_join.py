"""How threads share the chunks of one kernel call: start, draw, join, all without the GIL.

All threads of a pool share `words`, an int64 array into which a job is written; every chunk of the
job is then done once. Workers wait in compiled code, first spinning for some tens of microseconds,
then asleep. A job thus starts by incrementing one word and costs as much as in OpenMP, without
handing over Python's lock. The caller runs chunks like any worker and never waits for a worker that
has not entered the job: it closes the job, and then waits only for those inside it. Each thread
begins with a contiguous span of chunks, so that it finds in its cache the data that it wrote in the
previous call. A thread that has finished its span takes chunks from the spans of others, so a
thread that a copy engine delays runs fewer. The result never depends on which thread runs a chunk:
borders depend on shapes alone. Source: spin, then sleep, as in libgomp and in XNNPACK's
pthreadpool. Read next: `kernel_jit.py`.
"""

from __future__ import annotations

import platform
import sys

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, register_jitable

from ooctrain.layers.kernels.cpu.runtime.entry import DONE, ENTRY_TYPE, MOVED, array_at, word_at
from ooctrain.layers.kernels.cpu.runtime.kernel_jit import inner, kernel
from ooctrain.layers.kernels.cpu.simd.simd import I32, I64, element_pointer
from ooctrain.layers.kernels.signature import I8, I8s

# Words that several threads read and write at once. A word is an element of an int64 array, given
# by its index. Loads and changes are atomic and happen in one order on which all threads agree,
# since threads that run compiled code without the GIL can communicate only through memory. Sleeping
# is Linux's futex: a thread waits while a word has a value, and another wakes those that wait on
# it. On other systems a waiting thread sleeps for `_NAP_US` and looks again. Source: Drepper,
# "Futexes are tricky" (2011).

#: Number of the system call by processor; where it is not known, a waiting thread naps instead.
_FUTEX_CALLS = {"x86_64": 202, "aarch64": 98, "riscv64": 98}
_FUTEX = _FUTEX_CALLS.get(platform.machine(), 0) if sys.platform == "linux" else 0
_WAIT_PRIVATE, _WAKE_PRIVATE = 128, 129
_NAP_US = 100
_PAUSES = {
    "x86_64": "llvm.x86.sse2.pause",
    "aarch64": "llvm.aarch64.isb",
    "arm64": "llvm.aarch64.isb",
}
_PAUSE = _PAUSES.get(platform.machine(), "")
_ORDER = "seq_cst"


def _pointer(context, builder, signature, args):
    return element_pointer(context, builder, signature.args[0], args[0], args[1])


def _call_c(builder, name, result, *arguments, fixed=None):
    """Calls a function of the C library; only the first `fixed` arguments have declared types."""
    declared = [a.type for a in arguments[:fixed]]
    signature = ir.FunctionType(result, declared, var_arg=fixed is not None)
    return builder.call(cgutils.get_or_insert_function(builder.module, signature, name), arguments)


@intrinsic
def atomic_load(typingctx, words, index):
    """words[index]."""

    def codegen(context, builder, signature, args):
        return builder.load_atomic(_pointer(context, builder, signature, args), _ORDER, 8)

    return types.int64(words, types.int64), codegen


@intrinsic
def atomic_store(typingctx, words, index, value):
    """words[index] = value."""

    def codegen(context, builder, signature, args):
        builder.store_atomic(args[2], _pointer(context, builder, signature, args), _ORDER, 8)
        return context.get_dummy_value()

    return types.void(words, types.int64, types.int64), codegen


@intrinsic
def atomic_add(typingctx, words, index, value):
    """words[index] += value; returns what it was before."""

    def codegen(context, builder, signature, args):
        pointer = _pointer(context, builder, signature, args)
        return builder.atomic_rmw("add", pointer, args[2], _ORDER)

    return types.int64(words, types.int64, types.int64), codegen


@intrinsic
def atomic_replace(typingctx, words, index, old, new):
    """words[index] = new if it is `old`; returns what it was before."""

    def codegen(context, builder, signature, args):
        pointer = _pointer(context, builder, signature, args)
        both = builder.cmpxchg(pointer, args[2], args[3], _ORDER, _ORDER)
        return builder.extract_value(both, 0)

    return types.int64(words, types.int64, types.int64, types.int64), codegen


@intrinsic
def pause(typingctx):
    """Tells the processor that this is a loop of waiting, so that it burns less."""

    def codegen(context, builder, signature, args):
        if _PAUSE:
            _call_c(builder, _PAUSE, ir.VoidType())
        return context.get_dummy_value()

    return types.void(), codegen


@intrinsic
def sleep_while(typingctx, words, index, value):
    """Sleeps while the low 32 bits of words[index] are those of `value`; may also return early."""

    def codegen(context, builder, signature, args):
        if _FUTEX:
            pointer = builder.ptrtoint(_pointer(context, builder, signature, args), I64)
            low = builder.zext(builder.trunc(args[2], I32), I64)
            rest = [I64(_WAIT_PRIVATE), low, I64(0)]
            _call_c(builder, "syscall", I64, I64(_FUTEX), pointer, *rest, fixed=1)
        else:
            _call_c(builder, "usleep", I32, I32(_NAP_US))
        return context.get_dummy_value()

    return types.void(words, types.int64, types.int64), codegen


@intrinsic
def wake(typingctx, words, index, count):
    """Wakes at most `count` threads that sleep on words[index]."""

    def codegen(context, builder, signature, args):
        if _FUTEX:
            pointer = builder.ptrtoint(_pointer(context, builder, signature, args), I64)
            rest = [I64(_WAKE_PRIVATE), args[2]]
            _call_c(builder, "syscall", I64, I64(_FUTEX), pointer, *rest, fixed=1)
        return context.get_dummy_value()

    return types.void(words, types.int64, types.int64), codegen


@intrinsic
def processor_here(typingctx):
    """The number of the processor that runs the caller, -1 where the system does not say."""

    def codegen(context, builder, signature, args):
        if sys.platform != "linux":
            return I64(-1)
        return builder.sext(_call_c(builder, "sched_getcpu", I32), I64)

    return types.int64(), codegen


# A job in words: which word holds what, then what workers and the caller do.

# Places in `words`. What different threads write lies on different cache lines of 8 words.
GENERATION = 0  # raised once for each job: what idle workers watch
STATE = 8  # OPEN while workers may enter + WAITING if the caller sleeps + number of workers inside
SLEEPERS = 16  # idle workers that need to be woken
STOP = 17  # 1: workers return
BUSY = 24  # 1: some caller's job is under way
FAILED = 25  # a chunk whose kernel raised, plus 1
HERE = 26  # the processor that the last caller ran on
TEAM = 32  # how many threads there are, the caller counted among them
SPINS = 33  # rounds that the caller waits at the end before it sleeps
AVOIDED = 34  # the processor that the workers keep off
JOB = 40  # what is to be done, in this order:
ENTRY, FUNCTION, ARGUMENTS, ITEMS, CHUNK, ORDER, MEMBERS = range(JOB, JOB + 7)
SPANS = 48  # for each member of the team: next chunk, end; a line each
LINE = 8

OPEN, WAITING = 1 << 20, 1 << 21
INSIDE = OPEN - 1


@register_jitable
def words_of(threads):
    """Words that a pool of `threads` needs."""
    return SPANS + LINE * threads


@intrinsic
def _call_entry(typingctx, entry, function, arguments, lo, hi, thread):
    """Calls the machine code at `entry` (see `entry.py`); 0 unless the kernel raised."""
    whole = types.int64

    def codegen(context, builder, signature, args):
        code = builder.inttoptr(args[0], ENTRY_TYPE.as_pointer())
        return builder.sext(builder.call(code, args[1:]), I64)

    return whole(whole, whole, whole, whole, whole, whole), codegen


@inner
def _draw(words, thread):
    """Runs chunks until none is left, first those of this thread's own span."""
    members, chunk, items = words[MEMBERS], words[CHUNK], words[ITEMS]
    for step in range(members):
        span = SPANS + (thread + step) % members * LINE
        end = words[span + 1]
        while True:
            index = atomic_add(words, span, 1)
            if index >= end:
                break
            place = word_at(words[ORDER], index) if words[ORDER] != 0 else index
            lo = place * chunk
            hi = min(items, lo + chunk)
            entry, function, arguments = words[ENTRY], words[FUNCTION], words[ARGUMENTS]
            if _call_entry(entry, function, arguments, lo, hi, thread) != 0:
                atomic_store(words, FAILED, place + 1)


@inner
def _enter(words):
    """Counts this worker in, unless the job is closed."""
    state = atomic_load(words, STATE)
    while state & OPEN:
        before = atomic_replace(words, STATE, state, state + 1)
        if before == state:
            return True
        state = before
    return False


@inner
def _leave(words):
    """Counts this worker out, and wakes the caller if it sleeps and this was the last."""
    before = atomic_add(words, STATE, -1)
    if before & WAITING and before & INSIDE == 1:
        wake(words, STATE, 1)


@inner
def _await_job(words, seen, spins):
    """Waits until the generation is no longer `seen`; returns it."""
    for _ in range(spins):
        if atomic_load(words, GENERATION) != seen:
            return atomic_load(words, GENERATION)
        pause()
    # The caller raises the generation and then looks for sleepers; here it is the other way
    # round, so at least one of the two sees the other.
    atomic_add(words, SLEEPERS, 1)
    while atomic_load(words, GENERATION) == seen:
        sleep_while(words, GENERATION, seen)
    atomic_add(words, SLEEPERS, -1)
    return atomic_load(words, GENERATION)


@kernel
def serve(words: I8s, thread: I8, spins: I8):
    """The life of worker `thread`: waits for jobs, takes part in them, until `stop`."""
    seen = 0
    while True:
        seen = _await_job(words, seen, spins)
        if atomic_load(words, STOP) != 0:
            return
        if _enter(words):
            _draw(words, thread)
            _leave(words)


@inner
def _rouse(words, wanted):
    """Tells idle workers of a job: the spinning ones see it, sleepers are woken."""
    atomic_add(words, GENERATION, 1)
    asleep = atomic_load(words, SLEEPERS)
    if asleep > 0:
        wake(words, GENERATION, min(asleep, wanted))


@inner
def _join(words, spins):
    """Closes the job and waits for the workers inside."""
    atomic_add(words, STATE, -OPEN)
    for _ in range(spins):
        if atomic_load(words, STATE) == 0:
            return
        pause()
    state = atomic_add(words, STATE, WAITING) + WAITING
    while state & INSIDE:
        sleep_while(words, STATE, state)
        state = atomic_load(words, STATE)
    atomic_store(words, STATE, 0)


@inner
def run_job(team, entry, function, arguments, items, chunk, order):
    """Runs all chunks; the caller is thread 0 of its team, or alone where another caller has it.

    Args:
        team: address of the team's words.
        entry, function, arguments: addresses, see `entry.py`.
        items, chunk: chunk i is [i * chunk, (i + 1) * chunk), the last one shorter.
        order: address of the numbers of all chunks in the order to draw them, or 0.

    Returns DONE or MOVED; where a kernel raised, -1 - (the number of its chunk).
    """
    words = array_at(team, words_of(word_at(team, TEAM)), np.int64)
    chunks = (items + chunk - 1) // chunk
    members = min(words[TEAM], chunks)
    if members <= 1 or atomic_replace(words, BUSY, 0, 1) != 0:
        return _run_alone(entry, function, arguments, items, chunk, order)
    words[ENTRY], words[FUNCTION], words[ARGUMENTS] = entry, function, arguments
    words[ITEMS], words[CHUNK], words[ORDER], words[MEMBERS] = items, chunk, order, members
    words[FAILED] = 0
    for member in range(members):
        words[SPANS + member * LINE] = member * chunks // members
        words[SPANS + member * LINE + 1] = (member + 1) * chunks // members
    atomic_store(words, STATE, OPEN)
    _rouse(words, members - 1)
    _draw(words, 0)
    _join(words, words[SPINS])
    words[HERE] = processor_here()
    moved, failed = words[HERE] != words[AVOIDED], words[FAILED]
    atomic_store(words, BUSY, 0)
    if failed != 0:
        return -failed
    return MOVED if moved else DONE


@inner
def _run_alone(entry, function, arguments, items, chunk, order):
    """As `run_job`, without a team."""
    for index in range((items + chunk - 1) // chunk):
        place = word_at(order, index) if order != 0 else index
        lo = place * chunk
        hi = min(items, lo + chunk)
        if _call_entry(entry, function, arguments, lo, hi, 0) != 0:
            return -1 - place
    return DONE


@kernel
def stop(words: I8s, threads: I8):
    """Makes all workers return."""
    atomic_store(words, STOP, 1)
    _rouse(words, threads)


@kernel
def spin(words: I8s, spins: I8):
    """Waits as an idle worker does, for timing: `words` must not be in use."""
    for _ in range(spins):
        if atomic_load(words, GENERATION) != 0:
            return
        pause()
