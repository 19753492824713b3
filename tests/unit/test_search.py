"""The compiled search says what the readable modules say."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.strategies import SEEDS, machines, traces

import ooctrain as oc
from ooctrain.sched.budget import input_bytes, trace_minimum_bytes, trace_peak_bytes
from ooctrain.sched.planners.belady import offload
from ooctrain.sched.planning.decisions import Decisions, Gap
from ooctrain.sched.planning.effort import Deadline
from ooctrain.sched.planning.lower import lower_timed, tabulate
from ooctrain.sched.planning.question import Question
from ooctrain.sched.planning.rematerialise import droppable_uses, rematerialise_after
from ooctrain.sched.schedule import BYTES, Granule, Run, SwapOut
from ooctrain.sched.search import anneal
from ooctrain.sched.search import anneal as evict_module
from ooctrain.sched.search import choice as choices
from ooctrain.sched.search import play as engine
from ooctrain.sched.search.anneal import FATE, evict, move
from ooctrain.sched.search.choice import Choice, Search
from ooctrain.sched.search.expand import (
    DROP,
    DROP_UNREAD,
    HELD,
    KEEP,
    Wishes,
    expand,
    expand_wishes,
)
from ooctrain.sched.search.play import Link, Pieces, SearchLimits, cut, host_margin, link_of, play
from ooctrain.sched.search.tables import tables_of
from ooctrain.sched.simulate import simulate
from ooctrain.step.builder import TraceBuilder
from ooctrain.testing.random_traces import random_machine, random_trace


@st.composite
def chains(draw):
    """Chains of paper 002 with sizes in whole granules."""
    stages = draw(st.integers(1, 8))
    sizes = st.lists(st.integers(0, 20).map(lambda n: 4 * n), min_size=stages + 1,
                     max_size=stages + 1)  # fmt: skip
    times = st.lists(st.integers(1, 9), min_size=stages, max_size=stages)
    extras = st.lists(st.integers(0, 8), min_size=stages, max_size=stages)
    return oc.chain(draw(sizes), draw(sizes), draw(times), draw(times), draw(extras), draw(extras))


def random_choice(trace, seed):
    """A fate for each time after a use: some of those after which a value may die, and some values
    held after the last one.
    """
    rng = random.Random(seed)
    fates = {use: rng.choice([KEEP, DROP, DROP_UNREAD]) for use in droppable_uses(trace)}
    held = {v: uses[-1] for v, uses in enumerate(trace.uses) if uses and rng.random() < 0.3}
    return fates | dict.fromkeys(held.items(), HELD)


def slots(trace):
    """{(variable, call): the slot of the time after it}."""
    at = tables_of(trace, oc.machine("v100-pcie"), BYTES).slot_at
    pairs = ((v, uses) for v, uses in enumerate(trace.uses))
    return {(v, use): int(at[v]) + place for v, uses in pairs for place, use in enumerate(uses)}


def by_slot(trace, fates):
    places = slots(trace)
    fate = np.zeros(sum(max(1, len(uses)) for uses in trace.uses), np.int8)
    for use, chosen in fates.items():
        fate[places[use]] = chosen
    return fate


def readable_runs(trace, fates):
    last = {(v, uses[-1]) for v, uses in enumerate(trace.uses) if uses}
    return rematerialise_after(
        trace, [use for use, fate in fates.items() if fate != KEEP and use not in last],
        unread=[use for use, fate in fates.items() if fate == DROP_UNREAD],
        held=[use[0] for use, fate in fates.items() if use in last and fate == HELD],
    )  # fmt: skip


@settings(max_examples=80)
@given(traces(), machines(), SEEDS, st.sampled_from([BYTES, Granule(4), Granule(16)]))
def test_expanding_gives_the_runs_and_the_memory_of_the_readable_modules(
    trace, machine, seed, granule
):
    check_expanded(trace, machine, seed, granule)


def test_the_storage_of_the_first_variable_may_be_taken_over():
    builder = TraceBuilder()
    first, second, third = (builder.variable(name, (4,), "uint8") for name in "abc")
    builder.call("f", None, (), (first,), duration_ns=1000)
    builder.call("g", None, (first,), (second,), reuse={second: first}, duration_ns=1000)
    builder.call("h", None, (second,), (third,), duration_ns=1000)
    check_expanded(builder.build(), oc.machine("v100-pcie"), 0, BYTES)


def test_gaps_are_in_order_whatever_the_order_of_inputs():
    """By their ends, then their beginnings; the call before has closed a gap that began earlier."""
    builder = TraceBuilder()
    a, b, c, d, e = (builder.variable(name, (4,), "uint8") for name in "abcde")
    for out in (a, b, c):
        builder.call(f"make {out}", None, (), (out,), duration_ns=1000)
    builder.call("read a", None, (a,), (d,), duration_ns=1000)
    builder.call("read the others", None, (c, b), (e,), duration_ns=1000)
    trace, machine = builder.build(), oc.machine("v100-pcie")
    step = expand(tables_of(trace, machine, BYTES), by_slot(trace, {}))
    found = zip(step.gap_before, step.gap_after, step.gap_var, strict=True)
    assert [tuple(map(int, gap)) for gap in found] == [(3, 0, a), (4, 1, b), (4, 2, c)]


def test_an_input_that_two_calls_in_a_row_read_waits_before_the_first_alone():
    builder = TraceBuilder()
    x = builder.variable("x", (4,), "uint8", "input")
    a, b = (builder.variable(name, (4,), "uint8") for name in "ab")
    builder.call("f", None, (x,), (a,), duration_ns=1000)
    builder.call("g", None, (x, a), (b,), duration_ns=1000)
    trace = builder.build()
    step = expand(tables_of(trace, oc.machine("v100-pcie"), BYTES), by_slot(trace, {}))
    found = zip(step.gap_before, step.gap_after, step.gap_var, strict=True)
    assert [tuple(map(int, gap)) for gap in found] == [(0, -1, x)]


def without_inputs():
    """Nothing is there before the step."""
    builder = TraceBuilder()
    first, second, third = (builder.variable(name, (4,), "uint8") for name in "abc")
    builder.call("f", None, (), (first,), duration_ns=1000)
    builder.call("g", None, (first,), (second,), duration_ns=1000)
    builder.call("h", None, (first, second), (third,), duration_ns=1000)
    return builder.build()


@settings(max_examples=30)
@given(traces())
@example(without_inputs())
def test_what_is_wanted_is_there_until_another_takes_its_storage(trace):
    """From the call on that makes it; nothing runs again."""
    values = [v for v, made in enumerate(trace.producer) if made is not None]
    calls, columns = len(trace.calls), len(values)
    wishes = Wishes(
        np.array(values, np.int64), np.ones((calls + 1, columns), np.int8),
        np.zeros((calls + 1, columns), np.int8), np.zeros((calls, columns), np.int8),
        np.zeros(calls, np.int64),
    )  # fmt: skip
    step = expand_wishes(tables_of(trace, oc.machine("v100-pcie"), BYTES), wishes)
    assert step.runs.tolist() == list(range(calls))
    for column, value in enumerate(values):
        first, last = trace.producer[value] + 1, trace.taker.get(value, calls)
        there = [first <= call <= last for call in range(calls + 1)]
        assert wishes.there[:, column].tolist() == there


def check_expanded(trace, machine, seed, granule):
    choice = random_choice(trace, seed)
    step = expand(tables_of(trace, machine, granule), by_slot(trace, choice))
    order = list(zip(step.gap_before, step.gap_after, step.gap_var, strict=True))
    assert order == sorted(order)
    runs = readable_runs(trace, choice)
    if not step.ok:
        # Some value had to be kept that the choice drops, or the step got too long.
        assert any(choice.values())
        return
    assert step.runs.tolist() == [run.call for run in runs]
    table = tabulate(Decisions(runs), trace, machine, granule)
    nobody = np.zeros_like(by_slot(trace, choice))
    _, lack = evict(step, tables_of(trace, machine, granule).granted, nobody, 1 << 60, 0)
    assert lack <= 0
    assert step.claim.tolist() == table.claim_bytes
    assert step.end.tolist() == table.end_bytes
    assert step.start == table.start_bytes
    dead = [sum(granted for _, _, granted in table.dead.get(p, ())) for p in range(len(runs))]
    assert step.dead.tolist()[: len(runs)] == dead
    away = inputs_away(step, tables_of(trace, machine, granule))
    assert (step.resident - away).tolist() == table.resident_bytes


def inputs_away(step, tables):
    away = np.zeros(step.runs.size, np.int64)
    for var, after, before in zip(step.gap_var, step.gap_after, step.gap_before, strict=True):
        if after < 0:
            away[:before] += tables.granted[var]
    return away


@settings(max_examples=20)
@given(chains(), st.booleans().flatmap(machines), SEEDS, st.sampled_from([BYTES, Granule(4)]),
       st.floats(0, 1), st.sampled_from([4, 0]))  # fmt: skip
def test_the_compiled_engine_keeps_the_time_of_the_readable_one(
    trace, machine, seed, granule, share, granules
):
    found, lowered = both_engines(trace, machine, seed, granule, share, granules)
    if lowered is None:
        return
    # Transfers round the last granule of a value up here, to the byte there.
    assert found == pytest.approx(lowered.makespan_ns, rel=0.02)


@settings(max_examples=40)
@given(SEEDS)
def test_what_the_search_reckons_is_what_the_simulator_finds(seed):
    compared = search_list_and_simulator_agree(seed)
    assert compared in (True, False)


def search_list_and_simulator_agree(seed):
    """Whether the three were compared: copies slow calls down for all of them, and issue takes
    time.
    """
    rng = random.Random(seed)
    trace = random_trace(rng, calls=rng.randint(1, 12), max_bytes=rng.choice([4, 24, 200]))
    machine = random_machine(rng, interference=rng.random() < 0.7)
    issue, copy_issue = rng.choice([(0, 0), (0.3, 0), (1, 2), (0, 5)])
    machine = replace(machine, issue_us=issue, copy_issue_us=copy_issue)
    share, granules = rng.random(), rng.choice([4, 0])
    found, lowered = both_engines(trace, machine, seed, BYTES, share, granules)
    if lowered is None:
        return False
    timeline = simulate(lowered.schedule, trace, machine)
    assert lowered.makespan_ns == round(timeline.makespan_us * 1000)
    alone = moves_alone(lowered.schedule, trace)
    assert found == lowered.makespan_ns or not alone
    return alone


def test_most_lists_are_compared():
    assert sum(map(search_list_and_simulator_agree, range(60))) > 15


def moves_alone(schedule, trace):
    """Whether no two values share a host slot: a parameter and its update, or a value that is
    copied out in two of its lives. That is left out of what is compiled.
    """
    copied = [i.var for i in schedule if isinstance(i, SwapOut)]
    again = {i.call for i in schedule if isinstance(i, Run) and i.keep is not None}
    runs = Counter(i.call for i in schedule if isinstance(i, Run))
    shared = {v for pair in trace.carries.items() for v in pair}
    shared |= {v for call in trace.calls if runs[call.id] > 1 or call.id in again
               for v in call.outs}  # fmt: skip
    return not shared.intersection(copied)


def both_engines(trace, machine, seed, granule, share, granules):
    """(makespan of the compiled engine in ns, what the readable one writes) of a random choice."""
    choice = random_choice(trace, seed)
    tables = tables_of(trace, machine, granule)
    step = expand(tables, by_slot(trace, choice))
    assert step.ok or any(choice.values())
    if not step.ok:
        return None, None
    most = int((step.resident - inputs_away(step, tables)).max())
    stays = np.array([seed >> slot & 1 for slot in range(tables.slot_at[-1])], np.int8)
    least = max(step.start, int(evict(step, tables.granted, stays, 0, 0)[1]))
    budget_bytes = least + round(share * max(0, most - least))
    chunk_bytes = granule.size_bytes * granules  # 0: whole gaps
    evicted, lack = evict(step, tables.granted, stays, budget_bytes, chunk_bytes)
    assert lack <= 0
    limits = SearchLimits(budget_bytes, chunk_bytes, link_of(machine))
    found = play(tables, step, evicted, limits)
    decisions = Decisions(
        readable_runs(trace, choice), tuple(gaps(trace, step, evicted, chunk_bytes))
    )
    return found, lower_timed(decisions, trace, budget_bytes, machine, granule)


def gaps(trace, step, evicted, chunk_bytes):
    for var, after, before, size in zip(
        step.gap_var.tolist(), step.gap_after.tolist(), step.gap_before.tolist(), evicted.tolist(),
        strict=True,
    ):  # fmt: skip
        top = min(size, trace.variables[var].nbytes)
        if after >= 0:
            chunk = chunk_bytes or max(1, top)
            yield from (
                Gap(var, lo, min(lo + chunk, top), after, before) for lo in range(0, top, chunk)
            )


@settings(max_examples=60)
@given(traces(), machines(), SEEDS, st.floats(0, 1))
def test_the_compiled_rule_of_belady_makes_as_much_room_as_the_readable_one(
    trace, machine, seed, share
):
    """With values that stay, too: these leave only when all others have left."""
    rng = random.Random(seed)
    tables, choice = tables_of(trace, machine, BYTES), random_choice(trace, seed)
    step = expand(tables, by_slot(trace, choice))
    if not step.ok:
        return
    stays = np.array([rng.random() < 0.4 for _ in range(tables.slot_at[-1])], np.int8)
    most = int((step.resident - inputs_away(step, tables)).max())
    least = max(step.start, int(evict(step, tables.granted, stays, 0, 0)[1]))
    budget_bytes = least + round(share * max(0, most - least))
    evicted, lack = evict(step, tables.granted, stays, budget_bytes, 1)
    runs = readable_runs(trace, choice)
    staying = frozenset(use for use, slot in slots(trace).items() if stays[slot])
    readable = offload("test", Question(trace, budget_bytes, machine), runs, staying)
    moves = step.gap_after >= 0
    assert lack <= 0
    # Where two gaps end together either may go first, so that only sums are the same.
    assert evicted[moves].sum() == sum(gap.hi - gap.lo for gap in readable.gaps)
    resident = step.resident.copy()
    for after, before, size in zip(step.gap_after, step.gap_before, evicted, strict=True):
        resident[after + 1 : before] -= size
    assert resident.max() <= budget_bytes


@settings(max_examples=30)
@given(chains(), machines(), SEEDS, st.integers(0, 12))
def test_the_host_has_room_for_all_copies_or_there_is_none_to_tell_of(trace, machine, seed, chunk):
    """A copy lies there from the run after which it leaves to the last run before which it, or a
    part that is copied once for several gaps, comes back.
    """
    step = expand(tables_of(trace, machine, BYTES), by_slot(trace, random_choice(trace, seed)))
    if not step.ok:
        return
    evicted = np.array([seed >> gap & 7 for gap in range(step.gap_var.size)], np.int64)
    pieces, used = cut(step, evicted, chunk), np.zeros(step.runs.size + 1, np.int64)
    rows = list(zip(*(column.tolist() for column in pieces), strict=True))
    for place, (size, _, after, _, copy) in enumerate(rows):
        if copy == place and after >= 0:
            last = max(before for *_, before, other in rows if other == place)
            used[after + 1 : last + 1] += size
    for host_bytes in {0, int(used.max()) - 1, int(used.max()), int(used.max()) + 1}:
        link = Link(False, 0, 1.0, 1.0)
        limits = SearchLimits(1 << 60, chunk, link, host_bytes)
        room = host_margin(step, pieces, limits)
        fits = rows and host_bytes >= 0 and used.max() <= host_bytes
        assert room.tolist() == ((host_bytes - used).tolist() if fits else [])


def interpreted(monkeypatch, module):
    """Has a module's functions run as Python, so that a test can call those that are inner."""
    for name, function in list(vars(module).items()):
        monkeypatch.setattr(module, name, getattr(function, "py_func", function))


