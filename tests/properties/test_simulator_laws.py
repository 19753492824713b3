"""Laws of the simulator on random lists, traces and machines."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st
from support.strategies import Case, cases, machines, traces

from ooctrain.sched.ledger import walk
from ooctrain.sched.schedule import (
    Free,
    Granule,
    Run,
    Schedule,
    SwapIn,
    SwapOut,
    default_start,
    whole,
)
from ooctrain.sched.simulate import durations_ns, interfered_times, simulate, start_times
from ooctrain.sched.verify import verify
from ooctrain.step.machine import Machine
from ooctrain.step.trace import Trace


@given(cases(), machines(), machines(interference=True))
@settings(max_examples=150)
def test_no_stream_is_busier_than_the_step_is_long(case: Case, plain: Machine, disturbed: Machine):
    for machine in (plain, disturbed):
        timeline = simulate(case.schedule, case.trace, machine)
        out, into = timeline.busy_us("D"), timeline.busy_us("H")
        busiest = max(timeline.busy_us("C"), out, into)
        if machine.link == "shared":
            busiest = max(busiest, out + into)
        assert timeline.makespan_us >= busiest - 1e-6
        assert abs(timeline.compute_us + timeline.stall_us - timeline.makespan_us) < 1e-6
        assert timeline.recompute_us <= timeline.compute_us
        assert max(held for _, held in timeline.ledger) <= timeline.peak_bytes
        _check_exclusive(timeline, machine)


@given(cases(), st.integers(2, 7), st.booleans())
def test_all_times_scale_together(case: Case, factor: int, shared_link: bool):
    rng, issued = case.rng(), walk(case.trace, case.schedule)
    durations = [rng.randint(0, 90) for _ in case.schedule]
    start, done = start_times(issued, durations, shared_link)
    again = start_times(issued, [factor * d for d in durations], shared_link)
    assert again == ([factor * t for t in start], [factor * t for t in done])


@given(cases(), machines(), st.integers(2, 5))
def test_bytes_and_bandwidth_scale_together(case: Case, machine: Machine, factor: int):
    trace = _times(case.trace, factor, 5)
    faster = replace(
        machine,
        latency_us=0.0,
        link_bytes_per_us=machine.out_bytes_per_us * factor,
        link_in_bytes_per_us=machine.in_bytes_per_us * factor,
    )
    slower = replace(machine, latency_us=0.0, link_bytes_per_us=machine.out_bytes_per_us)
    one = simulate(case.schedule, _times(case.trace, 1, 5), slower)
    other = simulate(_stretched(case.schedule, factor), trace, faster)
    assert other.makespan_us == one.makespan_us
    assert other.peak_bytes == factor * one.peak_bytes
    assert other.host_peak_bytes == factor * one.host_peak_bytes
    assert (other.bytes_out, other.bytes_in) == (factor * one.bytes_out, factor * one.bytes_in)


@given(cases(), st.booleans())
@settings(max_examples=150)
def test_nothing_gets_slower_when_something_gets_faster(case: Case, shared_link: bool):
    rng, issued = case.rng(), walk(case.trace, case.schedule)
    slow = [rng.randint(0, 90) for _ in case.schedule]
    fast = [rng.randint(0, d) for d in slow]
    slow_start, slow_done = start_times(issued, slow, shared_link)
    fast_start, fast_done = start_times(issued, fast, shared_link)
    assert all(f <= s for f, s in zip(fast_start, slow_start, strict=True))
    assert all(f <= s for f, s in zip(fast_done, slow_done, strict=True))
    # Two links are never worse than one.
    duplex, _ = start_times(issued, slow, False)
    assert all(d <= s for d, s in zip(duplex, start_times(issued, slow, True)[0], strict=True))


@given(cases(), machines())
def test_the_clock_without_interference_is_the_pass_over_the_list(case: Case, machine: Machine):
    issued = walk(case.trace, case.schedule)
    work = durations_ns(case.schedule, case.trace, machine)
    for shared in (False, True):
        assert interfered_times(issued, work, shared, Fraction(1)) == start_times(
            issued, work, shared
        )


@given(cases(), machines(), st.sampled_from([Fraction(11, 10), Fraction(3, 2), Fraction(2)]))
def test_interference_costs_time_but_at_most_its_factor(
    case: Case, machine: Machine, slowdown: Fraction
):
    issued = walk(case.trace, case.schedule)
    work = durations_ns(case.schedule, case.trace, machine)
    shared = machine.link == "shared"
    plain = max(start_times(issued, work, shared)[1], default=0)
    slowed = max(interfered_times(issued, work, shared, slowdown)[1], default=0)
    # Each event may cost a call one nanosecond of rounding.
    assert plain <= slowed <= plain * slowdown + 2 * len(issued) + 1


@given(traces(), machines())
def test_in_core_nothing_moves_and_only_calls_take_time(trace: Trace, machine: Machine):
    """Everything starts on the device and is freed when dead: no transfer, no stall."""
    schedule = _in_core(trace)
    verify(schedule, trace, None, machine)
    timeline = simulate(schedule, trace, machine)
    assert (timeline.bytes_out, timeline.bytes_in, timeline.stall_us) == (0, 0, 0)
    assert timeline.recompute_us == 0
    assert timeline.makespan_us == timeline.busy_us("C")


def _check_exclusive(timeline, machine: Machine) -> None:
    """On one stream nothing overlaps."""
    for streams in ("C", "DH") if machine.link == "shared" else ("C", "D", "H"):
        events = sorted(
            (e for e in timeline.events if e.stream in streams),
            key=lambda e: (e.start_us, e.end_us),
        )
        for one, other in pairwise(events):
            assert one.end_us <= other.start_us + 1e-9


def _times(trace: Trace, factor: int, duration_ns: int) -> Trace:
    """The trace with all bytes multiplied and fixed call times."""
    variables = tuple(replace(v, nbytes=v.nbytes * factor) for v in trace.variables)
    calls = tuple(
        replace(c, workspace_bytes=c.workspace_bytes * factor, duration_ns=duration_ns * (c.id + 1))
        for c in trace.calls
    )
    return replace(trace, variables=variables, calls=calls)


def _stretched(schedule: Schedule, factor: int) -> Schedule:
    """The list with all bytes multiplied, granule included."""

    def stretch(item):
        if isinstance(item, SwapOut | SwapIn | Free):
            return replace(item, lo=item.lo * factor, hi=item.hi * factor)
        return item

    granule = schedule.granule
    return Schedule(
        tuple(stretch(item) for item in schedule),
        tuple((v, lo * factor, hi * factor) for v, lo, hi in schedule.start_device),
        tuple((v, lo * factor, hi * factor) for v, lo, hi in schedule.start_host),
        Granule(granule.size_bytes * factor, granule.ranges),
    )


def _in_core(trace: Trace) -> Schedule:
    device, host = default_start(trace)
    lasting = set(trace.end_variables.values())
    last = {v: call.id for call in trace.calls for v in call.touched()}
    gone = {v for call in trace.calls for v in call.reuse.values()}
    items = []
    for call in trace.calls:
        items.append(Run(call.id))
        items += [
            Free(*whole(trace, v))
            for v in call.touched()
            if last[v] == call.id and v not in gone | lasting
        ]
    unread = [v for v, _, _ in (*device, *host) if v not in last and v not in lasting]
    items += [Free(*whole(trace, v)) for v in unread]
    return Schedule(tuple(items), (*device, *host), host)
