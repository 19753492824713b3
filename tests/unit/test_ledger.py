"""The table of `docs/schedule.md`, row by row on the smallest lists; host slots."""

from __future__ import annotations

from bisect import insort

from hypothesis import given
from hypothesis import strategies as st
from support.strategies import Case, cases

from ooctrain.sched.host import host_slots
from ooctrain.sched.ledger import Issued, peaks, walk
from ooctrain.sched.schedule import (
    BYTES,
    End,
    Fence,
    Free,
    Granule,
    Run,
    Schedule,
    SwapIn,
    SwapOut,
    default_start,
)
from ooctrain.sched.spans import FirstGaps, Spans, lowest_gap
from ooctrain.step.builder import TraceBuilder
from ooctrain.step.trace import Trace

X, A, B, C = 0, 1, 2, 3


def chain(*, workspace: int = 0, in_place: bool = False) -> Trace:
    """x -> a -> b -> c, 10 bytes each; `in_place`: b takes over the storage of a."""
    builder = TraceBuilder()
    builder.variable("x", (10,), "uint8", "input")
    for name in "abc":
        builder.variable(name, (10,), "uint8")
    builder.call("f", None, (X,), (A,), workspace_bytes=workspace, duration_ns=10)
    builder.call("g", None, (A,), (B,), reuse={B: A} if in_place else None, duration_ns=10)
    builder.call("h", None, (B,), (C,), duration_ns=10)
    return builder.build()


def rows(trace: Trace, *items, granule: Granule = BYTES) -> dict[int, Issued]:
    """The listed rows by position, after x has come in at position 0."""
    device, host = default_start(trace)
    schedule = Schedule((SwapIn(X, 0, 10), *items), device, host, granule)
    return {row.index: row for row in walk(trace, schedule) if not row.implied}


def test_a_run_waits_for_the_swap_in_of_its_input():
    assert rows(chain(), Run(0))[1].waits == (0,)


def test_a_run_that_claims_waits_for_every_release_before_it():
    row = rows(chain(), Run(0), SwapOut(X, 0, 10), Free(X, 0, 10), Run(1))
    assert row[3].waits == (1, 2, 0)  # released when reader, copy and writer of x are done
    assert row[4].waits == (1, 2, 0)
    assert row[4].claim_bytes == 10


def test_a_run_that_claims_nothing_waits_for_no_release():
    row = rows(chain(in_place=True), Run(0), SwapOut(X, 0, 10), Free(X, 0, 10), Run(1))
    assert row[4].waits == ()
    assert row[4].claim_bytes == 0


def test_a_run_waits_for_copies_of_what_it_overwrites():
    row = rows(chain(in_place=True), Run(0), SwapOut(A, 0, 5), Run(1))
    assert row[3].waits == (2,)
    assert 2 not in rows(chain(), Run(0), SwapOut(A, 0, 5), Run(1))[3].waits


def test_a_swap_out_waits_for_the_writer_of_its_range_only():
    items = (Run(0), SwapOut(X, 0, 5), Free(X, 0, 5), SwapIn(X, 0, 5), SwapOut(X, 5, 10))
    assert rows(chain(), *items, SwapOut(X, 0, 5))[6].waits == (4,)
    assert rows(chain(), *items)[5].waits == (0,)


def test_a_swap_in_waits_for_its_swap_out_and_for_every_release():
    row = rows(chain(), Run(0), SwapOut(A, 0, 10), Free(A, 0, 10), SwapIn(A, 0, 10))
    assert row[4].waits == (1, 2)  # what the list before it has released: a
    assert row[4].claim_bytes == 10


def test_workspace_and_scratch_are_released_at_end():
    row = rows(chain(workspace=7), Run(0, ()), End(0), granule=Granule(4))
    assert (row[1].claim_bytes, row[2].release_bytes) == (12 + 8, 12 + 8)
    assert row[2].waits == (1,)


def test_a_reused_scratch_output_releases_the_storage_at_end():
    row = rows(chain(in_place=True), Run(0), Run(1, ()), End(1))
    assert (row[2].claim_bytes, row[3].release_bytes, row[3].ledger_bytes) == (0, 10, 10)


def test_end_is_implied_before_the_next_run_and_at_the_end_of_the_list():
    trace = chain(workspace=7)
    schedule = Schedule((SwapIn(X, 0, 10), Run(0), Free(X, 0, 10), Run(1)), *default_start(trace))
    issued = walk(trace, schedule)
    assert [(row.index, type(row.instruction).__name__) for row in issued if row.implied] == [
        (3, "End"),
        (4, "End"),
    ]
    assert issued[3].release_bytes == 7
    assert issued[4].ledger_bytes == 20  # a and b


def test_a_fence_waits_for_everything_and_everything_waits_for_it():
    row = rows(chain(), Run(0), SwapOut(A, 0, 5), Fence(), SwapOut(X, 0, 5), Free(X, 5, 10))
    assert row[3].waits == (1, 2, 0)
    assert row[4].waits[:1] == (1,)
    assert row[5].waits == (1, 2, 0)


def test_host_bytes_are_held_from_the_first_copy_to_the_last():
    items = (
        Run(0), SwapOut(A, 0, 10), Free(A, 0, 10), SwapIn(A, 0, 10), Run(1), Free(A, 0, 10),
        SwapOut(B, 0, 4),
    )  # fmt: skip
    row = rows(chain(), *items)
    # x is held throughout: the next step needs it. a's copy goes when g has waited for it.
    assert [row[i].host_ledger_bytes for i in (0, 2, 4, 5, 7)] == [10, 20, 20, 10, 14]
    assert row[7].host_claim_bytes == 4
    assert 4 in row[7].waits  # the host release, by SwapIn a