def test_what_the_host_takes_of_a_gap_adds_up_and_stays_until_its_end(monkeypatch):
    """Four bytes are on the host until slot 2; three of the gap from 4 to 6 have gone, five want
    to, of which one is among the four."""
    interpreted(monkeypatch, evict_module)
    step = SimpleNamespace(gap_var=[0], gap_after=[3], gap_before=[6])
    limits = SimpleNamespace(room=np.full(8, 9), free=[False], grain_bytes=1, chunk_bytes=0)
    hosting = SimpleNamespace(
        evicted=[3], bytes_before=[4], until_before=[2], bytes=np.array([4]), until=np.array([2])
    )
    assert evict_module._hosted(step, 0, 5, limits, hosting) == 5
    assert limits.room.tolist() == [9, 9, 9, 8, 4, 4, 4, 9]
    assert (hosting.bytes[0], hosting.until[0]) == (8, 6)


@pytest.mark.parametrize(("second", "leaves"), [("may leave", 1), ("stays", 2), ("is copied", 2)])
def test_where_the_host_is_short_the_first_that_fits_and_may_leave_does(
    monkeypatch, second, leaves
):
    """Of three pieces, of which the first is larger than the host's room; two fit."""
    interpreted(monkeypatch, engine)
    written, after, before = (np.full(3, run) for run in (0, 1, 3))
    pieces = Pieces(np.array([9, 4, 4]), written, after, before, np.arange(3))
    stays, copied = (np.array([False, second == why, False]) for why in ("stays", "is copied"))
    room = np.full(4, 8)
    assert engine.next_to_leave(pieces, np.arange(3), 0, 1, copied, stays, room) == leaves
    assert room.tolist() == [8, 4, 8, 8]


