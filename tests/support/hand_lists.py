"""A step of four calls, and lists for it that are short enough to be followed on paper.

The trace `small_step` computes a = x + w, c = a + a, g = c + a, w' = w - lr g, so that g = 3 (x +
w) exactly, and any fault of the memory shows in g or w. The lists run it in-core, swapping,
recomputing, in parts, and with the parameter away between steps. Every device's tests walk these.
Read next: `tests/support/tiny_steps.py`, then `execution/executor.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ooctrain.sched.schedule import (
    End,
    Fence,
    Free,
    Instruction,
    Run,
    Schedule,
    SwapIn,
    SwapOut,
    default_start,
)
from ooctrain.step.builder import TraceBuilder
from ooctrain.step.op import Op
from ooctrain.step.trace import Trace

CHUNK = 4096
N = 4 * CHUNK // 4  # floats in four chunks
S = 4 * N


@dataclass(frozen=True, slots=True)
class Add(Op):
    """First input + last input + scalar "plus" if there is one."""

    def cpu(self, pool, ins, outs, workspace, scalars):
        workspace[:] = 0xEE
        np.add(ins[0], ins[-1], out=outs[0])
        outs[0] += np.float32(scalars.get("plus", 0))


@dataclass(frozen=True, slots=True)
class Descend(Op):
    """w - lr * g."""

    pure = False

    def cpu(self, pool, ins, outs, workspace, scalars):
        np.subtract(ins[0], np.float32(scalars["lr"]) * ins[1], out=outs[0])


def small_step(update: Op | None = None) -> Trace:
    """a = x + w; c = a + a; g = c + a; w' = w - lr g, in place. So g = 3 (x + w)."""
    b = TraceBuilder()
    x = b.variable("x", (N,), kind="input")
    w = b.variable("w", (N,), kind="param")
    a, c = b.variable("a", (N,)), b.variable("c", (N,))
    g = b.variable("g", (N,), kind="wgrad")
    new = b.variable("w'", (N,), kind="param")
    b.call("f.a", Add(), (x, w), (a,))
    b.call("f.c", Add(), (a, a), (c,))
    b.call("f.g", Add(), (c, a), (g,), workspace_bytes=1000)
    b.call("update", update or Descend(), (w, g), (new,), reuse={new: w}, pure=False)
    b.carries[new] = w
    return b.build()


X, W, A, C, G, NEW = range(6)
IN_CORE = (
    SwapIn(X, 0, S), Run(0), Run(1), Run(2), Run(3),
    Free(X, 0, S), Free(A, 0, S), Free(C, 0, S), Free(G, 0, S),
)  # fmt: skip
SWAPPED = (
    SwapIn(X, 0, S), Run(0), Free(X, 0, S), SwapOut(A, 0, S), Run(1), Free(A, 0, S),
    SwapOut(W, 0, S), Free(W, 0, S), SwapIn(A, 0, S), Run(2), Free(A, 0, S), Free(C, 0, S),
    SwapIn(W, 0, S), Run(3), Free(G, 0, S),
)  # fmt: skip
RECOMPUTED = (
    SwapIn(X, 0, S), Run(0), Run(1), Free(A, 0, S), Fence(), Run(0), Free(X, 0, S), Run(2), End(2),
    Free(A, 0, S), Free(C, 0, S), Run(3), Free(G, 0, S),
)  # fmt: skip
HALVES = (
    SwapIn(X, 0, CHUNK), SwapIn(X, CHUNK, S), Run(0), Free(X, 0, S), SwapOut(A, CHUNK, S),
    Run(1), Free(A, 2 * CHUNK, S), Free(A, CHUNK, 2 * CHUNK), SwapIn(A, CHUNK, S), Run(2),
    Free(A, 0, S), Free(C, 0, S), Run(3), Free(G, 0, S),
)  # fmt: skip
# The updated parameter leaves the device at the end and comes back for the next step's start.
AWAY = (
    SwapIn(W, 0, S), SwapIn(X, 0, S), Run(0), Run(1), Run(2), Run(3), SwapOut(NEW, 0, S),
    Free(NEW, 0, S), Free(X, 0, S), Free(A, 0, S), Free(C, 0, S), Free(G, 0, S),
)  # fmt: skip


def make_list(
    trace: Trace, instructions: Sequence[Instruction], start: tuple | None = None
) -> Schedule:
    """A schedule of these; `start` as `Schedule` has it, default: the usual one."""
    return Schedule(tuple(instructions), *(start or default_start(trace)))
