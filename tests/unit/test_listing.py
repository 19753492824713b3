"""The list of a step for its readers: every line says what it waits for, and why, truly."""

from __future__ import annotations

import json
import random
from collections import Counter
from itertools import pairwise

import pytest
from support.worked_example import worked_machine, worked_schedule, worked_trace

import ooctrain as oc
from ooctrain.report.holdings import holdings, offsets
from ooctrain.report.listing import (
    NO_LINE,
    WHYS,
    earliest_us,
    list_from_json,
    list_to_json,
    listing,
)
from ooctrain.report.lists_compared import NO_MATE, first_difference_at, mates, only_in
from ooctrain.sched.ledger import walk
from ooctrain.sched.planners.registry import get_planner
from ooctrain.sched.planning.question import Question
from ooctrain.sched.schedule import End, Fence, Free, Plan, Run, Schedule, SwapIn, SwapOut
from ooctrain.sched.simulate import simulate
from ooctrain.testing.check_planner import random_case

PLANNERS = ("naive", "belady", "chen-sqrt", "window")


def random_plan(planner, seed):
    """A plan within the least budget, of a random step."""
    case, least = random_case(random.Random(seed)), 0
    try:
        get_planner(planner).plan(Question(case.trace, 0, case.machine, granule=case.granule))
    except oc.Infeasible as refusal:
        least = refusal.minimum_bytes
    return get_planner(planner).plan(
        Question(case.trace, least, case.machine, granule=case.granule)
    ), case


def told(line):
    return [(wait.index, wait.why, wait.giver) for wait in line.waits]


def test_the_worked_example_says_for_each_line_what_it_waits_for():
    lines = listing(worked_trace(), worked_schedule(worked_trace()))
    assert [line.text for line in lines[:4]] == ["in x", "run f1", "free x", "out a[0:60]"]
    assert told(lines[1]) == [(0, "data", NO_LINE)]
    assert told(lines[2]) == [(1, "use", NO_LINE), (0, "use", NO_LINE)]
    assert told(lines[3]) == [(1, "data", NO_LINE)]
    # f2 needs 100 bytes: the workspace of f1 as it ends, and x, which line 2 frees.
    assert told(lines[4]) == [(1, "memory", 1), (0, "memory", 2)]
    # What was swapped out by line 3 comes in again; its place was freed behind b3.
    assert told(lines[11]) == [(8, "memory", 10), (3, "data", NO_LINE), (0, "memory", 2)]
    assert [line.ledger_bytes for line in lines[:6]] == [60, 170, 130, 130, 220, 160]
    assert [line.host_ledger_bytes for line in lines[2:4]] == [40, 100]


def touched(trace, instruction):
    """The variables that an instruction reads, writes, or copies."""
    if isinstance(instruction, Run):
        call = trace.calls[instruction.call]
        return {*call.ins, *call.outs}
    return {instruction.var}


def check_wait(trace, schedule, place, wait):
    """What is said of a wait follows from the two instructions and the one that gives back."""
    one, other = schedule.instructions[place], schedule.instructions[wait.index]
    assert wait.index < place
    assert wait.why in WHYS
    if wait.why == "memory":
        giver = schedule.instructions[wait.giver]
        assert isinstance(giver, Free | Run | End)
        assert wait.index <= wait.giver < place
        if isinstance(giver, Free):
            assert giver.var in touched(trace, other)
    else:
        assert wait.giver == NO_LINE
    if wait.why in ("data", "use") and not isinstance(one, End):
        slots = {trace.carries.get(v, v) for v in touched(trace, one)}
        assert slots & {trace.carries.get(v, v) for v in touched(trace, other)}
    if wait.why == "data":
        assert isinstance(one, Run | SwapIn | SwapOut)
        assert isinstance(other, Run | SwapIn | SwapOut)
    if wait.why == "host":
        assert isinstance(one, SwapOut)
        assert isinstance(other, SwapIn | SwapOut)
    if wait.why == "fence":
        assert any(isinstance(x, Fence) for x in schedule.instructions[wait.index : place + 1])