@given(traces(), SEEDS)
@settings(max_examples=20)
def test_a_choice_is_the_same_when_it_comes_back_from_the_search(trace, seed):
    rng = random.Random(seed)
    search = Search(Question(trace, 1 << 40, random_machine(rng)))
    uses = [(var, use) for var, uses in enumerate(trace.uses) for use in uses]
    dropped = [use for use in droppable_uses(trace) if rng.random() < 0.5]
    last = {(var, trace.uses[var][-1]) for var, _ in uses} - set(dropped)
    choice = Choice(
        tuple(sorted(dropped)),
        tuple(sorted(use for use in dropped if rng.random() < 0.5)),
        tuple(sorted(var for var, _ in last if rng.random() < 0.5)),
        tuple(use for use in uses if rng.random() < 0.3),
    )
    assert search._choice(search._array(choice)) == choice


def test_a_move_concerns_one_value_its_neighbours_or_one_that_stays(monkeypatch):
    """Of what stays, slots of one value alone; and fates there are."""
    interpreted(monkeypatch, anneal)
    first, end = np.array([0, 4, 9]), np.array([4, 9, 12])
    may_drop = np.array([True] * 3 + [False] + [True] * 8)
    seen = Counter()
    for slots in (np.zeros(0, np.int64), np.arange(12)):
        unlinked = np.zeros((0, 2), np.int64)
        field = anneal.Field(first, end, slots, may_drop, first[1:], end[1:], unlinked)
        for state in range(400):
            choice = np.zeros((2, 12), np.int8)
            with np.errstate(over="ignore"):
                anneal.move(np.uint64(state * 7919), choice, field)
            moved = np.flatnonzero(choice[anneal.STAYS]).tolist()
            if moved:
                value = next(i for i in (1, 2) if first[i] <= moved[0] < end[i])
                assert moved == list(range(moved[0], moved[-1] + 1))
                assert moved[-1] < end[value]
                whole = moved == list(range(first[value], end[value]))
                assert whole or (slots.size and len(moved) == 1)
                seen["alone", bool(whole), value] += 1
            assert not choice[anneal.FATE].any() or not moved
            assert set(choice[anneal.FATE].tolist()) <= {KEEP, DROP, DROP_UNREAD, HELD}
            seen["fates", bool(choice[anneal.FATE].any())] += 1
    assert {("alone", True, 1), ("alone", False, 2), ("fates", True)} <= set(seen)


