"""Lists are written, proved, timed, read and refused as they were: legal and nearly legal ones.

From random decisions come lists, which are walked, timed, placed on the host, described, and
written as text and as a file; then an instruction, a number of the file or a letter of the text is
another one, and what is said of it is known: the rule and the instruction, the place in the file,
the line and the column. Decisions that make no sense are refused for the reason that they were.
`support/known.py` says why and how to write the tables anew.
"""

from __future__ import annotations

import copy
import json
import random
from collections import Counter
from dataclasses import astuple, replace

import pytest
from support import known
from support.known_numbers import numbers_in
from support.known_steps import DUPLEX, MACHINE
from support.mutate import mutants
from support.random_decisions import random_decisions

from ooctrain.errors import ConfigError, Infeasible, ListSyntaxError, PlanMismatch, ScheduleError
from ooctrain.sched import drawn_list, ledger, rules, spans, timeline
from ooctrain.sched.budget import (
    input_bytes,
    lasting_bytes,
    live_bytes,
    region,
    resolve_budget,
    resolve_host_budget,
    trace_minimum_bytes,
    trace_peak_bytes,
    with_region,
)
from ooctrain.sched.host import host_slots, slab_excess
from ooctrain.sched.list_words import ListGuide
from ooctrain.sched.planning.decisions import (
    Decisions,
    Gap,
    lives,
    movable_gaps,
    possible_gaps,
    runs_once,
)
from ooctrain.sched.planning.host_gaps import (
    has_host_space,
    is_host_tight,
    is_short_of_host,
    without_host,
)
from ooctrain.sched.planning.lower import complement, cut, lower_within, plan_of, tabulate
from ooctrain.sched.planning.question import Question
from ooctrain.sched.planning.rematerialise import (
    droppable,
    rematerialise,
    segments,
)
from ooctrain.sched.planning.residency import Liveness, alive_bytes, always_resident
from ooctrain.sched.planning.swap import piece_bytes, swap_gaps
from ooctrain.sched.schedule import (
    BYTES,
    End,
    Fence,
    Free,
    Granule,
    Plan,
    Run,
    Schedule,
    SwapIn,
    SwapOut,
)
from ooctrain.sched.simulate import simulate
from ooctrain.sched.verify import check_names, verify
from ooctrain.step.trace import Trace
from ooctrain.testing.random_traces import random_machine, random_trace

#: Their mistakes are this file's to notice, too.
JUDGED = drawn_list, ledger, rules, spans, timeline
SEEDS = range(8)
GRANULES = (BYTES, Granule(8), Granule(16, ranges=False))


def asked(seed: int) -> tuple[Question, Decisions]:
    """A random step, and decisions for it."""
    rng = random.Random(f"list/{seed}")
    step = random_trace(rng, calls=rng.randint(5, 12), max_bytes=120, duration_ns=6000)
    outs = [v for call in step.calls for v in call.outs if step.variables[v].nbytes]
    step = Trace(step.variables, step.calls, step.carries, {"end": outs[-1]})
    machines = MACHINE, DUPLEX, random_machine(rng), random_machine(rng, interference=True)
    granule = GRANULES[seed % 3]
    most = trace_peak_bytes(step, granule)
    host = None if seed % 2 else most // 2
    decisions = random_decisions(step, rng, granule)
    return Question(step, most, machines[seed % 4], granule, host), decisions


def planned(seed: int) -> Plan:
    question, decisions = asked(seed)
    while True:
        try:
            return plan_of("known", question, decisions)
        except Infeasible as error:
            if error.minimum_bytes and error.needs == "device":
                question = replace(question, budget_bytes=error.minimum_bytes)
            else:
                question = replace(question, host_budget_bytes=None)


# From decisions to a list


