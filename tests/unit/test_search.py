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
from ooctrain.sched.planners.belady import offload
from ooctrain.sched.planning.decisions import Decisions, Gap
from ooctrain.sched.planning.lower import lower_timed, tabulate
from ooctrain.sched.planning.question import Question
from ooctrain.sched.schedule import BYTES, Granule, Run, SwapOut
from ooctrain.sched.search import evict as evict_module
from ooctrain.sched.search import play as engine
from ooctrain.sched.search.evict import evict
from ooctrain.sched.search.expand import LONGEST, expand
from ooctrain.sched.search.kept import look, unseen, want_all
from ooctrain.sched.search.play import Link, Pieces, SearchLimits, cut, host_margin, link_of, play
from ooctrain.sched.search.search import Search
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


def searched(trace, machine=None, granule=BYTES):
    """A search within all memory, with host memory for all."""
    machine = machine or oc.machine("v100-pcie")
    return Search(Question(trace, 1 << 40, machine, granule))


def random_kept(search, seed):
    """Spans during which values are wanted, two of them for each on average; and what stays."""
    rng, columns, calls = random.Random(seed), search.tables.values.size, len(search.trace.calls)
    kept = search.keeping(())
    wanted = rng.choice([0.5, 2.0, 4.0]) if columns else 0
    for _ in range(round(wanted * columns)):
        first = rng.randrange(1, calls + 1)
        span = (rng.randrange(columns), first, min(calls, first + rng.randrange(calls)))
        want_all(kept, np.array([span], np.int64))
    kept.stays[:] = [rng.random() < 0.4 for _ in range(kept.stays.size)]
    return kept


def readable_runs(trace, kept, column):
    """(The runs of what is kept, which values are there as each call begins), worked out call by
    call: a value that is made for a call is there as long as it is wanted from the next one on;
    what is missing is computed again, depth first. None: something cannot be.
    """
    alive = dict.fromkeys(trace.initial, len(trace.calls))  # {value: the last call that finds it}
    runs, there = list[int](), list[set[int]]()

    def run(call, number, again):
        if len(runs) == LONGEST * len(trace.calls):
            return False
        runs.append(number)
        for out in trace.calls[number].outs:
            if not (again and alive.get(out, -1) >= call):
                own = column[out]
                alive[out] = kept.until[own, call + 1] - 1 if own >= 0 else len(trace.calls)
        for taken in trace.calls[number].reuse.values():
            alive.pop(taken, None)
        return True

    def read(call, number):
        """Whether a call has its inputs, after what had to run again."""
        missing = [v for v in dict.fromkeys(trace.calls[number].ins) if alive.get(v, -1) < call]
        for value in reversed(missing):
            if alive.get(value, -1) >= call:
                continue
            made = trace.producer[value]
            again = made is not None and trace.calls[made].pure
            if not again or not read(call, made) or not run(call, made, True):
                return False
        return all(alive.get(v, -1) >= call for v in trace.calls[number].ins) or read(call, number)

    for call in range(len(trace.calls)):
        there.append({value for value, last in alive.items() if last >= call})
        if not read(call, call) or not run(call, call, False):
            return None
    return runs, there


def slots(trace):
    """{(variable, call): the slot of the time after it}."""
    at = tables_of(trace, oc.machine("v100-pcie"), BYTES).slot_at
    pairs = ((v, uses) for v, uses in enumerate(trace.uses))
    return {(v, use): int(at[v]) + place for v, uses in pairs for place, use in enumerate(uses)}


@pytest.mark.slow
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


def expanded_as_it_is(trace):
    """A step in which all is wanted."""
    search = searched(trace)
    return expand(search.tables, search.dropping(()).until)


def test_gaps_are_in_order_whatever_the_order_of_inputs():
    """By their ends, then their beginnings; the call before has closed a gap that began earlier."""
    builder = TraceBuilder()
    a, b, c, d, e = (builder.variable(name, (4,), "uint8") for name in "abcde")
    for out in (a, b, c):
        builder.call(f"make {out}", None, (), (out,), duration_ns=1000)
    builder.call("read a", None, (a,), (d,), duration_ns=1000)
    builder.call("read the others", None, (c, b), (e,), duration_ns=1000)
    step = expanded_as_it_is(builder.build())
    found = zip(step.gap_before, step.gap_after, step.gap_var, strict=True)
    assert [tuple(map(int, gap)) for gap in found] == [(3, 0, a), (4, 1, b), (4, 2, c)]