def test_a_search_that_goes_further_begins_cooler_unless_the_host_is_short(monkeypatch):
    """It begins with the best that others found, and must not leave that at once."""
    heats = []
    monkeypatch.setattr(choices, "annealing_from", lambda *_: anneal.Annealing(*[0] * 5))
    monkeypatch.setattr(choices, "anneal", lambda *given: heats.append(given[-1].heat) or given[1])
    trace = random_trace(random.Random(3), calls=8, max_bytes=24, duration_ns=20_000)
    machine = random_machine(random.Random(0))
    monkeypatch.setattr(Search, "_choice", lambda self, found: found)
    for host_bytes in (None, sum(trace.variables[v].nbytes for v in trace.initial)):
        search = Search(Question(trace, 1 << 40, machine, host_budget_bytes=host_bytes))
        for further in (False, True):
            search.improve(Choice(()), 1, seed=0, deadline=Deadline.after(None), further=further)
    first, cooler, short, as_hot = heats
    assert first == short == as_hot > cooler > 0


def moved(monkeypatch, drawn, fates=(KEEP, KEEP), move=anneal.move):
    """(limits, choice) of a move of two values of one slot, linked, where these numbers are drawn
    first, and 0 from then on."""
    interpreted(monkeypatch, anneal)
    limits, drawn = [], list(drawn)

    def draw(state, limit):
        limits.append(limit)
        return state, drawn.pop(0) if drawn else 0

    monkeypatch.setattr(anneal, "draw", draw)
    first, end = np.array([0, 1]), np.array([1, 2])
    field = anneal.Field(
        first, end, np.arange(2), np.ones(2, bool), first, end, np.array([[0, 1]])
    )  # fmt: skip
    choice = np.array([fates, (0, 0)], np.int8)
    getattr(move, "py_func", move)(np.uint64(1), choice, field)
    return limits, choice