@pytest.mark.parametrize("planner", PLANNERS)
@pytest.mark.parametrize("seed", range(8))
def test_waits_are_those_of_the_ledger_and_their_reasons_are_true(planner, seed):
    plan, _ = random_plan(planner, seed)
    lines = listing(plan.trace, plan.schedule)
    rows = [row for row in walk(plan.trace, plan.schedule) if not row.implied]
    assert len(lines) == len(rows) == len(plan.schedule)
    for place, (line, row) in enumerate(zip(lines, rows, strict=True)):
        assert tuple(wait.index for wait in line.waits) == row.waits
        assert line.text == plan.schedule.describe(place, plan.trace)
        assert (line.ledger_bytes, line.stream) == (row.ledger_bytes, row.stream)
        for wait in line.waits:
            check_wait(plan.trace, plan.schedule, place, wait)


def test_a_fence_is_the_reason_where_nothing_else_is():
    trace = worked_trace()
    schedule = worked_schedule(trace)
    fenced = list(schedule.instructions)
    fenced.insert(3, Fence())
    lines = listing(trace, Schedule(tuple(fenced), schedule.start_device, schedule.start_host))
    assert told(lines[3]) == [(1, "fence", NO_LINE), (0, "fence", NO_LINE)]
    assert (0, "fence", NO_LINE) in told(lines[4])


@pytest.mark.parametrize("seed", range(6))
def test_nothing_begins_before_its_waits_are_done(seed):
    plan, case = random_plan("belady", seed)
    timeline = simulate(plan.schedule, plan.trace, case.machine)
    lines = listing(plan.trace, plan.schedule)
    done = {event.index: event.end_us for event in timeline.events}
    start = {event.index: event.start_us for event in timeline.events}
    for place, earliest in enumerate(earliest_us(lines, done)):
        assert earliest <= start.get(place, earliest)


@pytest.mark.parametrize("seed", range(4))
def test_a_list_read_back_from_a_file_is_the_one_that_was_written(seed):
    plan, case = random_plan("window", seed)
    predicted = simulate(plan.schedule, plan.trace, case.machine)
    written = json.loads(json.dumps(list_to_json(plan, predicted)))
    again = list_from_json(written)
    assert again.lines == listing(plan.trace, plan.schedule)
    assert again.predicted == {e.index: (e.start_us, e.end_us) for e in predicted.events}
    call = plan.trace.calls[0]
    names = [variable.name for variable in plan.trace.variables]
    assert again.uses[call.name] == (
        tuple(names[v] for v in call.ins),
        tuple(names[v] for v in call.outs),
    )


@pytest.mark.parametrize("wrong", ["stream", "why", "later", "bytes", "predicted"])
def test_a_list_that_cannot_be_is_refused(wrong):
    trace = worked_trace()
    plan = Plan(trace, (), worked_schedule(trace), 0.0, 0, 0)
    data = list_to_json(plan, simulate(plan.schedule, trace, worked_machine()))
    row = data["lines"][1]
    match wrong:
        case "stream":
            row[2] = "X"
        case "why":
            row[6][0][1] = "fun"
        case "later":
            row[6][0][0] = 7
        case "bytes":
            row[3] = -1
        case "predicted":
            data["predicted"][0][0] = 1000
    with pytest.raises(ValueError):
        list_from_json(data)


@pytest.mark.parametrize("seed", range(6))
def test_addresses_of_what_lives_at_one_time_never_overlap(seed):
    plan, case = random_plan("belady", seed)
    timeline = simulate(plan.schedule, plan.trace, case.machine)
    found = holdings(plan.trace, plan.schedule, timeline)
    place = offsets(found, timeline.makespan_us)
    assert min(place, default=0) == 0
    for time_us in {one.from_us for one in found}:
        live = sorted(
            (place[k], place[k] + one.size_bytes)
            for k, one in enumerate(found)
            if one.from_us <= time_us < one.until_us
        )
        assert all(end <= start for (_, end), (start, _) in pairwise(live))


def test_lines_of_two_lists_meet_by_text_and_by_how_often_it_came():
    ours, theirs = ["run a", "in x", "run a", "out y"], ["in x", "run a", "run b", "run a"]
    assert first_difference_at(ours, theirs) == 0
    assert mates(ours, theirs) == [1, 0, 3, NO_MATE]
    assert mates(theirs, ours) == [1, 0, NO_MATE, 2]
    assert only_in(ours, theirs) == Counter(["out y"])
    assert first_difference_at(ours, ours) is None
    assert first_difference_at(ours, ours[:2]) == 2
