"""Programs that solvers are given are the ones that they were, and small steps have their optima.

A row that is left out of a program, or one that forbids too little, leaves a bound true and a plan
legal; what is proved is less, and what is found is worse. So the rows themselves are known, for
steps of every kind, with what is made of a solution; solvers of others have no part in that. The
exact search has no program: its optima of tiny steps are known, and how many states it looks at.
`support/known.py` says why and how to write the tables anew.
"""

from __future__ import annotations

import random
from dataclasses import astuple, replace

import pytest
from support import known
from support.known_steps import DUPLEX, MACHINE, step
from support.quick import every

from ooctrain.errors import ConfigError, Infeasible
from ooctrain.sched.bounds.closed import pressures
from ooctrain.sched.bounds.exact import exact_makespan_us
from ooctrain.sched.bounds.linear_program import LinearProgram, WholeSolution
from ooctrain.sched.bounds.lp_bound import Covered, FluidItems, FluidProgram, fluid_bound
from ooctrain.sched.bounds.recompute import (
    Depth,
    RecomputeProgram,
    StepValues,
    dearest_ends,
    recompute_bound,
    widest_ends,
)
from ooctrain.sched.budget import input_bytes, trace_minimum_bytes, trace_peak_bytes
from ooctrain.sched.planners.checkmate import (
    Checkmate,
    CheckmateLp,
    Freedom,
    RunGraph,
    StageProgram,
    extremes,
    grouped_calls,
    limited,
    single_calls,
)
from ooctrain.sched.planning.question import Question
from ooctrain.sched.planning.residency import Liveness
from ooctrain.sched.schedule import BYTES, Granule
from ooctrain.step.builder import TraceBuilder
from ooctrain.step.chain import chain
from ooctrain.step.machine import call_durations_ns
from ooctrain.step.trace import Trace
from ooctrain.testing.random_traces import random_trace

STEPS = ("plain", "blocks", "random", "worked", "small 0", "small 1", "small 2", "small 3")
SHARES = (0.3, 0.7)


def of_name(name: str) -> Trace:
    if name == "chain":
        sizes = [4000, 9000, 7000, 3000, 8000, 6000, 2000]
        ns = [9, 7, 8, 5, 6, 7], [8, 9, 12, 8, 7, 9]
        return chain(sizes, sizes[::-1], *ns, [500] * 6, [700] * 6)
    if name.startswith("small"):
        return random_trace(random.Random(name), calls=9, max_bytes=60, duration_ns=9000)
    return step(name)


def between(trace: Trace, share: float) -> int:
    least, most = trace_minimum_bytes(trace), trace_peak_bytes(trace)
    return int(least + (most - least) * share)


def rows_of(program: LinearProgram) -> known.Row:
    """A program: columns, rows, numbers, and all of it."""
    whole = (
        program.costs, program.uppers, program.lowers, program.row_lowers, program.row_uppers,
        program.starts, program.indices, program.values, sorted(program.whole),
    )  # fmt: skip
    return (len(program.costs), len(program.row_uppers), len(program.values), len(program.whole),
            known.digest(whole))  # fmt: skip


# The bound of sums


@pytest.mark.parametrize("name", STEPS)
def test_the_program_of_sums_is_what_it_was(name):
    trace, rows = of_name(name), []
    for share, machine in zip(SHARES, (MACHINE, DUPLEX), strict=True):
        budget = between(trace, share)
        inputs = input_bytes(trace)
        for covered in (Covered(), Covered(False), Covered(True, True, inputs),
                        Covered(False, False, 2 * inputs + 50)):  # fmt: skip
            program = FluidProgram(trace, budget, machine, covered)
            found = program.write()
            rows.append((share, *astuple(covered), *rows_of(found), known.digest(program.items),
                         known.digest(sorted(program.fits.items()))))  # fmt: skip
    known.check_rows("programs", f"sums of {name}", rows)


