"""Feasible timed schedules that were made without a list, for theorem 2.

Given the instructions of a legal list, durations and an amount of memory, each stream works as
soon, or as late, as it likes. Only physics counts: a call or copy may start when the values it
touches are ready and its bytes are free at that moment; no claim waits for releases that it does
not need. Theorem 2 says that such a schedule, sorted by time, is a legal list with the same start
times. Source: docs/schedule.md, "Ledgers". Read next: `tests/properties/test_theorems.py`.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from ooctrain.sched.schedule import End, Free, Instruction, Run, Schedule, SwapIn, SwapOut
from ooctrain.step.trace import Trace

_Touch = tuple[str, int, int, int, bool]  # (side, variable or host slot, lo, hi, writes)


@dataclass(frozen=True, slots=True)
class Timed:
    """An instruction begun at `start_ns`; for Free and End both times are that of the release."""

    instruction: Instruction
    start_ns: int
    end_ns: int


@dataclass(slots=True)
class _Task:
    instruction: Instruction
    lane: str
    duration_ns: int
    claim_bytes: int
    release_bytes: int
    after: list[int] = field(default_factory=list)
    start_ns: int = -1
    end_ns: int = -1


def run_freely(
    trace: Trace, schedule: Schedule, memory_bytes: int, rng: random.Random, *, shared_link: bool
) -> list[Timed] | None:
    """Carries out a list's instructions whenever values and memory allow.

    Args:
        schedule: legal; its Fences are left out, each stream keeps its order.
        memory_bytes: device memory, in granted bytes.
        rng: draws durations of 1 to 20 ns and moments of idleness.

    Returns:
        By time, releases before starts at one time; None where the streams block each other for
        good.
    """
    tasks = _tasks(trace, schedule, rng, shared_link)
    held = schedule.granule.fixed_bytes + sum(
        schedule.granule.granted(hi - lo) for _, lo, hi in schedule.start_device
    )
    now = idle = 0
    while any(task.end_ns < 0 or task.end_ns > now for task in tasks):
        started = False
        for task in tasks:
            if task.lane or task.start_ns >= 0 or not _ready(task, tasks, now):
                continue
            task.start_ns = task.end_ns = now
            held -= task.release_bytes
        for task in _heads(tasks, now, rng):
            if _ready(task, tasks, now) and held + task.claim_bytes <= memory_bytes:
                if rng.random() < 0.2:
                    started = True  # it could, but idles
                    continue
                task.start_ns, task.end_ns = now, now + task.duration_ns
                held += task.claim_bytes
                started = True
        idle = 0 if started or any(task.end_ns > now for task in tasks) else idle + 1
        if idle > 1:
            return None
        now += 1
    order = sorted(range(len(tasks)), key=lambda i: (tasks[i].start_ns, tasks[i].lane != "", i))
    return [Timed(tasks[i].instruction, tasks[i].start_ns, tasks[i].end_ns) for i in order]


def _heads(tasks: Sequence[_Task], now: int, rng: random.Random) -> list[_Task]:
    """The next task of each free lane, in random order."""
    heads: dict[str, _Task] = {}
    for task in tasks:
        if task.lane and task.end_ns < 0:
            heads.setdefault(task.lane, task)
    busy = {task.lane for task in tasks if task.end_ns > now}
    free = [task for lane, task in heads.items() if lane not in busy]
    rng.shuffle(free)
    return free


def _ready(task: _Task, tasks: Sequence[_Task], now: int) -> bool:
    return all(0 <= tasks[i].end_ns <= now for i in task.after)


def _tasks(trace: Trace, schedule: Schedule, rng: random.Random, shared_link: bool) -> list[_Task]:
    """Instructions with the earlier ones that touch the same bytes, one of the two writing."""
    tasks: list[_Task] = []
    touches: list[list[_Touch]] = []
    for item in schedule.instructions:
        match item:
            case Run():
                task, touched = _run_task(trace, schedule, item, rng), _run_touches(trace, item)
            case SwapOut() | SwapIn():
                task = _copy_task(schedule, item, rng, shared_link)
                touched = _copy_touches(trace, item)
            case Free(var, lo, hi):
                task = _Task(item, "", 0, 0, schedule.granule.granted(hi - lo))
                touched = [("device", var, lo, hi, True)]
            case _:
                continue
        task.after = [i for i, others in enumerate(touches) if _clash(touched, others)]
        tasks.append(task)
        touches.append(touched)
        if isinstance(item, Run):
            scratch_bytes = _scratch_bytes(trace, schedule, item)
            tasks.append(_Task(End(item.call), "", 0, 0, scratch_bytes, [len(tasks) - 1]))
            touches.append([])
    return tasks


def _copy_task(
    schedule: Schedule, copy: SwapOut | SwapIn, rng: random.Random, shared_link: bool
) -> _Task:
    comes_in = isinstance(copy, SwapIn)
    lane = "link" if shared_link else "H" if comes_in else "D"
    claim = schedule.granule.granted(copy.hi - copy.lo) if comes_in else 0
    return _Task(copy, lane, rng.randint(1, 20), claim, 0)


def _copy_touches(trace: Trace, copy: SwapOut | SwapIn) -> list[_Touch]:
    """What it writes on one side, and reads on the other."""
    comes_in, slot = isinstance(copy, SwapIn), trace.carries.get(copy.var, copy.var)
    return [
        ("device", copy.var, copy.lo, copy.hi, comes_in),
        ("host", slot, copy.lo, copy.hi, not comes_in),
    ]


def _run_task(trace: Trace, schedule: Schedule, run: Run, rng: random.Random) -> _Task:
    call, granted = trace.calls[run.call], schedule.granule.granted
    fresh = [trace.variables[v].nbytes for v in call.outs if v not in call.reuse]
    claim = sum(map(granted, fresh)) + granted(call.workspace_bytes)
    return _Task(run, "C", rng.randint(1, 20), claim, 0)


def _scratch_bytes(trace: Trace, schedule: Schedule, run: Run) -> int:
    call, granted = trace.calls[run.call], schedule.granule.granted
    kept = call.outs if run.keep is None else run.keep
    scratch = [trace.variables[v].nbytes for v in call.outs if v not in kept]
    return granted(call.workspace_bytes) + sum(map(granted, scratch))


def _run_touches(trace: Trace, run: Run) -> list[_Touch]:
    call = trace.calls[run.call]
    kept = call.outs if run.keep is None else run.keep
    taken = set(call.reuse.values())
    reads: list[_Touch] = [
        ("device", v, 0, trace.variables[v].nbytes, v in taken) for v in call.ins
    ]
    return reads + [("device", v, 0, trace.variables[v].nbytes, True) for v in kept]


def _clash(some: Sequence[_Touch], others: Sequence[_Touch]) -> bool:
    return any(
        a[:2] == b[:2] and a[2] < b[3] and b[2] < a[3] and (a[4] or b[4])
        for a in some
        for b in others
    )