@pytest.mark.parametrize("seed", SEEDS)
def test_decisions_become_the_lists_that_they_did(seed):
    question, decisions = asked(seed)
    step, rows = question.trace, []
    least, most = trace_minimum_bytes(step, question.granule), question.budget_bytes
    for share in (0.0, 0.5, 1.0, 2.0):
        budget = int(least + (most - least) * share)
        for host in (question.host_budget_bytes, None, 0):
            try:
                found = lower_within(
                    decisions, replace(question, budget_bytes=budget, host_budget_bytes=host)
                )
            except Infeasible as error:
                rows.append((share, host, error.minimum_bytes, error.witness_call, error.needs))
                continue
            written = known.digest(found.start_ns), known.digest(found.schedule.to_json())
            rows.append((share, host, len(found.schedule), found.makespan_ns, *written))
    table = tabulate(decisions, step, question.machine, question.granule)
    rows.append((known.digest(table.resident_bytes), known.digest(cut(decisions.gaps, step))))
    known.check_rows("lists", f"lowered {seed}", rows)


@pytest.mark.parametrize("seed", SEEDS)
def test_wrong_decisions_are_refused_as_they_were(seed):
    question, decisions = asked(seed)
    rng, said = random.Random(seed), Counter()
    rows = []
    for _ in range(60):
        gaps = list(decisions.gaps) or possible_gaps(question.trace, decisions.runs)[:1]
        if not gaps:
            break
        place = rng.randrange(len(gaps))
        which = rng.choice(("var", "lo", "hi", "after", "before", "twice", "runs"))
        runs = decisions.runs
        if which == "twice":
            gaps.append(gaps[place])
        elif which == "runs":
            runs = runs[:-1] if rng.random() < 0.5 else runs[::-1]
        else:
            change = rng.choice((-8, -1, 1, 8, 100))
            number = (getattr(gaps[place], which) + change) % (
                len(question.trace.variables) if which == "var" else 10**6
            )
            gaps[place] = replace(gaps[place], **{which: number})
        try:
            found = lower_within(Decisions(runs, tuple(gaps)), question)
        except (ConfigError, Infeasible) as error:
            rows.append((which, error.code, numbers_in([error.numbers]), error.where))
        except Exception as error:
            rows.append((which, type(error).__name__))
        else:
            rows.append((which, found.makespan_ns))
        said[which, rows[-1][1] if isinstance(rows[-1][1], str) else "fits"] += 1
    known.check_rows("lists", f"refused {seed}", [
        (len(rows), known.digest(rows)), *((*key, n) for key, n in sorted(said.items())),
    ])  # fmt: skip


