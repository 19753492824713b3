"""Measures this machine as the cpu device: calls, memory, copies, and how the two disturb each
other.

In: a model and a batch. Out: a `Machine` with a measured duration for each kind of call. The one
idea: the numbers come from running real steps, the same way as training runs them: in-core for the
calls and for what each instruction costs besides, swapping synchronously (`naive`) for the copies
alone, hand-over to another thread included, swapping beside the calls (`window`) for what the two
cost each other; so a prediction stands on what it predicts. Only mapping memory is timed by itself:
no step maps so much that it stands out from the noise. Nothing is ever measured implicitly:
`ooctrain calibrate` is the only caller. Read next: `cost.py`, `machines.py`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

import numpy as np

from ooctrain.cost import Machine, profile_key, specs_of
from ooctrain.devices.host_vm import VirtualArena, why_no_virtual_memory
from ooctrain.errors import DoesNotFit, Infeasible
from ooctrain.sched.schedule import Plan
from ooctrain.sched.simulate import simulate
from ooctrain.sched.timeline import Timeline
from ooctrain.trace import Trace
from ooctrain.train import Trainer

STEPS = 7
#: Short steps vary most, so there are as many of them as fit into this time.
LEAST_S = 0.5
#: Steps that count in a turn of one trainer.
TURN = 3
COPY_BYTES = 64 << 20
COPIES = 8
#: A call that does more operations than this for each byte it moves is bound by arithmetic.
OPERATIONS_PER_BYTE = 16
#: Of the steps that swap: little memory, so that much is copied; more where that does not fit.
BUDGETS = ("25%", "50%", "75%")
MOST_INTERFERENCE = 4.0
INTERFERENCE_STEPS = 10
#: What a step maps in one piece: of the size that `combined` moves in parts (measured, ResNet-18).
MAP_PIECE_BYTES = 2 << 20


@dataclass(frozen=True, slots=True)
class Rates:
    """What the calls of a step reach.

    Args:
        flops_per_us: of those bound by arithmetic.
        memory_bytes_per_us: of the others.
    """

    flops_per_us: float
    memory_bytes_per_us: float


@dataclass(frozen=True, slots=True)
class Copies:
    """What copies reach with no call beside them.

    Args:
        out_bytes_per_us, in_bytes_per_us: while a copy runs, its mapping of memory included.
        latency_us: of each besides: what passes until another thread has taken up the work.
    """

    out_bytes_per_us: float
    in_bytes_per_us: float
    latency_us: float


def calibrate(
    trainer: Trainer, images: np.ndarray, labels: np.ndarray, name: str, steps: int = STEPS
) -> Machine:
    """Measures with the steps of an in-core trainer and of two others with its model.

    Args:
        trainer: without a budget, on the cpu device; it can be used again afterwards.
        images, labels: a batch.
        name: of the machine that comes out.
        steps: measured at least; medians count.

    Returns:
        A machine whose link is as fast as the cores copy.

    Cost: about 6 times as many steps as asked for; the synchronous ones last several times as long.
        Two arenas at a time: the in-core one and a smaller one.
    """
    in_core = trainer.prepare(images.shape).plan
    # Taking turns, since the machine's speed wanders.
    with _swapping(trainer, "naive", images.shape) as other:
        first, synchronous = measure_steps([trainer, other], images, labels, steps)
        copies = copies_of(_plan_of(other), synchronous, first, issue_us_of(first, in_core))
    with _swapping(trainer, "window", images.shape) as other:
        second, beside = measure_steps([trainer, other], images, labels, steps)
        plan = _plan_of(other)
    # What the calls cost each other is told by the steps that took turns with these.
    quiet = _machine(name, copies, second, in_core)
    interference = interference_of(plan, beside, quiet)
    found = _machine(name, copies, [*first, *second], in_core)
    return replace(found, interference=interference, map_us_per_byte=map_us_per_byte())


def _machine(name: str, copies: Copies, in_core: Collection[Timeline], plan: Plan) -> Machine:
    """A machine without interference, its calls as these steps had them."""
    profile = profile_of_steps(in_core, plan.trace)
    rates = rates_of(profile, plan.trace)
    return Machine(
        name,
        rates.flops_per_us,
        rates.memory_bytes_per_us,
        link_bytes_per_us=min(copies.out_bytes_per_us, copies.in_bytes_per_us),
        link="duplex",
        latency_us=copies.latency_us,
        link_out_bytes_per_us=copies.out_bytes_per_us,
        link_in_bytes_per_us=copies.in_bytes_per_us,
        call_overhead_us=min(profile.values()),
        issue_us=issue_us_of(in_core, plan),
        profile=profile,
    )


def _plan_of(trainer: Trainer) -> Plan:
    assert trainer.prepared is not None, "it is prepared"
    return trainer.prepared.plan


def issue_us_of(in_core: Collection[Timeline], plan: Plan) -> float:
    """What an instruction costs besides calls and copies: a step's rest, shared out among all."""
    calls_us = sum(median(times) for times in _call_times(in_core))
    copies_us = median(line.busy_us("D") + line.busy_us("H") for line in in_core)
    whole_us = median(line.makespan_us for line in in_core)
    return max(0.0, whole_us - calls_us - copies_us) / len(plan.schedule)


