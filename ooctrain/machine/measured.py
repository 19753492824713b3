"""The numbers of a machine from measured steps: its calls, its copies, and their mutual slowdown.

The time lines of steps that ran, with the plans that they followed, give the numbers of a
`Machine`. Each number is found in the simplest way that the time lines allow:

- read off: durations of calls and copies are those of the events;
- as a remainder: issue and latency lie between the events, so they are what is left of the step's
  time when all known durations are subtracted, divided among the instructions or the copies;
- fitted, where it depends on which copies overlap with which calls: the value with which `simulate`
  predicts what was measured. Interference is fitted to the time of all calls, the issue and the
  pacing of copies to the time of the whole step.

Read next: `calibrate.py`, which runs the steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

import numpy as np

from ooctrain.machine.memory_speed import copy_bytes_per_us
from ooctrain.sched.schedule import Plan, Schedule, SwapIn, SwapOut
from ooctrain.sched.simulate import simulate
from ooctrain.sched.timeline import Timeline
from ooctrain.step.machine import Machine, profile_key, specs_of
from ooctrain.step.presets import with_link
from ooctrain.step.trace import Trace

#: A call that does more operations than this for each byte it moves is bound by arithmetic.
OPERATIONS_PER_BYTE = 16
#: A copy takes one of two cores, or half of the memory's bandwidth, but not more.
MOST_INTERFERENCE = 2.0
MOST_PACING_US = 1000.0
HALVINGS = 10


@dataclass(frozen=True, slots=True)
class Rates:
    """What the calls of a step reach.

    Args:
        flops_per_us: speed of calls bound by arithmetic.
        memory_bytes_per_us: speed of the others.
    """

    flops_per_us: float
    memory_bytes_per_us: float


@dataclass(frozen=True, slots=True)
class Copies:
    """What copies reach while no call runs.

    Args:
        out_bytes_per_us, in_bytes_per_us: once bytes move.
        latency_us: start-up time of each, its handing over to another thread included.
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
    # A network without convolutions says nothing about arithmetic: assume that it is never the
    # limit.
    flops_rate = flops / flops_us if flops_us else memory_rate * OPERATIONS_PER_BYTE
    return Rates(flops_rate, memory_rate)


def issue_us_of(in_core: Collection[Timeline], plan: Plan) -> float:
    """What each instruction costs on top of calls and copies: what is left of an in-core step when
    these are subtracted, shared out among all instructions.
    """
    calls_us = sum(_durations_us(in_core, "C").values())
    copies_us = median(line.busy_us("D") + line.busy_us("H") for line in in_core)
    whole_us = median(line.makespan_us for line in in_core)
    return max(0.0, whole_us - calls_us - copies_us) / len(plan.schedule)


def copies_of(
    plan: Plan, synchronous: Collection[Timeline], in_core: Collection[Timeline], issue_us: float
) -> Copies:
    """Bandwidth and latency of copies, from steps in which they do not overlap with calls.

    The latency is what is left of such a step when the moving of bytes, the calls and the issue of
    all instructions are subtracted, shared out among the copies. Where nothing was copied, the
    bandwidth is that of copies timed by themselves, and the latency 0.

    Args:
        plan, synchronous: plan of the steps without overlap, and their time lines.
        in_core: time lines of in-core steps, for the durations of the calls.
        issue_us: cost of each instruction (`issue_us_of`).
    """
    lines = [line for line in synchronous if line.bytes_out and line.bytes_in]
    if not lines:
        rate = copy_bytes_per_us()
        return Copies(rate, rate, 0.0)
    out_rate, in_rate = (
        _bytes_per_us(plan.schedule, _durations_us(lines, stream)) for stream in ("D", "H")
    )
    line = lines[0]
    calls_us = sum(_durations_us(in_core, "C").values())
    moving_us = line.bytes_out / out_rate + line.bytes_in / in_rate
    known_us = calls_us + moving_us + issue_us * len(plan.schedule)
    besides_us = median(line.makespan_us for line in lines) - known_us
    count = sum(event.stream in ("D", "H") for event in line.events)
    return Copies(out_rate, in_rate, max(0.0, besides_us) / count)


def _bytes_per_us(schedule: Schedule, durations_us: Mapping[int, float]) -> float:
    """The bandwidth of copies: the slope of the line fitted to their durations over their bytes.

    The line's other parameter is what each copy costs however few its bytes. Errors are weighted as
    shares of the durations, so that small copies count as much as large ones. Where all copies have
    one size, or the slope is not positive, the bandwidth is all bytes over all time.

    Args:
        durations_us: {list position of a copy: how long it took}.
    """
    sizes, times_us = np.array(
        [(_size_bytes(schedule, index), time_us) for index, time_us in durations_us.items()]
    ).T
    if np.ptp(sizes):
        us_per_byte, _ = np.polyfit(sizes, times_us, 1, w=1 / times_us)
        if us_per_byte > 0:
            return float(1 / us_per_byte)
    return float(sizes.sum() / times_us.sum())


