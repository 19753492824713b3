"""Times of small lists, worked out by hand; speed of verifier and simulator."""

from __future__ import annotations

from fractions import Fraction

import pytest
from support.work import lines_run

from ooctrain.sched.ledger import walk
from ooctrain.sched.schedule import Fence, Free, Run, Schedule, SwapIn, SwapOut, default_start
from ooctrain.sched.simulate import durations_ns, interfered_times, simulate, start_times
from ooctrain.sched.timeline import TimelineEvent, ledger_curve, make_timeline
from ooctrain.sched.verify import verify
from ooctrain.step.builder import TraceBuilder
from ooctrain.step.machine import Machine
from ooctrain.step.trace import Trace
from ooctrain.testing.random_traces import FakeOp


def two_calls(first_us: int = 10, second_us: int = 10) -> Trace:
    """x -> a, x -> b: two calls that do not need each other; 100 bytes each."""
    builder = TraceBuilder()
    builder.variable("x", (100,), "uint8", "input")
    for name in "ab":
        builder.variable(name, (100,), "uint8")
    builder.call("f", FakeOp("f"), (0,), (1,), duration_ns=first_us * 1000)
    builder.call("g", FakeOp("g"), (0,), (2,), duration_ns=second_us * 1000)
    return builder.build()


def machine(**options) -> Machine:
    return Machine("m", 1.0, 1.0, 10.0, **options)


def times(trace: Trace, items, **options) -> list[tuple[float, float]]:
    schedule = Schedule((SwapIn(0, 0, 100), *items), *default_start(trace))
    timeline = simulate(schedule, trace, machine(**options))
    by_index = sorted(timeline.events, key=lambda event: event.index)
    return [(event.start_us, event.end_us) for event in by_index]


OUT_AND_IN = (Run(0), SwapOut(1, 0, 100), Free(0, 0, 50), SwapIn(0, 0, 50), Run(1))


def test_on_a_shared_link_transfers_take_turns():
    # in x 0-10, f 10-20, out a 20-30, in x 30-35, g 35-45
    expected = [(0, 10), (10, 20), (20, 30), (30, 35), (35, 45)]
    assert times(two_calls(), OUT_AND_IN, link="shared") == expected


def test_on_a_duplex_link_each_direction_is_its_own():
    expected = [(0, 10), (10, 20), (20, 30), (20, 25), (25, 35)]
    assert times(two_calls(), OUT_AND_IN, link="duplex") == expected


def test_latency_and_rates_by_direction():
    options = {"link": "duplex", "latency_us": 2.0, "link_out_bytes_per_us": 5.0}
    expected = [(0, 12), (12, 22), (22, 44), (22, 29), (29, 39)]
    assert times(two_calls(), OUT_AND_IN, **options) == expected


def test_issuing_is_time_of_the_compute_stream():
    # in x 0-10; f is the second instruction: 2 x 3 us of issue, then 10. Then out a, Free, in a,
    # and g with 4 x 3 us of issue once a is back.
    expected = [(0, 10), (10, 26), (26, 36), (26, 31), (31, 53)]
    assert times(two_calls(), OUT_AND_IN, link="duplex", issue_us=3.0) == expected


def test_handing_a_copy_over_is_time_of_the_compute_stream_too():
    # As above with 2 us more for each copy: one is listed before f, two before g.
    expected = [(0, 10), (10, 28), (28, 38), (28, 33), (33, 59)]
    options = {"issue_us": 3.0, "copy_issue_us": 2.0}
    assert times(two_calls(), OUT_AND_IN, link="duplex", **options) == expected


def test_a_fence_stops_everything():
    items = (Run(0), SwapOut(1, 0, 100), Fence(), Run(1))
    assert times(two_calls(), items, link="duplex")[-1] == (30, 40)


def test_a_call_slows_down_while_a_copy_runs():
    # out a runs 20-30. g starts at 20 and does 5 us of work in these 10 us, then 5 more alone.
    items = (Run(0), SwapOut(1, 0, 100), Run(1))
    assert times(two_calls(), items, link="duplex", interference=2.0)[-1] == (20, 35)


def test_a_copy_that_starts_in_the_middle_of_a_call_slows_the_rest():
    # g runs 20-45; the copy of x waits for nothing but its turn after the copy of a.
    items = (Run(0), SwapOut(1, 0, 20), SwapOut(0, 0, 50), Run(1))
    # copies 20-22 and 22-27: g does 3.5 us of work in 7 us, then 6.5 alone.
    assert times(two_calls(), items, link="shared", interference=2.0)[-1] == (20, 33.5)


def test_interfered_work_is_counted_in_whole_nanoseconds():
    trace = two_calls()
    schedule = Schedule(
        (SwapIn(0, 0, 100), Run(0), SwapOut(1, 0, 7), Run(1)), *default_start(trace)
    )
    issued = walk(trace, schedule)
    work = durations_ns(schedule, trace, machine())
    start, done = interfered_times(issued, work, True, Fraction(3, 2))
    # 700 ns of copying leave floor(700 * 2 / 3) = 466 ns of work done.
    assert done[3] - start[3] == 700 + (10_000 - 466)
    assert interfered_times(issued, work, True, Fraction(1)) == start_times(issued, work, True)


