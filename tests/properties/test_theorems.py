"""The two theorems of the list, and that the order of the list alone decides what is computed.

Random traces with random workspaces, random legal lists; see `docs/schedule.md` for the statements.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
from support.strategies import Case, cases
from support.timed import run_freely

from ooctrain.sched.ledger import Issued, peaks, start_bytes, walk
from ooctrain.sched.schedule import Fence
from ooctrain.sched.simulate import start_times
from ooctrain.sched.timeline import ledger_curve
from ooctrain.sched.verify import verify
from ooctrain.testing.byte_list import Job, lay_out
from ooctrain.testing.interpreter import in_core, interpret
from ooctrain.testing.random_traces import random_values


@given(cases(), st.booleans())
@settings(max_examples=200)
def test_any_allowed_order_computes_the_in_core_values(case: Case, shared_link: bool):
    rng = case.rng()
    start = random_values(case.trace, rng)
    expected = in_core(case.trace, start).persistent
    device_peak, host_peak = peaks(walk(case.trace, case.schedule), case.schedule)
    for _ in range(3):
        found = interpret(case.trace, case.schedule, start, rng, shared_link=shared_link)
        assert found.persistent == expected
        assert found.physical_peak_bytes <= device_peak  # theorem 1
        # An allocator that works at issue needs the ledger's peak, to the byte.
        assert found.arena_bytes == device_peak
        assert found.host_arena_bytes == host_peak


@given(cases())
@settings(max_examples=300)
def test_the_ledger_waits_for_what_the_table_says_pair_by_pair(case: Case):
    check_waits(lay_out(case.trace, case.schedule, case.rng()), walk(case.trace, case.schedule))


def check_waits(job: Job, issued: Sequence[Issued]) -> None:
    """The ledger names at most one instruction a stream, `byte_list` all of them: the same."""
    stream = {row.index: row.stream for row in issued if row.stream}
    named, all_pairs = _Clocks(stream), _Clocks(stream)
    releases = [release.after for release in job.releases if not release.host]
    for row in issued:
        if row.stream:
            after = job.steps[row.index].after
            assert named.start(row.index, row.waits) == all_pairs.start(row.index, after)
        elif not isinstance(row.instruction, Fence):
            assert named.join(row.waits) == all_pairs.join(releases.pop(0))
    assert not releases


@given(cases())
def test_three_executions_are_three_steps_in_core(case: Case):
    rng = case.rng()
    values = expected = random_values(case.trace, rng)
    for _ in range(3):
        fresh = random_values(case.trace, rng)
        batch = {v: x for v, x in fresh.items() if not case.trace.variables[v].persistent}
        expected = in_core(case.trace, {**expected, **batch}).persistent
        values = interpret(case.trace, case.schedule, {**values, **batch}, rng).persistent
        assert values == expected


@given(cases(), st.booleans())
@settings(max_examples=200)
def test_theorem_1_residency_stays_under_the_peak_for_any_durations(case: Case, shared_link: bool):
    rng, issued = case.rng(), walk(case.trace, case.schedule)
    peak, _ = peaks(issued, case.schedule)
    for _ in range(5):
        durations = [rng.choice([0, 1, rng.randint(1, 50), 1000]) for _ in case.schedule]
        start, done = start_times(issued, durations, shared_link)
        changes = [(start[row.index], row.claim_bytes) for row in issued if row.claim_bytes]
        changes += [
            (max((done[w] for w in row.waits), default=0), -row.release_bytes) for row in issued
        ]
        curve = ledger_curve(start_bytes(case.schedule)[0], changes)
        assert max(held for _, held in curve) <= peak


@given(cases(), st.booleans())
@settings(max_examples=200)
def test_theorem_2_a_simulated_schedule_sorted_by_time_is_itself(case: Case, shared_link: bool):
    """Sorted by time, releases before claims at ties, it is a legal list with the same starts."""
    rng = case.rng()
    items = tuple(item for item in case.schedule if not isinstance(item, Fence))
    listed = replace(case.schedule, instructions=items)
    issued, durations = walk(case.trace, listed), [rng.randint(1, 50) for _ in items]
    start, done = start_times(issued, durations, shared_link)
    released = [max((done[w] for w in row.waits), default=0) for row in issued]
    timed = [
        (start[row.index] if row.stream else at, row.stream != "", row)
        for row, at in zip(issued, released, strict=True)
    ]
    timed.sort(key=lambda entry: entry[:2])
    resorted = replace(listed, instructions=tuple(row.instruction for _, _, row in timed))
    verify(resorted, case.trace, peaks(issued, listed)[0] or None)
    again = start_times(
        walk(case.trace, resorted),
        [0 if row.implied else durations[row.index] for _, _, row in timed],
        shared_link,
    )[0]
    for position, (at, is_start, _) in enumerate(timed):
        # Host releases have no place of their own in the list: on a duplex link a SwapOut that
        # waited for one may come before it, and start earlier.
        assert not is_start or again[position] == at or (again[position] < at and not shared_link)


@given(cases(max_calls=6), st.booleans(), st.floats(1.0, 2.0))
@settings(max_examples=200)
def test_theorem_2_any_feasible_timed_schedule_is_a_legal_list(
    case: Case, shared_link: bool, slack: float
):
    rng = case.rng()
    memory = int(peaks(walk(case.trace, case.schedule), case.schedule)[0] * slack)
    timed = run_freely(case.trace, case.schedule, memory, rng, shared_link=shared_link)
    if timed is None:
        return
    listed = replace(case.schedule, instructions=tuple(item.instruction for item in timed))
    verify(listed, case.trace, memory or None)
    for row in walk(case.trace, listed):
        if row.implied:
            continue
        # The times satisfy every wait of the list: it can be carried out just so.
        for earlier in row.waits:
            assert timed[earlier].end_ns <= timed[row.index].start_ns, (row, timed[earlier])


class _Clocks:
    """For each instruction the latest on every stream that is done before it starts."""

    def __init__(self, stream: dict[int, str]):
        self.stream, self.before = stream, {}
        self.last = dict.fromkeys("CDH", None)

    def start(self, index: int, waits) -> dict[str, int]:
        mine = self.stream[index]
        previous = [] if self.last[mine] is None else [self.last[mine]]
        self.before[index] = self.join([*waits, *previous])
        self.last[mine] = index
        return self.before[index]

    def join(self, waits) -> dict[str, int]:
        clock = dict.fromkeys("CDH", -1)
        for earlier in waits:
            clock[self.stream[earlier]] = max(clock[self.stream[earlier]], earlier)
            for lane, at in self.before[earlier].items():
                clock[lane] = max(clock[lane], at)
        return clock