def _size_bytes(schedule: Schedule, index: int) -> int:
    """Bytes moved by the copy at a list position."""
    copy = schedule.instructions[index]
    assert isinstance(copy, SwapIn | SwapOut), "nothing else is a copy"
    return copy.hi - copy.lo


def _durations_us(timelines: Collection[Timeline], stream: str) -> dict[int, float]:
    """How long each piece of work of a stream took, by list position: the median of all steps."""
    durations: dict[int, list[float]] = {}
    for timeline in timelines:
        for event in timeline.events:
            if event.stream == stream:
                durations.setdefault(event.index, []).append(event.end_us - event.start_us)
    return {index: median(values) for index, values in durations.items()}


@dataclass(frozen=True, slots=True)
class MeasuredRun:
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
        """Whether any bytes were copied."""
        return any(line.bytes_out or line.bytes_in for line in self.steps)

    def error_of(self, machine: Machine) -> float:
        """Error of the predicted duration of a step: log(predicted / measured).

        The logarithm makes twice as long as bad as half as long.
        """
        measured_us = median(line.makespan_us for line in self.steps)
        return math.log(self._predicted(machine).makespan_us / measured_us)

    def calls_error_of(self, machine: Machine) -> float:
        """Error of the predicted time of all calls together, as a logarithm like `error_of`.

        Issue is left out of the prediction: the measured duration of a call does not contain it.
        """
        unissued = replace(machine, issue_us=0.0, copy_issue_us=0.0)
        measured_us = median(line.busy_us("C") for line in self.steps)
        return math.log(self._predicted(unissued).busy_us("C") / measured_us)

    def _predicted(self, machine: Machine) -> Timeline:
        link = self.link_bytes_per_us
        linked = machine if link is None else with_link(machine, link)
        return simulate(self.plan.schedule, self.plan.trace, linked)


def with_disturbance(machine: Machine, beside: MeasuredRun) -> Machine:
    """The machine with what copies cost the calls that run at the same time.

    First `interference` is fitted, so that the calls are predicted as long as they were; then
    `copy_issue_us` is taken out of the latency, so that the step is predicted as long as it was.

    Args:
        machine: whose `latency_us` is all that a copy takes besides moving its bytes.
        beside: steps in which copies overlap with calls, on the machine's own link.

    Returns:
        The machine with these two, its latency reduced by `copy_issue_us`; unchanged where nothing
        was copied.
    """
    if not beside.copied:
        return machine

    def handing_over(issue_us: float) -> Machine:
        return replace(slowed, copy_issue_us=issue_us, latency_us=machine.latency_us - issue_us)

    factor = _root(
        lambda factor: beside.calls_error_of(replace(machine, interference=factor)),
        1.0, MOST_INTERFERENCE,
    )  # fmt: skip
    slowed = replace(machine, interference=factor)
    return handing_over(
        _root(lambda issue_us: beside.error_of(handing_over(issue_us)), 0.0, machine.latency_us)
    )


def pacing_us_of(paced: Sequence[MeasuredRun], machine: Machine) -> float:
    """`Machine.pacing_us`, fitted: what each copy takes longer on an imposed link.

    It is the number with which the log errors of these steps add up to 0.

    Args:
        paced: steps on imposed links.
        machine: with everything else known; its own `pacing_us` is replaced.

    Returns:
        At least 0, at most `MOST_PACING_US`; 0 where nothing is copied.
    """
    copied = [ran for ran in paced if ran.copied]

    def error(pacing_us: float) -> float:
        return sum(ran.error_of(replace(machine, pacing_us=pacing_us)) for ran in copied)

    return _root(error, 0.0, MOST_PACING_US) if copied else 0.0


def _root(error: Callable[[float], float], low: float, high: float) -> float:
    """Where an error that grows with its argument is 0, by bisection to 1/1024 of the interval.

    Where it has one sign on the whole interval, the result is the end that is nearest to 0.
    """
    for _ in range(HALVINGS):
        middle = round((low + high) / 2, 3)
        low, high = (middle, high) if error(middle) < 0 else (low, middle)
    return low


def balance_bytes_per_us(swapping: Sequence[Timeline], in_core: Collection[Timeline]) -> float:
    """The link bandwidth at which the copies of one direction take as long as an in-core step."""
    moved = max(swapping[0].bytes_out, swapping[0].bytes_in, 1)
    return moved / median(line.makespan_us for line in in_core)
