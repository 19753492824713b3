"""Measures this machine as the cpu device: calls, memory, copies, and how the two disturb each
other.

In: a model and a batch. Out: a `Machine` with a measured duration for each kind of call. The one
idea: the numbers come from running a real step in-core, the same way as training runs it, once
alone and once beside a copy engine that never rests; so a prediction stands on what it predicts.
Nothing is ever measured implicitly: `ooctrain calibrate` is the only caller. Read next: `cost.py`,
`machines.py`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median

import numpy as np

from ooctrain.cost import Machine, profile_key, specs_of
from ooctrain.sched.timeline import Timeline
from ooctrain.trace import Trace
from ooctrain.train import Trainer

STEPS = 7
COPY_BYTES = 64 << 20
COPIES = 8
#: A call that does more operations than this for each byte it moves is bound by arithmetic.
OPERATIONS_PER_BYTE = 16


@dataclass(frozen=True, slots=True)
class Rates:
    """What the calls of a step reach.

    Args:
        flops_per_us: of those bound by arithmetic.
        memory_bytes_per_us: of the others.
    """

    flops_per_us: float
    memory_bytes_per_us: float


def calibrate(
    trainer: Trainer, images: np.ndarray, labels: np.ndarray, name: str, steps: int = STEPS
) -> Machine:
    """Measures with the steps of an in-core trainer.

    Args:
        trainer: without a budget, on the cpu device.
        images, labels: a batch.
        name: of the machine that comes out.
        steps: measured, after one that is not; medians count.

    Returns:
        A machine whose link is as fast as the cores copy.

    Cost: about 2 steps + 3 times as many steps as asked for.
    """
    alone = measure_steps(trainer, images, labels, steps)
    with busy_copies():
        beside = measure_steps(trainer, images, labels, steps)
    assert trainer.plan is not None
    trace = trainer.plan.trace
    profile = profile_of_steps(alone, trace)
    rates = rates_of(profile, trace)
    copy_rate = copy_bytes_per_us()
    slowdown = _compute_us(beside) / _compute_us(alone)
    return Machine(
        name,
        rates.flops_per_us,
        rates.memory_bytes_per_us,
        link_bytes_per_us=copy_rate,
        link="duplex",
        interference=max(1.0, round(slowdown, 3)),
        call_overhead_us=min(profile.values()),
        profile=profile,
    )


def measure_steps(
    trainer: Trainer, images: np.ndarray, labels: np.ndarray, steps: int
) -> list[Timeline]:
    """Measured time lines of some steps, after one that warms up."""
    timelines = []
    for _ in range(steps + 1):
        trainer.step(images, labels)
        assert trainer.timeline is not None
        timelines.append(trainer.timeline)
    return timelines[1:]


def profile_of_steps(timelines: Collection[Timeline], trace: Trace) -> dict[str, float]:
    """{profile key: us} of measured steps: the median of all calls of that kind.

    In-core, the time between two calls (the walk of the list) is shared out among the calls; out of
    core it is mostly waiting for the link, which is no cost of the calls.
    """
    keys = {call.name: profile_key(call, trace) for call in trace.calls}
    durations: dict[str, list[float]] = {}
    for timeline in timelines:
        for event in timeline.events:
            if event.stream == "C" and event.name in keys:
                durations.setdefault(keys[event.name], []).append(event.end_us - event.start_us)
    in_core = not any(timeline.bytes_out for timeline in timelines)
    idle_us = median(timeline.stall_us for timeline in timelines) if in_core else 0.0
    gap_us = idle_us / max(1, len(trace.calls))
    return {key: median(values) + gap_us for key, values in durations.items()}


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


@contextmanager
def busy_copies() -> Iterator[None]:
    """A thread copies without a pause for as long as this lasts."""
    copy, stop = _copy(), threading.Event()

    def work() -> None:
        while not stop.is_set():
            copy()

    thread = threading.Thread(target=work, daemon=True, name="ooctrain-busy-copies")
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _copy() -> Callable[[], object]:
    """One copy of `COPY_BYTES` by the copy engines' kernel, imported as late as they do it."""
    from ooctrain.layers.kernels.cpu.copy import stream_copy

    # Written once, so that the pages are there before anything is timed.
    source, target = np.ones(COPY_BYTES, np.uint8), np.zeros(COPY_BYTES, np.uint8)
    return lambda: stream_copy(target, source)


def _compute_us(timelines: list[Timeline]) -> float:
    return median(timeline.compute_us for timeline in timelines)