def test_an_input_that_two_calls_in_a_row_read_waits_before_the_first_alone():
    builder = TraceBuilder()
    x = builder.variable("x", (4,), "uint8", "input")
    a, b = (builder.variable(name, (4,), "uint8") for name in "ab")
    builder.call("f", None, (x,), (a,), duration_ns=1000)
    builder.call("g", None, (x, a), (b,), duration_ns=1000)
    step = expanded_as_it_is(builder.build())
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
    search = searched(trace)
    t, calls, columns = search.tables, len(trace.calls), search.tables.values.size
    kept, seen = search.keeping(()), unseen(columns, calls)
    spans = [(column, 1, calls) for column in range(columns)]
    want_all(kept, np.array(spans, np.int64).reshape(-1, 3))
    step = expand(t, kept.until)
    look(t, kept, step, seen)
    assert step.runs.tolist() == list(range(calls))
    for column, value in enumerate(t.values.tolist()):
        first, last = trace.producer[value] + 1, trace.taker.get(value, calls)
        there = [first <= call <= last for call in range(calls + 1)]
        assert seen.there[column, : calls + 1].tolist() == there
        touched = [value in trace.calls[call].touched() for call in range(calls)]
        assert seen.touched[column, :calls].tolist() == touched


def check_expanded(trace, machine, seed, granule):
    search = searched(trace, machine, granule)
    kept = random_kept(search, seed)
    step = expand(search.tables, kept.until)
    order = list(zip(step.gap_before, step.gap_after, step.gap_var, strict=True))
    assert order == sorted(order)
    expected = readable_runs(trace, kept, search.tables.column)
    assert step.ok == (expected is not None)
    if expected is None:
        return
    numbers, there = expected
    assert step.runs.tolist() == numbers
    runs = search.runs(kept)
    assert [run.call for run in runs] == numbers
    check_seen(search, kept, step, there)
    table = tabulate(Decisions(runs), trace, machine, granule)
    _, lack = evict(step, search.tables.granted, np.zeros_like(kept.stays), 1 << 60, 0)
    assert lack <= 0
    assert step.claim.tolist() == table.claim_bytes
    assert step.end.tolist() == table.end_bytes
    assert step.start == table.start_bytes
    dead = [sum(granted for _, _, granted in table.dead.get(p, ())) for p in range(len(runs))]
    assert step.dead.tolist()[: len(runs)] == dead
    away = inputs_away(step, search.tables)
    assert (step.resident - away).tolist() == table.resident_bytes


def check_seen(search, kept, step, there):
    """What moves look at is what the step does."""
    values, calls = search.tables.values.tolist(), search.trace.calls
    seen = unseen(len(values), len(calls))
    look(search.tables, kept, step, seen)
    assert seen.runs.tolist() == [step.of.tolist().count(call) for call in range(len(calls))]
    for column, value in enumerate(values):
        found = seen.there[column, : len(calls)].astype(bool).tolist()
        assert found == [value in at for at in there]
        pairs = zip(step.runs.tolist(), step.of.tolist(), strict=True)
        touching = {call for run, call in pairs if value in calls[run].touched()}
        assert set(np.flatnonzero(seen.touched[column]).tolist()) == touching


def inputs_away(step, tables):
    away = np.zeros(step.runs.size, np.int64)
    for var, after, before in zip(step.gap_var, step.gap_after, step.gap_before, strict=True):
        if after < 0:
            away[:before] += tables.granted[var]
    return away


def least_bytes(search, step, stays):
    """The least budget of a list of runs."""
    return max(step.start, int(evict(step, search.tables.granted, stays, 0, 0)[1]))


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
    """(makespan of the compiled engine in ns, what the readable one writes) of what is kept."""
    search = searched(trace, machine, granule)
    tables, kept = search.tables, random_kept(search, seed)
    step = expand(tables, kept.until)
    if not step.ok:
        return None, None
    most = int((step.resident - inputs_away(step, tables)).max())
    least = least_bytes(search, step, kept.stays)
    budget_bytes = least + round(share * max(0, most - least))
    chunk_bytes = granule.size_bytes * granules  # 0: whole gaps
    evicted, lack = evict(step, tables.granted, kept.stays, budget_bytes, chunk_bytes)
    assert lack <= 0
    limits = SearchLimits(budget_bytes, chunk_bytes, link_of(machine))
    found = play(tables, step, evicted, limits)
    decisions = Decisions(search.runs(kept), tuple(gaps(trace, step, evicted, chunk_bytes)))
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
    search = searched(trace, machine)
    tables, kept = search.tables, random_kept(search, seed)
    step = expand(tables, kept.until)
    if not step.ok:
        return
    most = int((step.resident - inputs_away(step, tables)).max())
    least = least_bytes(search, step, kept.stays)
    budget_bytes = least + round(share * max(0, most - least))
    evicted, lack = evict(step, tables.granted, kept.stays, budget_bytes, 1)
    staying = frozenset(search.stays(kept))
    assert staying == {use for use, slot in slots(trace).items() if kept.stays[slot]}
    question = Question(trace, budget_bytes, machine)
    readable = offload("test", question, search.runs(kept), staying)
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
    search = searched(trace, machine)
    step = expand(search.tables, random_kept(search, seed).until)
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