def test_a_swap_out_does_not_wait_for_a_copy_in_flight():
    items = (SwapOut(A, 0, 5), Free(A, 0, 5), SwapIn(A, 0, 5), SwapOut(A, 5, 10))
    row = rows(chain(), Run(0), *items)
    assert row[5].waits == (1,)
    assert row[5].host_ledger_bytes == 20


def test_the_update_of_a_parameter_overwrites_its_host_slot():
    trace = _updated()
    items = (SwapIn(0, 0, 10), Run(0), SwapOut(1, 0, 10), Free(1, 0, 10))
    schedule = Schedule(items, (), ((0, 0, 10),))
    row = {row.index: row for row in walk(trace, schedule)}
    assert row[2].waits == (1, 0)  # the SwapIn of W still reads the slot that W' will fill
    slots = host_slots(trace, schedule)
    assert slots.extent_bytes == 10
    assert slots.start_offsets == (0,)
    assert slots.offsets == {0: 0, 2: 0}


def test_the_old_value_may_come_back_after_an_update():
    items = (SwapIn(0, 0, 10), Run(0), SwapIn(0, 0, 10), Free(0, 0, 10), SwapOut(1, 0, 10))
    schedule = Schedule((*items, Free(1, 0, 10)), (), ((0, 0, 10),))
    row = {row.index: row for row in walk(_updated(), schedule)}
    assert row[3].waits == (2,)  # not for the update, which reads another storage


@given(cases())
def test_host_slots_hold_what_was_put_there(case: Case):
    """In list order every SwapIn finds the bytes of its SwapOut, whatever came and went."""
    slots = host_slots(case.trace, case.schedule, align_bytes=1)
    slab: list[tuple[int, int] | None] = [None] * slots.extent_bytes
    for (variable, lo, hi), offset in zip(
        case.schedule.start_host, slots.start_offsets, strict=True
    ):
        slab[offset : offset + hi - lo] = [(variable, at) for at in range(lo, hi)]
    for index, item in enumerate(case.schedule):
        if isinstance(item, SwapOut):
            place = slice(slots.offsets[index], slots.offsets[index] + item.hi - item.lo)
            slab[place] = [(item.var, at) for at in range(item.lo, item.hi)]
        if isinstance(item, SwapIn):
            place = slice(slots.offsets[index], slots.offsets[index] + item.hi - item.lo)
            assert slab[place] == [(item.var, at) for at in range(item.lo, item.hi)]
    assert slots.extent_bytes >= peaks(walk(case.trace, case.schedule), case.schedule)[1]
    ends = {case.trace.end_variables.get(v, v): v for v, _, _ in case.schedule.start_host}
    for (variable, lo, hi), offset in zip(
        case.schedule.start_host, slots.start_offsets, strict=True
    ):
        held = slab[offset : offset + hi - lo]
        assert all(entry and ends.get(entry[0]) == variable for entry in held)


def test_slots_are_aligned():
    trace = chain()
    items = (SwapIn(X, 0, 10), Run(0), SwapOut(A, 0, 10), SwapOut(X, 0, 3))
    slots = host_slots(trace, Schedule(items, *default_start(trace)), align_bytes=64)
    assert (slots.offsets[0], slots.offsets[2], slots.extent_bytes) == (0, 64, 74)


@given(st.lists(st.integers(0, 9), max_size=40), st.randoms(use_true_random=False))
def test_first_gaps_are_the_lowest_between_what_is_taken(sizes, rng):
    gaps, taken = FirstGaps(), list[tuple[int, int]]()
    for size in sizes:
        offset = gaps.take(size)
        assert offset == lowest_gap(taken, size)
        if size:
            insort(taken, (offset, offset + size))
        if taken and rng.random() < 0.4:
            gaps.give(*taken.pop(rng.randrange(len(taken))))
    for start, end in taken:
        gaps.give(start, end)
    assert gaps.take(1 << 70) == 0


def test_what_lies_side_by_side_is_not_looked_at_one_by_one():
    """There is one gap behind a thousand copies, and one more for each that is gone."""
    gaps = FirstGaps()
    for _ in range(1000):
        gaps.take(8)
    assert len(gaps) == 1
    gaps.give(16, 24)
    gaps.give(80, 88)
    assert len(gaps) == 3
    assert [gaps.take(size) for size in (9, 8, 4, 8)] == [8000, 16, 80, 8009]


def test_spans_split_melt_and_leave_gaps():
    spans: Spans[str] = Spans()
    spans.put(0, 10, "a")
    spans.put(20, 30, "a")
    assert spans.gaps(5, 25) == [(10, 20)]
    spans.put(10, 20, "a")
    assert spans.items == [(0, 30, "a")]
    spans.put(5, 8, "b")
    assert spans.over(4, 9) == [(4, 5, "a"), (5, 8, "b"), (8, 9, "a")]
    assert spans.ranges() == [(0, 30)]
    spans.drop(0, 6)
    assert spans.items == [(6, 8, "b"), (8, 30, "a")]
    spans.put(3, 3, "nothing")
    assert spans.gaps(0, 30) == [(0, 6)]
    spans.put(40, 50, "c")
    spans.put(4, 6, "b")  # it melts with what begins where it ends, and with nothing else
    assert spans.items == [(4, 8, "b"), (8, 30, "a"), (40, 50, "c")]


def _updated() -> Trace:
    builder = TraceBuilder()
    old = builder.variable("W", (10,), "uint8", "param")
    new = builder.variable("W'", (10,), "uint8", "param")
    builder.call("update", None, (old,), (new,), reuse={new: old}, pure=False, phase="update")
    builder.carries[new] = old
    return builder.build()
