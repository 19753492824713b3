"""From decisions to a list: everything as soon as it is possible and safe.

Decisions say which calls run, and during which gaps between its uses a value may leave the device.
`asap_engine.py` plays them through in time; the result is a legal `Schedule`, with the engine's own
times, or the plan of it. What cannot fit, since the decisions themselves keep too much on the
device, is refused before anything is played.

Sources: paper 002's no-wait schedules (its proposition 1 needs a total order of claims, which the
order of the list is). Read next: `asap_engine.py`; `sched/ledger.py` for what the list then means,
`sched/bounds/closed.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ooctrain.sched.planning.asap_engine import AsapEngine
from ooctrain.sched.planning.decisions import Decisions
from ooctrain.sched.planning.host_room import HostRoom
from ooctrain.sched.planning.pieces import Table, tabulate
from ooctrain.sched.planning.planner import check_host, infeasible, make_plan
from ooctrain.sched.planning.question import Question
from ooctrain.sched.schedule import BYTES, Granule, Plan, Range, Schedule
from ooctrain.step.machine import Machine
from ooctrain.step.trace import Trace


@dataclass(frozen=True, slots=True)
class Lowered:
    """A list with the engine's own times.

    Args:
        schedule: the list.
        start_ns: by list position, when the instruction starts (a Free or End: when it takes
            effect).
        makespan_ns: when the last one is done.
    """

    schedule: Schedule
    start_ns: tuple[int, ...]
    makespan_ns: int


def lower(
    decisions: Decisions,
    trace: Trace,
    budget_bytes: int,
    machine: Machine,
    granule: Granule = BYTES,
) -> Schedule:
    """The as-soon-as-possible list of some decisions.

    Args:
        decisions: runs and gaps.
        trace: what they are about.
        budget_bytes: of the device, in granted bytes.
        machine: gives durations, the link, how much copies slow calls down, and what issuing takes:
            the engine's times are the simulator's.
        granule: how the allocator rounds.

    Raises:
        Infeasible: a call does not fit beside what the decisions keep on the device;
            `minimum_bytes` is the least budget for these decisions.
        ConfigError: the decisions contradict the trace.

    Cost: O((runs + pieces) log + swap-ins x calls between prefetch and use).
    """
    return lower_timed(decisions, trace, budget_bytes, machine, granule).schedule


def lower_timed(
    decisions: Decisions,
    trace: Trace,
    budget_bytes: int,
    machine: Machine,
    granule: Granule = BYTES,
) -> Lowered:
    """`lower`, with the times at which the engine starts each instruction."""
    return lower_within(decisions, Question(trace, budget_bytes, machine, granule))


def lower_within(decisions: Decisions, question: Question) -> Lowered:
    """`lower_timed` within both budgets: a copy out begins early only where the host has room for
    it. Decisions that need more host memory are lowered as if it were not limited.
    """
    trace, budget_bytes = question.trace, question.budget_bytes
    machine, granule = question.machine, question.granule
    table = tabulate(decisions, trace, machine, granule)
    _check_fits(table, decisions, trace, budget_bytes)
    engine = AsapEngine(table, budget_bytes, machine, _host_room(table, question))
    engine.play()
    schedule = Schedule(tuple(engine.instructions), table.start_device, table.start_host, granule)
    return Lowered(schedule, tuple(engine.start_ns), engine.last_end_ns)


def plan_of(
    name: str, question: Question, decisions: Decisions, notes: Mapping[str, Any] | None = None
) -> Plan:
    """The as-soon-as-possible plan of some decisions.

    Args:
        name: of the planner, for what is raised.

    Raises:
        Infeasible: they do not fit the budget, or the host's.
    """
    schedule = lower_within(decisions, question).schedule
    plan = make_plan(schedule, question.trace, question.machine, notes)
    check_host(name, plan, question.host_budget_bytes)
    return plan


def _check_fits(table: Table, decisions: Decisions, trace: Trace, budget_bytes: int) -> None:
    most, position = max(
        ((most, position) for position, most in enumerate(table.resident_bytes)), default=(0, 0)
    )
    if max(most, table.start_bytes) > budget_bytes:
        name = trace.calls[decisions.runs[position].call].name
        raise infeasible("lower", budget_bytes, max(most, table.start_bytes), name)


def _host_room(table: Table, question: Question) -> HostRoom | None:
    """What the copies of all pieces leave of the host budget; None where there is no limit, or
    where it cannot be kept.
    """
    if question.host_budget_bytes is None:
        return None
    there = {(var, lo, hi) for var, lo, hi in table.start_host}
    left_bytes = question.host_budget_bytes - sum(hi - lo for _, lo, hi in there)
    first, last = dict[Range, int](), dict[Range, int]()
    for piece in table.pieces:  # in the order of their gaps
        if piece.slot not in there:
            first.setdefault(piece.copy, piece.after + 1)
            last[piece.copy] = piece.before
    if sum(hi - lo for _, lo, hi in first) <= left_bytes:
        return None
    room = HostRoom(left_bytes, len(table.runs))
    for copy, begin in first.items():
        _, lo, hi = copy
        room.take(begin, min(last[copy], len(table.runs)), hi - lo)
    return room if min(room.room_bytes) >= 0 else None