@pytest.mark.parametrize("kind", range(12))
def test_every_third_move_is_of_what_stays(monkeypatch, kind):
    limits, choice = moved(monkeypatch, [kind])
    assert limits[0] == 12
    assert choice[anneal.STAYS].any() == (kind < 4)


@pytest.mark.parametrize(
    ("fates", "drawn", "after"),
    [((KEEP, DROP), 0, (DROP, KEEP)), ((KEEP, DROP), 3, (DROP_UNREAD, KEEP)),
     ((DROP, KEEP), 1, (KEEP, DROP)), ((DROP, KEEP), 2, (KEEP, DROP_UNREAD)),
     ((KEEP, KEEP), 0, (KEEP, DROP)), ((KEEP, KEEP), 1, (DROP, KEEP)),
     ((KEEP, KEEP), 2, (KEEP, DROP_UNREAD)), ((KEEP, KEEP), 3, (DROP_UNREAD, KEEP)),
     ((DROP, DROP), 0, (DROP, KEEP)), ((DROP, DROP), 1, (KEEP, DROP))],
)  # fmt: skip
def test_of_two_linked_values_the_kept_one_is_dropped_and_the_other_is_kept(
    monkeypatch, fates, drawn, after
):
    """Of two that are alike one changes: the second where an even number is drawn."""
    limits, choice = moved(monkeypatch, [0, drawn], fates, anneal._shift)
    assert limits == [1, 4]
    assert tuple(choice[FATE]) == after


