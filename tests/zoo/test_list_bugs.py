"""The laws of the list bite: each planted bug passes the worked example and breaks a law."""

from __future__ import annotations

import random
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise

import pytest
from properties import test_theorems as THEOREMS
from support.mutate import mutants
from support.quick import quick
from support.random_lists import random_schedule
from support.worked_example import worked_schedule, worked_trace
from unit import test_verify as VERIFY
from zoo import list_bugs as ZOO

from ooctrain.errors import ScheduleError
from ooctrain.sched import simulate
from ooctrain.sched.host import host_slots
from ooctrain.sched.ledger import peaks, walk
from ooctrain.sched.schedule import BYTES, Granule, Schedule, SwapIn, SwapOut
from ooctrain.sched.verify import verify
from ooctrain.step.trace import Trace
from ooctrain.testing.byte_list import LawBroken, lay_out
from ooctrain.testing.interpreter import in_core, interpret
from ooctrain.testing.random_traces import random_trace, random_values


@pytest.mark.parametrize("bug", quick([*ZOO.BUGS], *range(0, len(ZOO.BUGS), 3)))
def test_bug(bug: str, monkeypatch: pytest.MonkeyPatch):
    ZOO.plant(monkeypatch, bug)
    trace = worked_trace()
    verify(worked_schedule(trace), trace, 320)
    with pytest.raises((AssertionError, ScheduleError)):
        check_everything(seeds=500)


def test_without_a_bug_the_laws_hold():
    check_everything(seeds=40)


def check_everything(seeds: int) -> None:
    """The gallery of broken lists, and all laws on random ones."""
    check_gallery()
    for seed in range(seeds):
        check_laws(seed)


def check_gallery() -> None:
    """The smallest broken lists are refused, each by its rule."""
    for rule, _, items in VERIFY.BROKEN:
        assert rule_of(VERIFY.step(), VERIFY.schedule(items)) == rule


def rule_of(trace: Trace, schedule: Schedule) -> str | None:
    """The rule that the verifier finds broken."""
    try:
        verify(schedule, trace, None)
    except ScheduleError as error:
        return error.rule
    return None


def check_laws(seed: int) -> None:
    """Every law of the list on one random case.

    Raises:
        AssertionError, ScheduleError: one of them is broken.
    """
    rng = random.Random(seed)
    trace = random_trace(rng, calls=rng.randint(1, 6))
    granule = rng.choice([BYTES, Granule(4), Granule(4, ranges=False)])
    schedule = random_schedule(trace, rng, granule=granule, mischief=2.0)
    if schedule.instructions:
        check_ledger(trace, schedule, rng)
        check_slots(trace, schedule)
        check_times(trace, schedule, rng)
        check_rules(trace, schedule, rng)


def check_ledger(trace: Trace, schedule: Schedule, rng: random.Random) -> None:
    """Peaks and waits are those of the derivation byte by byte and pair by pair."""
    job, issued = lay_out(trace, schedule, rng), walk(trace, schedule)
    assert peaks(issued, schedule) == (job.arena_bytes, job.host_arena_bytes)
    THEOREMS.check_waits(job, issued)


def check_slots(trace: Trace, schedule: Schedule) -> None:
    """No host byte is given away before those who wait for it have been listed."""
    slots = host_slots(trace, schedule, align_bytes=1)
    slab: dict[int, tuple[int, int]] = {}
    for (variable, lo, hi), offset in zip(schedule.start_host, slots.start_offsets, strict=True):
        slab.update((offset + at - lo, (variable, at)) for at in range(lo, hi))
    for index, item in enumerate(schedule):
        if isinstance(item, SwapOut | SwapIn):
            for at in range(item.lo, item.hi):
                address = slots.offsets[index] + at - item.lo
                if isinstance(item, SwapOut):
                    slab[address] = (item.var, at)
                assert slab[address] == (item.var, at)
    assert slots.extent_bytes >= peaks(walk(trace, schedule), schedule)[1]


def check_times(trace: Trace, schedule: Schedule, rng: random.Random) -> None:
    """Streams take turns, and a slowed call does its whole work."""
    issued = walk(trace, schedule)
    work = [rng.randint(1, 40) for _ in schedule]
    start, done = simulate.start_times(issued, work, True)
    link = sorted((start[r.index], done[r.index]) for r in issued if r.stream in ("D", "H"))
    for (_, end), (begin, _) in pairwise(link):
        assert end <= begin
    slow_start, slow_done = simulate.interfered_times(issued, work, True, Fraction(2))
    copies = [(slow_start[r.index], slow_done[r.index]) for r in issued if r.stream in ("D", "H")]
    for row in issued:
        if row.stream == "C":
            begin, end = slow_start[row.index], slow_done[row.index]
            disturbed = sum(max(0, min(end, b) - max(begin, a)) for a, b in copies)
            assert end - begin - disturbed / 2 >= work[row.index] - 1e-9


def check_rules(trace: Trace, schedule: Schedule, rng: random.Random) -> None:
    """The verifier refuses what the interpreter refuses, and nothing else."""
    start = random_values(trace, rng)
    expected = in_core(trace, start).persistent
    verify(schedule, trace, None)
    for what, mutant in mutants(trace, schedule, rng, 3):
        damaged = False
        try:
            damaged = interpret(trace, mutant, start, rng).persistent != expected
        except LawBroken:
            damaged = True
        # In single bytes, for the interpreter does not mind how ranges are cut.
        caught = rule_of(trace, replace(mutant, granule=BYTES)) is not None
        assert caught == damaged, what