@pytest.mark.parametrize("name", ["worked", "small 1", "small 2"])
def test_the_bound_of_sums_is_what_it_was(name):
    trace, rows = of_name(name), []
    for share in SHARES:
        budget = between(trace, share)
        for resident, host in ((False, None), (True, 0), (False, input_bytes(trace) + 20)):
            found = fluid_bound(trace, budget, MACHINE, resident=resident, host_budget_bytes=host)
            assert found is not None
            kind = found.lower_bound().kind
            rows.append((share, resident, host, found.host_budget_bytes, found.recompute,
                         *(float(f"{us:.5g}") for us in
                           (found.makespan_us, found.primal_us, found.dual_us)),
                         kind, len(found.memory_prices)))  # fmt: skip
            assert found.makespan_us <= found.dual_us * (1 + 1e-9)
            assert all(price > 0 for price in found.memory_prices.values())
    none = fluid_bound(trace, between(trace, 0) // 2, MACHINE)
    known.check_rows("programs", f"bound of {name}", [*rows, ("too little", none)])


def test_a_bound_says_which_lists_it_covers():
    trace = of_name("worked")
    said = set()
    for recompute in (True, False):
        for resident, host in ((True, None), (False, 5000)):
            found = fluid_bound(
                trace, between(trace, 0.5), MACHINE, recompute=recompute, resident=resident,
                host_budget_bytes=host,
            )  # fmt: skip
            assert found is not None
            assert (found.recompute, found.resident) == (recompute, resident)
            assert ("once" in found.covers) == (not recompute)
            assert ("persistent" in found.covers) == resident
            assert ("on the host" in found.covers) == (host is not None)
            assert ("recomputation" in found.lower_bound().kind) == recompute
            said.add(found.covers)
    assert len(said) == 4


@pytest.mark.parametrize("name", STEPS)
def test_what_does_not_fit_during_a_call_is_what_it_was(name):
    trace = of_name(name)
    rows = [
        (budget, recompute, known.digest([astuple(p) for p in found]),
         *(sum(getattr(p, kind) for p in found) for kind in
           ("sent_bytes", "moved_bytes", "fetched_bytes")))
        for budget in (1, *(between(trace, share) for share in (0.0, *SHARES)))
        for recompute in (True, False)
        for found in [list(pressures(trace, budget, recompute))]
    ]  # fmt: skip
    known.check_rows("programs", f"pressures of {name}", rows)


def test_items_of_a_step_are_what_they_were():
    for name in STEPS:
        trace = of_name(name)
        durations = [ns / 1000 for ns in call_durations_ns(trace, MACHINE)]
        items = FluidItems(trace, 1000, durations)
        rows = [(known.digest(list(items.of(Covered(*how)))), len(items.lives)) for how in
                ((True, False), (True, True), (False, False))]  # fmt: skip
        known.check_rows("programs", f"items of {name}", rows)


# The bound of stages


def row_of_stages(values: StepValues, ends: list[int]) -> known.Row:
    program = RecomputeProgram(values, MACHINE, ends)
    columns = [sorted(each.items()) for each in (program.run, program.kept, program.there)]
    return (len(ends), *rows_of(program.program), known.digest(columns))


@pytest.mark.parametrize("name", STEPS)
def test_the_program_of_stages_is_what_it_was(name):
    trace, rows = of_name(name), []
    calls = len(trace.calls)
    for share, backward in zip((0.2, 0.6), (True, False), strict=True):
        values = StepValues(trace, between(trace, share), backward)
        small = StepValues(trace, between(trace, share), backward, small=0.1)
        ends = [widest_ends(values, reads) for reads in (1, 3, calls)]
        third = sorted({calls // 3, calls // 2, calls - 1})
        rows += [(share, backward, *row_of_stages(values, each)) for each in (*ends[:2], third)]
        rows.append((values.room_bytes, len(values.values), len(small.values),
                     known.digest([sorted(values.until.items()), sorted(values.again.items())]),
                     known.digest([(n.share, sorted(n.touched)) for n in values.needs]),
                     known.digest(ends)))  # fmt: skip
    known.check_rows("programs", f"stages of {name}", rows)


@pytest.mark.parametrize("name", ["worked", "small 0", "small 3"])
def test_the_bound_of_stages_is_what_it_was(name):
    trace, rows = of_name(name), []
    for share, backward in ((0.1, True), (0.4, False), (0.8, True)):
        found = recompute_bound(
            trace, between(trace, share), MACHINE, backward=backward, depth=Depth(2, 40)
        )
        if found is None:
            rows.append((share, backward, "none"))
            continue
        rows.append((share, backward, *(float(f"{us:.5g}") for us in
                     (found.makespan_us, found.lp_us, found.proved_us)), found.ended))  # fmt: skip
        assert ("forward" in found.covers) == (not backward)
        assert ("forward" in found.lower_bound().kind) == (not backward)
        assert found.lower_bound().makespan_us == found.makespan_us
    known.check_rows("programs", f"stages' bound of {name}", rows)


def test_stages_end_where_prices_say_so():
    rows: list[known.Row] = []
    for name in ("small 0", "small 2"):
        trace = of_name(name)
        values = StepValues(trace, between(trace, 0.2), True)
        tried = {}, {1: 2.0, 4: 1.0, 6: 1e-9}, dict.fromkeys(range(9), 0.5)
        rows += [(name, len(prices), dearest_ends(values, MACHINE, prices)) for prices in tried]
    known.check_rows("programs", "dearest ends", rows)


# The program of a planner


@pytest.mark.parametrize("name", STEPS)
def test_the_program_of_checkmate_is_what_it_was(name):
    trace, rows = of_name(name), []
    for granule, share in ((BYTES, 0.2), (Granule(64), 0.7)):
        liveness = Liveness(trace, granule)
        for kind, groups in (
            ("single", single_calls(trace)), ("grouped", grouped_calls(trace, liveness.size))
        ):  # fmt: skip
            if len(groups) > 30:
                rows.append((kind, len(groups), known.digest(groups)))
                continue
            graph = RunGraph(liveness, groups)
            parts = (graph.nodes, graph.made, graph.users, graph.taker, sorted(graph.ends),
                     sorted(graph.fetched), graph.until)  # fmt: skip
            rows.append((kind, len(groups), graph.resident_bytes, known.digest(parts)))
            ns = call_durations_ns(trace, MACHINE)
            time_ns = [sum(ns[call] for call in group) for group in groups]
            for budget in (between(trace, share), None):
                for freedom in (Freedom(), Freedom(False, False)):
                    program = StageProgram(graph, time_ns, budget, freedom)
                    rng = random.Random(7)
                    values = [rng.random() for _ in program.program.costs]
                    chosen = [program.chosen(values), *(
                        program.rounded(values, share) for share in (0.25, 0.9)
                    )]  # fmt: skip
                    ran = [graph.runs(pairs) for pairs in chosen]
                    found = known.digest([sorted(pairs) for pairs in chosen]), known.digest(ran)
                    rows.append((budget, *astuple(freedom), *rows_of(program.program), *found))
    rows.append([known.digest(list(extremes(trace)))])
    known.check_rows("programs", f"checkmate of {name}", rows)


class Solver:
    """Stands where a program's solver does: it finds a solution of random numbers, or none.

    Args:
        ends: how each search ends.
    """

    def __init__(self, ends):
        self.ends, self.asked = iter(ends), []

    def __call__(self, program: LinearProgram, nodes, time_limit_s=None, *, guess=True):
        self.asked.append((nodes, time_limit_s is None, guess, rows_of(program)))
        ended, rng = next(self.ends, "nodes"), random.Random(len(self.asked))
        if ended == "infeasible":
            return WholeSolution((), float("inf"), float("inf"), ended)
        values = tuple(float(rng.random() < 0.7) if column in program.whole else rng.random()
                       for column in range(len(program.costs)))  # fmt: skip
        return WholeSolution(values, 120.0, 90.0, ended)


@pytest.mark.parametrize("planner", [
    Checkmate(), Checkmate(nodes=7, exact=5), CheckmateLp(), CheckmateLp(exact=5),
], ids=lambda planner: f"{planner.name} {planner.exact}")  # fmt: skip
@pytest.mark.parametrize("name", every(["chain", "small 2", "worked", "plain"], 2))
def test_what_is_made_of_solutions_is_what_it_was(planner, name, monkeypatch):
    trace, rows = of_name(name), []
    for share in (0.6,) if name == "plain" else (0.3, 0.6, 1.0):
        for ends in (["optimal"] * 9, ["nodes"] * 9, ["infeasible"] * 9, ["time"]):
            if share == 1.0 and len(ends) > 1 and ends[0] != "nodes":
                continue  # no solver is asked
            solver = Solver(ends)
            monkeypatch.setattr(LinearProgram, "search", lambda *a, s=solver, **k: s(*a, **k))
            question = Question(trace, between(trace, share), MACHINE)
            about = share, ends[0], len(ends)
            try:
                plan = planner.plan(question)
            except Infeasible as error:
                rows.append((*about, "at least", error.minimum_bytes, error.witness_call,
                             known.digest(solver.asked)))  # fmt: skip
                continue
            notes = {key: value for key, value in plan.notes.items() if not key.endswith("_s")}
            rows.append((*about, plan.peak_bytes, plan.makespan_us, known.digest(notes),
                         known.digest(solver.asked)))  # fmt: skip
    known.check_rows("solved", f"{planner.name} {planner.exact} of {name}", rows)


def test_a_step_of_too_many_groups_is_refused():
    trace = of_name("small 0")
    groups = len(trace.calls)
    graph, backward = limited("x", trace, BYTES, 30, groups)
    assert (len(graph.nodes), backward) == (groups, True)
    assert limited("x", trace, BYTES, groups, groups)[1]
    assert not limited("x", trace, BYTES, groups - 1, groups)[1]
    with pytest.raises(ConfigError) as caught:
        limited("x", trace, BYTES, 30, groups - 1)
    assert caught.value.code == "OOC-105"
    for wrong in ({"nodes": 0}, {"exact": -1}, {"most": 1.5}):
        with pytest.raises(ConfigError):
            Checkmate(**wrong)


# The exact search


def tiny(seed: int) -> Trace:
    """Five calls over values of up to three bytes, some of which run once."""
    rng = random.Random(seed)
    builder = TraceBuilder()
    there = [builder.variable("x", (rng.randint(1, 3),), "uint8", "input")]
    for number in range(5):
        ins = tuple(dict.fromkeys(rng.choice(there) for _ in range(rng.randint(1, 2))))
        outs = tuple(builder.variable(f"y{number}.{i}", (rng.randint(1, 3),), "uint8")
                     for i in range(rng.choice([1, 1, 2])))  # fmt: skip
        builder.call(f"f{number}", None, ins, outs, workspace_bytes=rng.choice([0, 0, 1]),
                     duration_ns=1000 * rng.randint(0, 4), pure=rng.random() < 0.8)  # fmt: skip
        there += outs
    return builder.build()


@pytest.mark.parametrize("seed", [1, 2, 5, 7])
def test_tiny_steps_have_the_optima_that_they_had(seed):
    trace, rows = tiny(seed), []
    least = trace_minimum_bytes(trace)
    for budget in (least - 1, least, least + 1, least + 3):
        found = [
            exact_makespan_us(trace, budget, duplex=duplex, recompute=recompute, partial=partial)
            for duplex in (False, True) for recompute in (False, True) for partial in (False, True)
        ]  # fmt: skip
        rows.append((budget - least, *found))
    known.check_rows("optima", str(seed), rows)


def states_of(trace: Trace, budget: int, **how: bool) -> int:
    """How many states the search looks at: the fewest with which it ends."""
    low, high = 0, 4096
    while high - low > 1:
        middle = (low + high) // 2
        try:
            exact_makespan_us(trace, budget, most_states=middle, **how)
            high = middle
        except ConfigError:
            low = middle
    return high


@pytest.mark.parametrize("seed", [0, 2])
def test_it_looks_at_as_many_states_as_it_did(seed):
    trace = tiny(seed)
    rows = [
        (more, how, states_of(trace, trace_minimum_bytes(trace) + more, **how))
        for more in (0, 2) for how in ({}, {"partial": False, "recompute": True}, {"duplex": True})
    ]  # fmt: skip
    known.check_rows("optima", f"states of {seed}", rows)


def test_a_step_of_another_kind_is_refused():
    trace = tiny(1)
    call = trace.calls[0]
    for wrong in (
        replace(call, duration_ns=1500), replace(call, duration_ns=None),
    ):  # fmt: skip
        with pytest.raises(ConfigError):
            exact_makespan_us(replace(trace, calls=(wrong, *trace.calls[1:])), 99)
    lasting = replace(trace.variables[0], kind="param")
    with pytest.raises(ConfigError):
        exact_makespan_us(replace(trace, variables=(lasting, *trace.variables[1:])), 99)
