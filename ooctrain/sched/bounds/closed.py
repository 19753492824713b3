"""Makespans that no schedule can beat, and the schedules of which each bound is true.

While a call runs, the values that are still needed and do not fit in memory together with it must
be away: they left before the call began, and come back after it has ended. So the link must move
those bytes once before the call and once after it, while other calls may run. From this the file
computes a `LowerBound` for a trace, a budget and a machine.

Sources: paper 002, proposition 3; the bound per call is ours: it is at least as large, and unlike
the proposition true of a duplex link by its own argument. Errata: paper 002's plots say "lower
bound of Proposition 2" and mean proposition 3; it is not a bound once values may be computed again.
Read next: the planners that are measured against it, `sched/planners/window.py` first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from operator import sub

from ooctrain.sched.planning.planner import call_need_bytes
from ooctrain.sched.schedule import BYTES, LowerBound
from ooctrain.sched.spans import held_during
from ooctrain.step.machine import Machine, call_durations_ns
from ooctrain.step.trace import Trace


@dataclass(frozen=True, slots=True)
class Pressure:
    """Bytes that do not fit during one call, by what the link must do about them.

    Args:
        sent_bytes: bytes of values computed before the call and used after it: copied out before
        it.
        moved_bytes: bytes of these and of initial values used on both sides of the call: copied
        out, or
            in, before it.
        fetched_bytes: bytes of all values used after the call: copied in after it.
    """

    sent_bytes: int
    moved_bytes: int
    fetched_bytes: int


def lower_bound(
    trace: Trace, budget_bytes: int, machine: Machine, recompute: bool = True
) -> LowerBound:
    """The best bound that is valid for a class of schedules.

    Args:
        recompute: True: valid for every legal list. False: for lists that run each call once and in
            which no byte starts the step on both sides.

    Returns:
        The largest of `compute_us`, `per_call_link_us` and, without recomputation,
        `proposition_3_us`; where two are equal, the simpler one.

    Cost: O(calls + uses).
    """
    bounds = [LowerBound(compute_us(trace, machine), "compute")]
    if not recompute:
        bounds.append(LowerBound(proposition_3_us(trace, budget_bytes, machine), "proposition 3"))
    link = per_call_link_us(trace, budget_bytes, machine, recompute=recompute)
    bounds.append(LowerBound(link, "per-call link"))
    return max(bounds, key=lambda bound: bound.makespan_us)


def compute_us(trace: Trace, machine: Machine) -> float:
    """Every call runs, one after the other. Valid for every legal list."""
    return sum(call_durations_ns(trace, machine)) / 1000


def arrivals_us(trace: Trace, machine: Machine) -> float:
    """Inputs come in one after the other; a call waits for its own and for those of all calls
    before it, and the calls from it on run one after the other. Valid for every legal list whose
    calls first run in trace order, in any budget; reached where everything fits.
    """
    durations = call_durations_ns(trace, machine)
    arrived_ns, left_ns, bound_ns = 0, sum(durations), 0
    there = set[int]()
    for call, duration in zip(trace.calls, durations, strict=True):
        for v in call.ins:
            variable = trace.variables[v]
            is_input = trace.producer[v] is None and not variable.persistent
            if is_input and variable.nbytes and v not in there:
                there.add(v)
                arrived_ns += machine.transfer_ns(variable.nbytes, "in")
        bound_ns = max(bound_ns, arrived_ns + left_ns)
        left_ns -= duration
    return bound_ns / 1000


def first_wait_us(trace: Trace, machine: Machine) -> float:
    """How long the first call waits for the inputs that it reads. Valid for every legal list whose
    calls first run in trace order: no call runs before, for the first time or again.
    """
    read = set(trace.calls[0].ins) if trace.calls else set[int]()
    inputs = (v for v in trace.variables if v.id in read and trace.producer[v.id] is None)
    sizes = [v.nbytes for v in inputs if v.nbytes and not v.persistent]
    return sum(machine.transfer_ns(size, "in") for size in sizes) / 1000


def proposition_3_us(trace: Trace, budget_bytes: int, machine: Machine) -> float:
    """Paper 002: max(sum of u, 2 (M_peak - M) / B), for lists as with `recompute=False`.

    2 / B is the way out and the way back; M_peak is the most that any call needs together with what
    was used before it and is used after it. Where the directions differ, each byte pays for its
    own.
    """
    moved = max(
        (
            _before_us(p, machine, recompute=False)
            + _time_us(p.moved_bytes, machine.in_bytes_per_us, machine)
            for p in pressures(trace, budget_bytes)
        ),
        default=0.0,
    )
    return max(compute_us(trace, machine), moved)


def per_call_link_us(
    trace: Trace, budget_bytes: int, machine: Machine, *, recompute: bool = True
) -> float:
    """The largest, over all calls k, of max(U_before, T_before) + u_k + max(U_after, T_after).

    U are the times of the calls before and after k, T those of the transfers that k forces. Valid
    for half and full duplex. With `recompute` only what cannot be computed again counts: initial
    values, and those of calls that run once; before k only the latter, as an initial value may have
    a host copy from the start.
    """
    durations = call_durations_ns(trace, machine)
    total, before, bound = sum(durations), 0, 0.0
    for own, pressure in zip(durations, pressures(trace, budget_bytes, recompute), strict=True):
        way_back = _time_us(pressure.fetched_bytes, machine.in_bytes_per_us, machine)
        way_out = _before_us(pressure, machine, recompute)
        after = total - before - own
        bound = max(bound, max(before / 1000, way_out) + own / 1000 + max(after / 1000, way_back))
        before += own
    return bound


def pressures(trace: Trace, budget_bytes: int, recompute: bool = False) -> Iterator[Pressure]:
    """What does not fit during each call, in order.

    Args:
        recompute: count only values that cannot be computed again, as in `per_call_link_us`.
    """
    initial = [trace.producer[v] is None for v in range(len(trace.variables))]
    once = [
        initial[v] or not recompute or not _producer_is_pure(trace, v) for v in range(len(initial))
    ]
    computed = _held_across(trace, lambda v: once[v] and not initial[v], from_start=False)
    started = _held_across(trace, lambda v: initial[v], from_start=False)
    ahead = _held_across(trace, lambda v: initial[v], from_start=True)
    for call in trace.calls:
        short = call_need_bytes(call, trace, BYTES) + computed[call.id] - budget_bytes
        yield Pressure(
            max(0, short), max(0, short + started[call.id]), max(0, short + ahead[call.id])
        )


def _held_across(trace: Trace, counts: Callable[[int], bool], *, from_start: bool) -> list[int]:
    """For each call: bytes of variables that it does not touch, with a use before it and one after
    it.

    Args:
        counts: which variables.
        from_start: a use after it is enough.
    """
    counted = [
        (trace.uses[variable.id], variable.nbytes)
        for variable in trace.variables
        if trace.uses[variable.id] and counts(variable.id)
    ]
    calls = len(trace.calls)
    alive = held_during(
        ((0 if from_start else uses[0], uses[-1], size) for uses, size in counted), calls
    )
    touched = held_during(((use, use, size) for uses, size in counted for use in uses), calls)
    return list(map(sub, alive, touched))


def _producer_is_pure(trace: Trace, variable: int) -> bool:
    producer = trace.producer[variable]
    return producer is not None and trace.calls[producer].pure


def _before_us(pressure: Pressure, machine: Machine, recompute: bool) -> float:
    """Time of the transfers before a call: computed values out, initial ones out or in."""
    out = _time_us(pressure.sent_bytes, machine.out_bytes_per_us, machine)
    if recompute:
        return out
    if machine.link == "duplex":
        both = machine.out_bytes_per_us + machine.in_bytes_per_us
        return max(out, _time_us(pressure.moved_bytes, both, machine))
    initial_bytes = pressure.moved_bytes - pressure.sent_bytes
    fastest = max(machine.out_bytes_per_us, machine.in_bytes_per_us)
    started = _time_us(initial_bytes, fastest, machine)
    # One transfer may be all, so that its latency counts once.
    return out + started - (_latency_us(machine) if out and started else 0.0)


def _time_us(size_bytes: int, bytes_per_us: float, machine: Machine) -> float:
    if not size_bytes:
        return 0.0
    return _latency_us(machine) + size_bytes / bytes_per_us


def _latency_us(machine: Machine) -> float:
    return round(machine.latency_us * 1000) / 1000  # as `Machine.transfer_ns` rounds it