def test_gaps_at_the_end_and_in_parts_are_refused():
    step = random_trace(random.Random(8), calls=6, max_bytes=40)
    runs = runs_once(step)
    persistent = [g for g in possible_gaps(step, runs) if step.variables[g.var].persistent]
    ends = [gap for gap in persistent if gap.before == len(runs)]
    first = [gap for gap in persistent if gap.after < 0]
    assert first
    question = Question(step, 10**6, MACHINE)
    for gap in first:
        assert lower_within(Decisions(runs, (gap,)), question).schedule.instructions
    for life in lives(step, runs):
        if step.variables[life.var].persistent and len(life.uses) > 1:
            last = Gap(life.var, 0, step.variables[life.var].nbytes, life.uses[-2], life.uses[-1])
            if last.before == len(runs) and last.hi:
                ends.append(last)
    assert ends
    for gap in ends:
        with pytest.raises(ConfigError) as caught:
            lower_within(Decisions(runs, (gap,)), question)
        assert caught.value.code == "OOC-109"
    half = replace(first[0], hi=max(1, first[0].hi // 2))
    with pytest.raises(ConfigError):
        lower_within(Decisions(runs, (half,)), replace(question, granule=Granule(1, ranges=False)))


# What is known of a list


@pytest.mark.parametrize("seed", SEEDS)
def test_a_list_is_walked_timed_and_placed_as_it_was(seed):
    plan = planned(seed)
    step, schedule = plan.trace, plan.schedule
    issued = ledger.walk(step, schedule)
    rows: list[known.Row] = [
        (len(issued), *ledger.peaks(issued, schedule), *ledger.start_bytes(schedule),
         known.digest([astuple(row) for row in issued])),
    ]  # fmt: skip
    for machine in (MACHINE, DUPLEX, random_machine(random.Random(seed), interference=True)):
        found = simulate(schedule, step, machine)
        rows.append((
            found.makespan_us, known.digest(found.to_json()), timeline.hidden_us(found),
            *(found.busy_us(stream) for stream in "CDH"),
            known.digest(sorted(timeline.instruction_times_us(found).items())),
        ))  # fmt: skip
    for align in (1, 64):
        slots = host_slots(step, schedule, align_bytes=align)
        rows.append((align, slots.extent_bytes, known.digest(slots.start_offsets),
                     known.digest(sorted(slots.offsets.items())),
                     *slab_excess(plan, 100, align)))  # fmt: skip
    guide = ListGuide(step, schedule)
    lines = [line for row in issued for line in (guide.line(row), *guide.words(row),
             *guide.words(row, briefly=True))]  # fmt: skip
    rows.append((len(lines), known.digest([numbers_in([line]) for line in lines])))
    known.check_rows("lists", f"walked {seed}", rows)
    verify(plan, step, plan.peak_bytes, asked(seed)[0].machine)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_changed_list_breaks_the_rule_that_it_did(seed):
    plan = planned(seed)
    rng, rows, broken = random.Random(seed), [], Counter()
    step, schedule = plan.trace, plan.schedule
    changed = list(mutants(step, schedule, rng, 70))
    changed += [(f"number {n}", other) for n, other in enumerate(with_other_numbers(schedule, rng))]
    for what, other in changed:
        for budget in (plan.peak_bytes, plan.peak_bytes - 1):
            try:
                verify(other, step, budget, host_budget_bytes=plan.host_peak_bytes)
            except ScheduleError as error:
                rows.append((what, error.rule, error.index, numbers_in([error.numbers])))
                broken[error.rule] += 1
            else:
                rows.append((what, "legal"))
                broken["legal"] += 1
        try:
            check_names(other, step)
        except ScheduleError as error:
            rows.append((what, error.rule, error.index))
    known.check_rows("lists", f"broken {seed}", [
        (len(rows), known.digest(rows)), *sorted(broken.items()),
    ])  # fmt: skip


def with_other_numbers(schedule: Schedule, rng: random.Random) -> list[Schedule]:
    """Lists of which one number is another, and with an instruction more."""
    made = []
    items = schedule.instructions
    for _ in range(40):
        place = rng.randrange(len(items))
        item = items[place]
        match item:
            case SwapOut(var, lo, hi) | SwapIn(var, lo, hi) | Free(var, lo, hi):
                other = rng.choice((
                    type(item)(var + rng.choice((-1, 1, 99)), lo, hi), type(item)(var, lo + 1, hi),
                    type(item)(var, lo, hi + 1), type(item)(var, hi, lo), type(item)(var, -1, hi),
                ))  # fmt: skip
            case Run(call, keep):
                other = rng.choice((
                    Run(call + rng.choice((-1, 1, 99)), keep), Run(call, (0,)), Run(call, ()),
                    Run(call, (*(keep or ()), 99)),
                ))  # fmt: skip
            case _:
                other = End(rng.randrange(9))
        insert = rng.choice((other, Fence(), End(0), item))
        more = (*items[:place], insert, *items[place + (insert is other) :])
        made.append(replace(schedule, instructions=more))
    for side in ("start_device", "start_host"):
        rows = list(getattr(schedule, side))
        odd = (99, 0, 1), (0, 0, 10**6), (0, 2, 1)
        changes = [*([*rows, one] for one in odd), [*rows, *rows[:1]], rows[1:]]
        made += [replace(schedule, **{side: tuple(change)}) for change in changes]
    made.append(replace(schedule, granule=Granule(3)))
    return made


@pytest.mark.parametrize("change", [
    {"peak_bytes": 1}, {"peak_bytes": -1}, {"host_peak_bytes": 1}, {"host_peak_bytes": -1},
    {"makespan_us": 0.01}, {"makespan_us": -0.01}, {"makespan_us": 0.0004},
])  # fmt: skip
def test_a_claim_that_is_another_breaks_a_rule(change):
    rows = []
    for seed in SEEDS:
        plan, machine = planned(seed), asked(seed)[0].machine
        other = replace(plan, **{key: getattr(plan, key) + by for key, by in change.items()})
        try:
            verify(other, plan.trace, plan.peak_bytes, machine)
        except ScheduleError as error:
            rows.append((seed, error.rule, error.index))
    known.check_rows("lists", f"claims {change}", rows)


# Texts and files


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_text_is_read_and_refused_as_it_was(seed):
    plan = planned(seed)
    rng, rows = random.Random(seed), []
    for trace in (plan.trace, None):
        text = plan.schedule.text(trace)
        assert Schedule.parse(text, trace) == plan.schedule
        for _ in range(150):
            at = rng.randrange(len(text))
            letter = rng.choice("0179KMG[]:, \n#axf-.\"'")
            other = rng.choice((
                text[:at] + text[at + 1 :], text[:at] + letter + text[at:],
                text[:at] + letter + text[at + 1 :], text[:at],
            ))  # fmt: skip
            try:
                found = Schedule.parse(other, trace)
            except ListSyntaxError as error:
                rows.append((error.line, error.column, error.code))
            else:
                rows.append((known.digest(found.to_json()), plan.schedule.diff(found) != ""))
    refused = sum(row[-1] is not True and row[-1] is not False for row in rows)
    known.check_rows("lists", f"texts {seed}", [(len(rows), refused, known.digest(rows))])


@pytest.mark.parametrize(("number", "fine"), [
    ("9" * 18, True), (str(2**63 - 1), True), (str(2**63), False), ("9" * 30, False),
    ("9" * 5000, False), ("9G", True), ("99999999999G", False), ("-1", True),
])  # fmt: skip
def test_a_number_of_a_text_has_63_bits(number, fine):
    text = planned(1).schedule.text(None)
    at = text.index("[0:")
    end = text.index("]", at)
    other = f"{text[: at + 3]}{number}{text[end:]}"
    if fine:
        Schedule.parse(other, None)
        return
    with pytest.raises(ListSyntaxError) as caught:
        Schedule.parse(other, None)
    assert caught.value.line == 1 + text[:at].count("\n")


def leaves(data, path=()):
    """The paths of all parts of plain data."""
    yield path
    if isinstance(data, dict | list):
        for key, value in data.items() if isinstance(data, dict) else enumerate(data):
            yield from leaves(value, (*path, key))


@pytest.mark.parametrize("seed", [0, 1, 2, 3])
def test_a_plan_file_is_read_and_refused_as_it_was(seed):
    plan = planned(seed)
    data = json.loads(json.dumps(plan.to_json()))
    assert Plan.from_json(data, plan.trace).schedule == plan.schedule
    rng, rows = random.Random(seed), []
    paths = [path for path in leaves(data) if path]
    for _ in range(160):
        path = rng.choice(paths)
        other = copy.deepcopy(data)
        inside = other
        for key in path[:-1]:
            inside = inside[key]
        if rng.random() < 0.25:
            del inside[path[-1]]
            value = "gone"
        else:
            value = rng.choice((None, -1, 10**6, 2**70, 1.5, "x", [], {}, True, float("inf"), 0))
            inside[path[-1]] = value
        try:
            found = Plan.from_json(other, plan.trace, "a file")
        except (ConfigError, PlanMismatch) as error:
            rows.append((path, value, error.code, numbers_in([error.what, error.where])))
        else:
            rows.append((path, value, known.digest(found.to_json())))
    refused = sum(len(row) == 4 for row in rows)
    known.check_rows("lists", f"files {seed}", [(len(rows), refused, known.digest(rows))])


@pytest.mark.parametrize(("place", "value"), [
    (("schedule", "instructions"), ["run", 0, [0, 99]]),
    (("schedule", "instructions"), ["run", 99, None]),
    (("schedule", "instructions"), ["in", 99, 0, 1]), (("schedule", "start_host"), [99, 0, 1]),
    (("schedule", "start_device"), [99, 0, 1]), (("schedule", "start_device"), [0, 0, 10**9]),
])  # fmt: skip
def test_a_file_that_names_what_the_step_has_not_is_refused_at_its_place(place, value):
    plan = planned(1)
    data = json.loads(json.dumps(plan.to_json()))
    rows = data[place[0]][place[1]]
    number = len(rows)
    rows.append(value)
    with pytest.raises(ConfigError) as caught:
        Plan.from_json(data, plan.trace, "a file")
    assert caught.value.code == "OOC-104"
    assert f"[{number}][" in f"{caught.value.where} {caught.value.what} {caught.value.numbers}"


# What planners look at


@pytest.mark.parametrize("seed", SEEDS)
def test_what_planners_look_at_is_what_it_was(seed):
    question, decisions = asked(seed)
    step, granule, machine = question.trace, question.granule, question.machine
    runs, rng = decisions.runs, random.Random(seed)
    values = sorted(droppable(step))
    some, few = values[::2], values[::4]
    liveness = Liveness(step, granule)
    rows: list[known.Row] = [
        (len(values), known.digest(rematerialise(step, some)),
         known.digest(rematerialise(step, some, again=few)),
         known.digest(rematerialise(step, some, unread=few, held=values[1::2]))),
        (known.digest(lives(step, runs)), known.digest(possible_gaps(step, runs)),
         known.digest(movable_gaps(step, runs)), known.digest(swap_gaps(step))),
        (*liveness.least_budget(runs), *liveness.least_budget(runs, decisions.gaps),
         known.digest(liveness.resident_bytes(runs)), known.digest(liveness.claim_bytes)),
        (alive_bytes(step), known.digest([sorted(part) if not isinstance(part, dict) else
                                          sorted(part.items()) for part in always_resident(step)])),
        (known.digest(sorted(segments(step, values[:2]).items())),),
    ]  # fmt: skip
    for least in (64, 1000):
        cutted = [piece for gap in swap_gaps(step) for piece in gap.in_pieces(least, granule)]
        rows.append((least, len(cutted), known.digest(cutted)))
    rows.append((piece_bytes(10**6, machine), machine.worth_its_latency_bytes))
    bounds = sorted({rng.randrange(90) for _ in range(6)})
    ranges = list(zip(bounds[::2], bounds[1::2], strict=False))
    rows.append((known.digest(list(complement(ranges, 90))), *map(str, ranges)))
    for host in (0, input_bytes(step) - 1, input_bytes(step), input_bytes(step) + 1, 10**6, None):
        with_host = replace(question, host_budget_bytes=host)
        rows.append((host, with_host.host_left_bytes, is_short_of_host(with_host),
                     has_host_space(with_host), is_host_tight(with_host),
                     without_host(with_host).host_budget_bytes))  # fmt: skip
    known.check_rows("lists", f"looked at {seed}", rows)


@pytest.mark.parametrize("seed", SEEDS)
def test_memory_of_a_step_is_counted_as_it_was(seed):
    question, _ = asked(seed)
    step, rows = question.trace, []
    for granule in GRANULES:
        found = region(step)
        rows.append((
            trace_minimum_bytes(step, granule), trace_peak_bytes(step, granule),
            known.digest(live_bytes(step, granule)), known.digest(astuple(found)),
            with_region(granule, step),
            *(resolve_budget(step, budget, granule) for budget in ("40%", "100%", 12345, "2KiB")),
        ))  # fmt: skip
    machine = replace(MACHINE, host_bytes=10**7)
    rows.append(
        (
            input_bytes(step),
            lasting_bytes(step),
            *(resolve_host_budget(step, budget, machine) for budget in ("50%", 999, None)),
        )
    )
    known.check_rows("lists", f"counted {seed}", rows)