def shifts(seed, moves=600):
    """Of some moves from a choice that keeps one value of a chain, how many keep one that it is
    computed from, or that is computed from it, in its place.
    """
    chain = oc.chain([8] * 11, [8] * 11, [3] * 10, [3] * 10, [0] * 10, [0] * 10)
    machine, random_state = oc.machine("v100-pcie"), np.uint64(seed)
    search = Search(Question(chain, trace_peak_bytes(chain), machine, BYTES, input_bytes(chain)))
    search_field = search._field
    values = [v for v in range(len(chain.variables)) if chain.variables[v].kind == "activation"]
    kept = values[4]
    first = search._array(search.dropping([v for v in values if v != kept]))
    before = np.flatnonzero(first[FATE, search_field.first] == KEEP)
    found = 0
    for _ in range(moves):
        choice = first.copy()
        random_state = np.uint64(move(random_state, choice, search_field))
        after = np.flatnonzero(choice[FATE, search_field.first] == KEEP)
        left, came = np.setdiff1d(before, after), np.setdiff1d(after, before)
        found += left.size == came.size == 1 and abs(int(left[0]) - int(came[0])) <= 2
    return found


def test_what_stays_stays_after_each_of_its_uses():
    chain = oc.chain([8] * 4, [8] * 4, [3] * 3, [3] * 3, [0] * 3, [0] * 3)
    search = Search(Question(chain, 1 << 40, oc.machine("v100-pcie")))
    large = [v.id for v in chain.variables if chain.producer[v.id] is not None]
    found = search._written(chain, large)
    spans = zip(found.large_first, found.large_end, strict=True)
    uses = [(var, use) for var, uses in enumerate(chain.uses) for use in uses]
    assert [uses[first:end] for first, end in spans] == [
        [(var, use) for use in chain.uses[var]] for var in large
    ]


def test_what_is_kept_of_a_chain_moves_along_it_where_the_host_is_short():
    assert shifts(1) > 30


def costs_while_nothing_fits(first_seed):
    """What three searches of ten evaluations lack, each from what the one before it found."""
    chain = oc.chain([8] * 41, [8] * 41, [3] * 40, [3] * 40, [0] * 40, [0] * 40)
    machine, budget = oc.machine("v100-pcie"), trace_minimum_bytes(chain) + 24
    search = Search(Question(chain, budget, machine, BYTES, input_bytes(chain)))
    start, costs = Choice(()), list[float]()
    for seed in range(first_seed, first_seed + 3):
        costs.append(search.cost(start))
        start = search.improve(start, 10, seed=seed, deadline=Deadline.after(None))
    return costs


def goes_on_from_what_lacks_least(seed):
    """It gave back what it began with, so the next search began there again."""
    costs = costs_while_nothing_fits(seed)
    assert anneal.IMPOSSIBLE < costs[-1] < costs[0]
    assert costs == sorted(costs, reverse=True)


def test_while_nothing_fits_a_search_goes_on_from_what_lacks_least():
    goes_on_from_what_lacks_least(0)
    assert len(set(costs_while_nothing_fits(0))) > 1