def test_sums():
    trace = two_calls()
    items = (SwapIn(0, 0, 100), Run(0), Free(1, 0, 100), Run(0), SwapOut(1, 0, 30), Run(1))
    timeline = simulate(Schedule(items, *default_start(trace)), trace, machine())
    assert (timeline.bytes_in, timeline.bytes_out) == (100, 30)
    assert (timeline.compute_us, timeline.recompute_us) == (30, 10)
    assert (timeline.makespan_us, timeline.stall_us) == (40, 10)
    assert timeline.busy_us("H") == 10
    assert timeline.peak_bytes == 300
    assert timeline.ledger == ((0, 100), (10, 200), (30, 300))
    assert [event.name for event in timeline.events] == ["x", "f", "f", "a", "g"]
    assert timeline.to_json()["events"][0]["stream"] == "H"


def test_an_empty_list():
    builder = TraceBuilder()
    builder.variable("W", (8,), "uint8", "param")
    trace = builder.build()
    timeline = simulate(Schedule((), *default_start(trace)), trace, machine())
    assert (timeline.makespan_us, timeline.peak_bytes, timeline.ledger) == (0, 8, ((0, 8),))


def test_at_one_moment_releases_come_before_claims():
    assert ledger_curve(10, [(5, 4), (5, -10), (7, -4)]) == ((0, 10), (0.005, 4), (0.007, 0))


def test_a_measured_timeline_has_the_same_sums():
    events = [
        TimelineEvent("C", "f", 0.0, 2.5, 0),
        TimelineEvent("H", "x", 1.0, 4.0, 1),
        TimelineEvent("C", "f", 5.0, 6.0, 2),
    ]
    timeline = make_timeline(events, rerun=frozenset({2}), copied_bytes=(0, 8), peak_bytes=(64, 8))
    assert (timeline.makespan_us, timeline.compute_us, timeline.recompute_us) == (6, 3.5, 1)
    assert timeline.stall_us == 2.5


@pytest.mark.parametrize("layers", [100, 715])
def test_an_instruction_costs_the_same_in_a_list_of_any_length(layers):
    trace, schedule = _long_list(layers)
    fast = machine(link="duplex")
    slow = machine(link="duplex", interference=1.3)
    assert lines_run(lambda: verify(schedule, trace, None)) < 300 * len(schedule)
    assert lines_run(lambda: simulate(schedule, trace, fast)) < 300 * len(schedule)
    assert lines_run(lambda: simulate(schedule, trace, slow)) < 400 * len(schedule)


def test_many_chunks_of_one_variable_stay_cheap():
    builder = TraceBuilder()
    builder.variable("x", (4000,), "uint8", "input")
    builder.variable("y", (4000,), "uint8")
    builder.call("f", FakeOp("f"), (0,), (1,), duration_ns=1000)
    trace = builder.build()
    chunks = [(lo, lo + 4) for lo in range(0, 4000, 4)]
    items = (
        *(SwapIn(0, lo, hi) for lo, hi in chunks), Run(0), *(SwapOut(1, *c) for c in chunks),
        *(Free(1, *c) for c in chunks), *(SwapIn(1, *c) for c in reversed(chunks)),
        Free(1, 0, 4000), Free(0, 0, 4000),
    )  # fmt: skip
    schedule = Schedule(items, *default_start(trace))
    assert lines_run(lambda: verify(schedule, trace, None)) < 400 * len(schedule)


def _long_list(layers: int) -> tuple[Trace, Schedule]:
    """A chain whose activations are all swapped out and in again."""
    builder = TraceBuilder()
    saved = [builder.variable("x", (64,), "uint8", "input")]
    for i in range(layers):
        saved.append(builder.variable(f"y{i}", (64,), "uint8"))
        builder.call(f"f{i}", FakeOp(), (saved[i],), (saved[i + 1],), duration_ns=900)
    gradient = builder.variable("g", (64,), "uint8", "grad")
    builder.call("loss", FakeOp(), (saved[-1],), (gradient,), phase="loss", duration_ns=100)
    items = [SwapIn(0, 0, 64)]
    for i in range(layers):
        items += [Run(i), SwapOut(saved[i + 1], 0, 64), Free(saved[i], 0, 64)]
    items += [Run(layers), Free(saved[-1], 0, 64)]
    for i in reversed(range(layers)):
        older = gradient
        gradient = builder.variable(f"g{i}", (64,), "uint8", "grad")
        call = builder.call(
            f"b{i}", FakeOp(), (saved[i], older), (gradient,), phase="backward", duration_ns=900
        )
        items += [SwapIn(saved[i], 0, 64), Run(call), Free(saved[i], 0, 64), Free(older, 0, 64)]
    trace = builder.build()
    return trace, Schedule((*items, Free(gradient, 0, 64)), *default_start(trace))