def copies_of(
    plan: Plan, synchronous: Collection[Timeline], in_core: Collection[Timeline], issue_us: float
) -> Copies:
    """From steps in which nothing overlaps; where nothing was copied, from copies by themselves.

    What such a step takes besides its copies, its calls and their issue is the copies' latency.
    """
    lines = [line for line in synchronous if line.bytes_out and line.bytes_in]
    if not lines:
        rate = copy_bytes_per_us()
        return Copies(rate, rate, 0.0)
    out_us, in_us = (median(line.busy_us(stream) for line in lines) for stream in ("D", "H"))
    calls_us = sum(median(times) for times in _call_times(in_core))
    known_us = calls_us + out_us + in_us + issue_us * len(plan.schedule)
    besides_us = median(line.makespan_us for line in lines) - known_us
    line = lines[0]
    count = sum(event.stream != "C" for event in line.events)
    return Copies(line.bytes_out / out_us, line.bytes_in / in_us, max(0.0, besides_us) / count)


def _call_times(timelines: Collection[Timeline]) -> Collection[list[float]]:
    """For each call, how long it took in each step."""
    times: dict[int, list[float]] = {}
    for timeline in timelines:
        for event in timeline.events:
            if event.stream == "C":
                times.setdefault(event.index, []).append(event.end_us - event.start_us)
    return times.values()


def interference_of(plan: Plan, measured: Collection[Timeline], machine: Machine) -> float:
    """How many times as long calls take beside copies: the factor whose prediction is right.

    The prediction grows with the factor, so halving an interval finds it; 1 where nothing is
    copied or no factor is needed.
    """
    wanted_us = median(line.makespan_us for line in measured)
    low, high = 1.0, MOST_INTERFERENCE
    for _ in range(INTERFERENCE_STEPS):
        middle = round((low + high) / 2, 3)
        tried = simulate(plan.schedule, plan.trace, replace(machine, interference=middle))
        low, high = (middle, high) if tried.makespan_us < wanted_us else (low, middle)
    moved = any(line.bytes_out or line.bytes_in for line in measured)
    return low if moved else 1.0


def _swapping(in_core: Trainer, planner: str, input_shape: tuple[int, ...]) -> Trainer:
    """A trainer of the same model in little memory, its step planned."""
    settings = in_core.settings

    def within(budget: int | str) -> Trainer:
        trainer = Trainer(
            in_core.model, in_core.loss, in_core.optimizer, budget, planner, settings.allocator,
            settings.device, allow_tf32=in_core.allow_tf32,
            accumulate=in_core.accumulate, threads=settings.threads, machine=settings.machine,
            conv_algorithm=in_core.conv_algorithm, seed=settings.seed, clip=in_core.clip,
        )  # fmt: skip
        trainer.prepare(input_shape)
        return trainer

    for budget in BUDGETS[:-1]:
        try:
            return within(budget)
        except Infeasible as refusal:
            return within(refusal.minimum_bytes)
        except DoesNotFit:  # an allocator that fragments
            continue
    return within(BUDGETS[-1])


