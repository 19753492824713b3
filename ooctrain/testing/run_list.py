"""Executes a list of a random trace for real: threads, mappings, copies, with hashes for kernels.

A legal list for a trace of `random_traces.py` runs for several steps, and the values after each
step can be compared with `interpreter.in_core`. An operation that hashes its inputs makes any wrong
byte visible in every later result. It also fills its workspace with a mark and checks afterwards
that the mark is intact.

The order of the list alone decides what is computed and how much memory it takes. So however long
copies and calls last, three steps must leave the bytes of in-core training, and the most that the
allocator ever grants must be the plan's peak (`harm_of_delays`). Source: docs/schedule.md,
"Ledgers", theorem 1. Read next: `planner_laws.py`; `tests/properties/test_executor_laws.py`.
"""

from __future__ import annotations

import ctypes
import hashlib
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ooctrain.alloc.registry import AllocatorChoice, choose_allocator
from ooctrain.devices.cpu.copy_engine import CopyLink
from ooctrain.devices.cpu.device import CpuDevice
from ooctrain.devices.cpu.host_vm import PAGE_BYTES
from ooctrain.devices.host_file import HostFile
from ooctrain.devices.interface import Debug, Link
from ooctrain.errors import OoctrainError
from ooctrain.execution.executor import Session, host_extent_bytes
from ooctrain.execution.placement import reserved_peak
from ooctrain.execution.result import StepResult
from ooctrain.sched.host import SLOT_ALIGN_BYTES
from ooctrain.sched.schedule import Plan, Schedule
from ooctrain.step.op import Op
from ooctrain.step.trace import Trace
from ooctrain.testing.byte_list import LawBroken
from ooctrain.testing.interpreter import in_core
from ooctrain.testing.random_traces import random_values


@dataclass(frozen=True, slots=True)
class HashOp(Op):
    """Computes what `interpreter.fake_outputs` says.

    Args:
        call: name of the call that it stands for.
    """

    call: str

    def cpu(
        self, pool: Any, ins: Sequence[np.ndarray], outs: Sequence[np.ndarray],
        workspace: np.ndarray, scalars: Mapping[str, float | int],
    ) -> None:  # fmt: skip
        """Hashes; the workspace must stay its own meanwhile."""
        mark = hashlib.shake_128(self.call.encode()).digest(1)[0]
        workspace[:] = mark
        text = f"{self.call}|".encode() + b"|".join(array.tobytes() for array in ins)
        for position, out in enumerate(outs):
            digest = hashlib.shake_128(f"{position}|".encode() + text).digest(out.size)
            out[:] = np.frombuffer(digest, np.uint8)
        if not (workspace == mark).all():
            raise LawBroken(f"the workspace of {self.call} was overwritten")


@dataclass(frozen=True, slots=True)
class Way:
    """How to run a list.

    Args:
        choice: the allocator.
        link: "duplex" or "shared".
        link_bytes_per_us: speed of each direction; None: as fast as it goes.
        debug: poison, delays, synchronous mode, ledger check.
        room: how many times the reserved peak the arena has.
        slab: makes the host slab of a size; `int`: in memory.
    """

    choice: AllocatorChoice
    link: Link = "duplex"
    link_bytes_per_us: float | None = None
    debug: Debug = field(default_factory=Debug)
    room: int = 1
    slab: Callable[[int], int | HostFile] = int


@dataclass(frozen=True, slots=True)
class Ran:
    """What came of it.

    Args:
        persistent: after each step, {initial variable: its value}.
        results: results of each step.
        used_bytes: what the arena held of the machine's memory at the end.
        reserved_bytes: the reserved peak that the replay foretold: the size of the arena.
        granted_bytes: the allocator's own high-water mark.
    """

    persistent: Sequence[Mapping[int, bytes]]
    results: Sequence[StepResult]
    used_bytes: int
    reserved_bytes: int
    granted_bytes: int


def executable(trace: Trace) -> Trace:
    """The trace with operations that can run."""
    calls = tuple(replace(call, op=HashOp(call.name)) for call in trace.calls)
    return Trace(trace.variables, calls, trace.carries, trace.outputs)


