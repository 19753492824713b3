"""Words of memory that several threads read and write at once, and sleeping on them.

A word is an element of an int64 array, given by its index. Loads and changes are atomic and happen
in one order on which all threads agree. Threads that run compiled code without the GIL can
communicate only through memory, and `fork_join.py` needs only these few intrinsics for it. Sleeping
is Linux's futex: a thread waits while a word has a value, and another wakes those who wait on it.
On other systems a waiting thread sleeps for `_NAP_US` and looks again. Source: Drepper, "Futexes
are tricky" (2011). Read next: `raw_memory.py`.
"""

from __future__ import annotations

import platform
import sys

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from ooctrain.layers.kernels.cpu.simd.vector import I32, I64, element_pointer

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
