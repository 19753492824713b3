"""What measured steps say about a machine: its calls, its copies, and what they cost each other.

In: time lines of steps that ran, with the plans that they ran by. Out: the numbers of a `Machine`.
The one idea: what can be read off a time line is read (how long calls and copies took); what hides
between its events is what the rest of the step's time says (issue, latency); and what depends on
who ran beside whom is fitted: the value with which `simulate` says what was measured. Read next:
`calibrate.py`, which runs the steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from ooctrain.cost import Machine, profile_key, specs_of
from ooctrain.machines import with_link
from ooctrain.memory_speed import copy_bytes_per_us
from ooctrain.sched.schedule import Plan
from ooctrain.sched.simulate import simulate
from ooctrain.sched.timeline import Timeline
from ooctrain.trace import Trace

#: A call that does more operations than this for each byte it moves is bound by arithmetic.
OPERATIONS_PER_BYTE = 16
MOST_INTERFERENCE = 4.0
MOST_PACING_US = 1000.0
HALVINGS = 10


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


@dataclass(frozen=True, slots=True)
class Ran:
    """Steps that ran by a plan.

    Args:
        plan: with its trace.
        steps: as measured.
        link_bytes_per_us: imposed on them; None: none.
    """

    plan: Plan
    steps: Sequence[Timeline]
    link_bytes_per_us: float | None = None

    @property
    def copied(self) -> bool:
        """Whether anything was."""
        return any(line.bytes_out or line.bytes_in for line in self.steps)

    def error_of(self, machine: Machine) -> float:
        """log(predicted / measured): the same size for twice as long as for half as long."""
        link = self.link_bytes_per_us
        linked = machine if link is None else with_link(machine, link)
        predicted_us = simulate(self.plan.schedule, self.plan.trace, linked).makespan_us
        return math.log(predicted_us / median(line.makespan_us for line in self.steps))


def interference_of(beside: Ran, machine: Machine) -> float:
    """How many times as long calls take beside copies; 1 where nothing is copied."""
    return _fitting(
        [beside], lambda factor: replace(machine, interference=factor), 1.0, MOST_INTERFERENCE
    )


def pacing_us_of(paced: Sequence[Ran], machine: Machine) -> float:
    """`Machine.pacing_us`: how much longer than an imposed link each copy takes beside its latency.

    Args:
        paced: steps on imposed links. Not read off their copies, but fitted: the one number with
            which these steps are predicted right in the mean of their log errors.
        machine: everything else about it; its own `pacing_us` is replaced.

    Returns:
        At least 0, at most `MOST_PACING_US`; 0 where nothing is copied.
    """
    return _fitting(
        paced, lambda pacing_us: replace(machine, pacing_us=pacing_us), 0.0, MOST_PACING_US
    )


def _fitting(
    runs: Sequence[Ran], machine_of: Callable[[float], Machine], low: float, high: float
) -> float:
    """The value whose predictions are right in the mean, or `low` where that is too much already.

    Predictions grow with the value, so halving an interval finds it.
    """
    copied = [ran for ran in runs if ran.copied]
    for _ in range(HALVINGS if copied else 0):
        middle = round((low + high) / 2, 3)
        too_little = sum(ran.error_of(machine_of(middle)) for ran in copied) < 0
        low, high = (middle, high) if too_little else (low, middle)
    return low


def balance_bytes_per_us(swapping: Sequence[Timeline], in_core: Collection[Timeline]) -> float:
    """The link on which one direction's copies last as long as a step that copies nothing."""
    moved = max(swapping[0].bytes_out, swapping[0].bytes_in, 1)
    return moved / median(line.makespan_us for line in in_core)