def measure_steps(
    trainers: Sequence[Trainer], images: np.ndarray, labels: np.ndarray, steps: int
) -> list[list[Timeline]]:
    """Measured time lines of each, taking turns: at least `steps`, and `LEAST_S` of them.

    A turn is some steps on end, as training does them; its first one, which finds the caches full
    of another's data, does not count.
    """
    timelines: list[list[Timeline]] = [[] for _ in trainers]
    began = time.perf_counter()
    while len(timelines[0]) < steps or time.perf_counter() - began < LEAST_S * len(trainers):
        for trainer, kept in zip(trainers, timelines, strict=True):
            for counts in (False, *[True] * TURN):
                trainer.step(images, labels)
                assert trainer.timeline is not None
                kept += [trainer.timeline] * counts
    return timelines


def profile_of_steps(timelines: Collection[Timeline], trace: Trace) -> dict[str, float]:
    """{profile key: us} of measured steps: the median of all calls of that kind."""
    keys = {call.name: profile_key(call, trace) for call in trace.calls}
    durations: dict[str, list[float]] = {}
    for timeline in timelines:
        for event in timeline.events:
            if event.stream == "C" and event.name in keys:
                durations.setdefault(keys[event.name], []).append(event.end_us - event.start_us)
    return {key: median(values) for key, values in durations.items()}


def rates_of(profile: Mapping[str, float], trace: Trace) -> Rates:
    """Operations and bytes per microsecond that the calls of a step reach together."""
    flops, flops_us, moved, moved_us = 0, 0.0, 0, 0.0
    for call in trace.calls:
        duration_us = profile.get(profile_key(call, trace))
        ins, outs = specs_of(trace, call.ins), specs_of(trace, call.outs)
        if duration_us is None:
            continue
        size, operations = call.op.bytes_moved(ins, outs), call.op.flops(ins, outs)
        if operations > OPERATIONS_PER_BYTE * size:
            flops, flops_us = flops + operations, flops_us + duration_us
        else:
            moved, moved_us = moved + size, moved_us + duration_us
    memory_rate = moved / moved_us if moved_us else 1.0
    # A network without convolutions tells nothing about arithmetic: assume that it is never the
    # limit.
    flops_rate = flops / flops_us if flops_us else memory_rate * OPERATIONS_PER_BYTE
    return Rates(flops_rate, memory_rate)


def copy_bytes_per_us() -> float:
    """How fast one copy engine copies when no link slows it down."""
    copy = _copy()
    copy()
    times = []
    for _ in range(COPIES):
        started = time.perf_counter()
        copy()
        times.append((time.perf_counter() - started) * 1e6)
    return COPY_BYTES / median(times)


def map_us_per_byte() -> float:
    """How long mapping takes, of pages that exist already, over others; 0 where nothing is mapped.

    Pieces are mapped in the reverse order of the arena, so that the system cannot join them.
    """
    if why_no_virtual_memory():
        return 0.0
    arena, times = VirtualArena(COPY_BYTES), []
    address, last = arena.reserve(COPY_BYTES), COPY_BYTES - MAP_PIECE_BYTES
    for turn in range(COPIES):
        started = time.perf_counter()
        for at in range(0, COPY_BYTES, MAP_PIECE_BYTES):
            arena.map(
                address + (at + turn * MAP_PIECE_BYTES) % COPY_BYTES, last - at, MAP_PIECE_BYTES
            )
        times.append((time.perf_counter() - started) * 1e6)
    arena.close()
    return median(times[1:]) / COPY_BYTES


def _copy() -> Callable[[], object]:
    """One copy of `COPY_BYTES` by the copy engines' kernel, imported as late as they do it."""
    from ooctrain.layers.kernels.cpu.copy import stream_copy

    # Written once, so that the pages are there before anything is timed.
    source, target = np.ones(COPY_BYTES, np.uint8), np.zeros(COPY_BYTES, np.uint8)
    return lambda: stream_copy(target, source)