def run_list(
    trace: Trace, schedule: Schedule, way: Way, start: Mapping[int, bytes],
    inputs: Sequence[Mapping[int, bytes]], wanted: Sequence[int] = (),
) -> Ran:  # fmt: skip
    """Runs a list once for each of `inputs`, by default in an arena of the reserved peak.

    Args:
        start: values of the persistent variables.
        inputs: values of the inputs, for each step.
    """
    runnable = executable(trace)
    reserved = reserved_peak(schedule, runnable, way.choice)
    align_bytes = SLOT_ALIGN_BYTES if way.slab is int else HostFile.block_bytes
    device = CpuDevice(
        max(PAGE_BYTES, reserved * way.room),
        way.slab(host_extent_bytes(runnable, schedule, align_bytes)),
        link=CopyLink(way.link, way.link_bytes_per_us, way.link_bytes_per_us,
                      copy_bytes=ctypes.memmove),
        debug=way.debug,
    )  # fmt: skip
    try:
        allocator = way.choice.make(device.memory)
        session = Session(runnable, schedule, device, allocator, _arrays(start), wanted)
        persistent, results = [], []
        for values in inputs:
            results.append(session.run_step(_arrays(values), {}))
            allocator.check()
            persistent.append({v: session.read(v).tobytes() for v in runnable.end_variables})
        granted = allocator.stats().peak_granted_bytes
        used = device.memory.used_bytes()
        session.close()
        return Ran(persistent, results, used, reserved, granted)
    finally:
        device.close()


def _arrays(values: Mapping[int, bytes]) -> dict[int, np.ndarray]:
    return {v: np.frombuffer(value, np.uint8) for v, value in values.items()}


# Random delays before each piece of work of a plan

STEPS = 3
LONGEST_DELAY_US = 300.0
ALLOCATORS = ("best-fit", "va:chunk=4KiB")
ARENA_BYTES = 1 << 26


def some_allocator(rng: random.Random) -> AllocatorChoice:
    """An allocator to execute with: one that rounds little, or one that maps pages."""
    return choose_allocator(rng.choice(ALLOCATORS), ARENA_BYTES)


def harm_of_delays(
    trace: Trace, plan: Plan, choice: AllocatorChoice, link: Link, rng: random.Random
) -> str:
    """What delays do to a plan; empty if nothing.

    Args:
        trace: made by `random_traces.py`.
        plan: for the granule of `choice`.
        choice: the allocator.
        link: whether both directions work at once.
        rng: draws values and delays.

    Cost: three executed steps: some ms for each call.
    """
    start = random_values(trace, rng)
    batches = [random_values(trace, rng) for _ in range(STEPS)]
    given = [v for v in trace.initial if not trace.variables[v].persistent]
    inputs = [{v: batch[v] for v in given} for batch in batches]
    debug = Debug(delay_us=LONGEST_DELAY_US, delay_seed=rng.randrange(2**32))
    try:
        # Twice the room: a wrong byte is to be seen, not to end the process.
        ran = run_list(trace, plan.schedule, Way(choice, link, debug=debug, room=2), start, inputs)
    except OoctrainError as error:
        return f"delayed, it raises {type(error).__name__}: {error}"
    for step, truth in enumerate(_in_core_steps(trace, start, inputs)):
        if ran.persistent[step] != truth:
            return f"delayed, step {step + 1} differs from in-core training"
    if ran.granted_bytes != plan.peak_bytes:
        return f"delayed, the peak is {ran.granted_bytes} bytes; the plan says {plan.peak_bytes}"
    return ""


def _in_core_steps(
    trace: Trace, start: Mapping[int, bytes], inputs: list[dict[int, bytes]]
) -> Iterator[dict[int, bytes]]:
    """What each step leaves behind, {initial variable that lasts: its value}."""
    values = dict(start)
    for batch in inputs:
        values |= batch
        values |= in_core(trace, values).persistent
        yield {v: values[v] for v in trace.end_variables}
