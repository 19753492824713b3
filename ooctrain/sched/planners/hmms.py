"""hmms: offload across layers, and wait only where the link must have caught up.

The planner keeps a balance in bytes. A decision to offload a value subtracts its size; each call
that runs adds the bytes that the link moves meanwhile. While the balance is negative no call waits.
When it is back at zero the copies must be done, so their memory is freed there without a delay.
Prefetching is the same rule run backward, from the last call to the turning point: a swap-in starts
as many calls early as the link needs to hide it.

Source: paper 004, section 4.3, algorithm 1; the mirror is ours after its last paragraph. Departures
(docs/errata.md, 004-*): the balance is clamped to zero while nothing is pending; a value with
several forward readers leaves with the last of them, once; there is no budget in the paper, so we
sweep the ratio of bytes offloaded and take the fastest list that fits. An input has its host copy
already, so releasing it subtracts nothing. Read next: `lms.py`, `window.py`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ooctrain.sched.planning.fastest import Candidate, fastest_list
from ooctrain.sched.planning.list_writer import ListWriter, writer_with_resident_parameters
from ooctrain.sched.planning.offloadable import (
    Offloadable,
    check_ratio,
    offloadable_storages,
    take,
)
from ooctrain.sched.planning.planner import infeasible, turning_point
from ooctrain.sched.planning.question import Question
from ooctrain.sched.schedule import Granule, Plan
from ooctrain.step.machine import Machine, call_durations_ns
from ooctrain.step.trace import Trace

#: Ratios of offloaded bytes that are tried: 0, 1/20, .. 1.
RATIO_STEPS = 20


@dataclass(frozen=True, slots=True)
class Hmms:
    """Paper 004's heterogeneous memory management system.

    Args:
        ratio: the share of the bytes that may leave, from 0 to 1; None: of `RATIO_STEPS` + 1 the
            one with the fastest list that fits.

    Cost: a list for each ratio, a simulation for those that may be the fastest.
    """

    name = "hmms"

    ratio: float | None = None

    def __post_init__(self) -> None:
        if self.ratio is not None:
            check_ratio(self.name, self.ratio)

    def plan(self, question: Question) -> Plan:
        """See `Planner`. The minimum is the lowest peak of the ratios that are tried."""
        trace, budget_bytes = question.trace, question.budget_bytes
        offloadable = list(offloadable_storages(trace))
        lists, peaks = [], []
        for ratio in _ratios(self.ratio):
            taken = list(take(offloadable, ratio))
            writer = _write(trace, taken, question.machine, question.granule)
            peaks.append((writer.peak_bytes, writer.peak_call))
            if writer.peak_bytes <= budget_bytes:
                lists.append(Candidate(writer.finish(), {"ratio": ratio}))
        if not lists:
            raise infeasible(self.name, budget_bytes, *min(peaks))
        return fastest_list(self.name, question, lists)


def _ratios(ratio: float | None) -> Sequence[float]:
    if ratio is not None:
        return (ratio,)
    return [step / RATIO_STEPS for step in range(RATIO_STEPS + 1)]


def ends_of_offload(
    trace: Trace, offloaded: Sequence[Offloadable], machine: Machine
) -> Mapping[int, list[int]]:
    """Algorithm 1: {call: variables that are freed after it}."""
    leaving: Mapping[int, list[Offloadable]] = defaultdict(list)
    for storage in offloaded:
        leaving[storage.leaves_with].append(storage)
    durations, turn = call_durations_ns(trace, machine), turning_point(trace)
    freed: dict[int, list[int]] = {}
    pending: list[int] = []
    balance = 0.0
    for call in range(turn):
        pending += [storage.var for storage in leaving[call]]
        balance -= sum(storage.size_bytes for storage in leaving[call] if storage.copied)
        balance += durations[call] / 1000 * machine.out_bytes_per_us
        if balance >= 0 or call == turn - 1:
            freed[call], pending, balance = pending, [], 0.0
    return freed


def starts_of_prefetch(
    trace: Trace, offloaded: Sequence[Offloadable], machine: Machine
) -> Mapping[int, list[int]]:
    """The mirror of algorithm 1: {call: variables whose swap-ins are started before it}."""
    needed: Mapping[int, list[Offloadable]] = defaultdict(list)
    for storage in offloaded:
        needed[storage.needed_by].append(storage)
    durations, turn = call_durations_ns(trace, machine), turning_point(trace)
    started: dict[int, list[int]] = {}
    pending: list[int] = []
    balance = 0.0
    for call in reversed(range(turn, len(trace.calls))):
        pending += [storage.var for storage in needed[call]]
        balance -= sum(storage.size_bytes for storage in needed[call])
        before = max(call - 1, turn)  # the call whose run time hides the copy
        if call > turn:
            balance += durations[before] / 1000 * machine.in_bytes_per_us
        if balance >= 0 or call == turn:
            # What is needed first is fetched first.
            started[before] = pending[::-1] + started.get(before, [])
            pending, balance = [], 0.0
    return started


def _write(
    trace: Trace, offloaded: Sequence[Offloadable], machine: Machine, granule: Granule
) -> ListWriter:
    writer = writer_with_resident_parameters(trace, granule)
    leaving: Mapping[int, list[int]] = defaultdict(list)
    for storage in offloaded:
        leaving[storage.leaves_with].append(storage.var)
    freed = ends_of_offload(trace, offloaded, machine)
    started = starts_of_prefetch(trace, offloaded, machine)
    for call in trace.calls:
        for variable in (*started.get(call.id, ()), *call.ins):
            writer.swap_in(variable)
        for variable in leaving[call.id]:
            writer.swap_out(variable)
        writer.run(call.id)
        for variable in freed.get(call.id, ()):
            writer.free(variable)
        writer.free_dead(call.id)
    return writer
