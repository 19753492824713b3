"""checkmate: exhaustive search, laws, what ends its search, limits of its size."""

from __future__ import annotations

import contextlib
import itertools
import random
from dataclasses import replace

import pytest
from support.quick import quick

import ooctrain as oc
from ooctrain.errors import ConfigError, Infeasible
from ooctrain.functional import relu
from ooctrain.report.text import program_rows, search_rows
from ooctrain.rewrite import apply_rewrites
from ooctrain.sched.bounds.linear_program import LinearProgram
from ooctrain.sched.budget import (
    input_bytes,
    resolve_budget,
    trace_minimum_bytes,
    trace_peak_bytes,
)
from ooctrain.sched.planners.checkmate import (
    Checkmate,
    CheckmateLp,
    Freedom,
    RunGraph,
    StageProgram,
    extremes,
    limited,
    single_calls,
)
from ooctrain.sched.planners.registry import get_planner
from ooctrain.sched.planning.effort import Effort
from ooctrain.sched.planning.question import Question
from ooctrain.sched.planning.residency import Liveness
from ooctrain.sched.schedule import BYTES, SwapOut
from ooctrain.sched.verify import verify
from ooctrain.step.machine import Machine, call_durations_ns
from ooctrain.step.trace import Call, Trace, Variable
from ooctrain.testing.check_planner import check_planner
from ooctrain.testing.random_traces import random_trace
from ooctrain.units import format_us

PLAIN = Machine("plain", 1, 1, 1.0, link="duplex", latency_us=0.0, call_overhead_us=0.0)


def graph_of_eight(seed):
    """Four forward calls with a skip, four backward calls that read them; outputs of 1 to 9 B."""
    rng = random.Random(seed)
    reads = [(0,), (1,), (2, 1), (3, rng.choice([1, 2])),
             (4, 3), (5, rng.choice([2, 3])), (6, rng.choice([1, 2])), (7, 1)]  # fmt: skip
    variables = [Variable(0, "x0", (3,), "uint8", 3, "input")]
    calls = []
    for k, ins in enumerate(reads):
        size = rng.randint(1, 9)
        variables.append(Variable(k + 1, f"x{k + 1}", (size,), "uint8", size, "activation"))
        phase = "forward" if k < 4 else "backward"
        time_ns = 1000 * rng.randint(1, 9)
        calls.append(
            Call(k, f"f{k}", None, tuple(sorted(set(ins))), (k + 1,), rng.choice([0, 0, 4]),
                 phase=phase, duration_ns=time_ns)
        )  # fmt: skip
    return Trace(tuple(variables), tuple(calls))


def there_and_back(stages=4, size=4):
    """A chain of values of one size, each read again by a call whose workspace leaves no room for
    others. So all that such a call reads is made again in its own stage, one value after the other,
    and each goes as soon as the next one is made.
    """
    variables = [Variable(0, "x0", (size,), "uint8", size, "input")]
    calls = []
    for k in range(2 * stages):
        back = k - stages
        ins = (k,) if back < 0 else (k, stages - 1 - back)
        variables.append(Variable(k + 1, f"x{k + 1}", (size,), "uint8", size, "activation"))
        phase = "forward" if back < 0 else "backward"
        workspace = 0 if back < 0 else 3 * size
        call = Call(k, f"f{k}", None, ins, (k + 1,), workspace, phase=phase, duration_ns=1000)
        calls.append(call)
    return Trace(tuple(variables), tuple(calls))


def exhaustive(trace, budget_bytes):
    """The least time in us over all R and all values let go, stage by stage; None: none fits.

    A state is what is on the device; after each run any part of it may go. One output a call.
    """
    size = [variable.nbytes for variable in trace.variables]
    states = {frozenset(): 0}
    fetched = set()
    for stage in range(len(trace.calls)):
        for place in range(stage + 1):
            call, out = trace.calls[place], trace.calls[place].outs[0]
            after = dict(states) if place < stage else {}
            for alive, time_ns in states.items():
                comes = {v for v in call.ins if v in trace.initial and v not in fetched}
                there = alive | comes
                needed = sum(size[v] for v in there) + size[out] + call.workspace_bytes
                if not there.issuperset(call.ins) or needed > budget_bytes:
                    continue
                for left in subsets(there | {out}):
                    done_ns = time_ns + call.duration_ns
                    after[left] = min(done_ns, after.get(left, done_ns))
            states = after
        fetched.update(v for v in trace.calls[stage].ins if v in trace.initial)
    return min(states.values()) / 1000 if states else None


def subsets(values):
    return (
        frozenset(some)
        for count in range(len(values) + 1)
        for some in itertools.combinations(sorted(values), count)
    )


def fits_as_exhaustive_search_says(seed, shares=(0.55, 0.7, 0.85)):
    """Same feasibility and same time at a few budgets; `shares` are of the peak."""
    trace = graph_of_eight(seed)
    most = trace_peak_bytes(trace, BYTES)
    with pytest.raises(Infeasible) as refused:
        Checkmate().plan(Question(trace, 0, PLAIN))
    least = refused.value.minimum_bytes
    assert exhaustive(trace, least - 1) is None
    for budget in (least, *(max(least, int(most * share)) for share in shares)):
        plan = Checkmate().plan(Question(trace, budget, PLAIN))
        verify(plan, trace, budget, PLAIN)
        assert plan.notes["objective_us"] == exhaustive(trace, budget)
        assert plan.notes.get("gap") == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 6))]
)
def test_it_is_as_fast_as_exhaustive_search(seed):
    fits_as_exhaustive_search_says(seed)


def chain(stages=6):
    """Stages that cost more and more."""
    times = [20 + 10 * stage for stage in range(stages)]
    return oc.chain([8] * (stages + 1), [8] * (stages + 1), times, [30] * stages, [0] * stages,
                    [0] * stages)  # fmt: skip


def program_of(trace, budget_bytes, *, whole=True):
    graph = RunGraph(Liveness(trace, BYTES), single_calls(trace))
    times = call_durations_ns(trace, PLAIN)
    return StageProgram(graph, times, budget_bytes, Freedom(whole=whole))


def the_program_promises_what_the_runs_need(trace):
    """The least memory of the program is that of its runs, to the byte."""
    program = program_of(trace, None)
    found = program.program.search(500)
    need, _ = Liveness(trace, BYTES).least_budget(program.graph.runs(program.chosen(found.values)))
    promised = found.objective * program.unit_bytes + program.graph.resident_bytes
    assert promised == pytest.approx(need)


def test_the_program_promises_what_the_runs_need():
    the_program_promises_what_the_runs_need(graph_of_eight(0))
    the_program_promises_what_the_runs_need(chain(4))


def test_even_the_relaxation_has_room_for_what_one_call_takes():
    """Parts of runs would need less than any list does."""
    for trace in (chain(4), graph_of_eight(2)):
        program = program_of(trace, None, whole=False)
        least = program.program.search(1).objective * program.unit_bytes
        needed = trace_minimum_bytes(trace, BYTES) - program.graph.resident_bytes
        assert least >= needed * (1 - 1e-9)


def what_goes_makes_room():
    """Of values made again in one stage, each goes as soon as the next is made; without the rows of
    FREE the program's least memory is 32 bytes.
    """
    trace = there_and_back()
    program = program_of(trace, None)
    found = program.program.search(500)
    assert found.objective * program.unit_bytes == pytest.approx(28)
    assert exhaustive(trace, 28) is not None
    assert exhaustive(trace, 27) is None


def test_what_goes_makes_room():
    what_goes_makes_room()


def test_a_chain_may_take_less_than_rotor_says():
    """rotor runs a stage as a whole, which takes 560 us at this budget."""
    trace = chain()
    budget = resolve_budget(trace, "25%")
    assert Checkmate().plan(Question(trace, budget, PLAIN)).notes["objective_us"] == 550.0


def rounded_runs_are_whole():
    """What rounding keeps was there, and what its runs read is kept or made in the same stage."""
    trace = chain()
    program = program_of(trace, trace_peak_bytes(trace, BYTES) * 6 // 10, whole=False)
    values = program.program.search(1).values
    assert any(0.01 < values[column] < 0.99 for column in program.kept.values())
    for threshold in (0.25, 0.5, 0.75, 1.5):
        kept = {pair for pair, column in program.kept.items() if values[column] > threshold}
        chosen = program.rounded(values, threshold)
        assert {(stage, stage) for stage in range(program.stages)} <= chosen
        asked = {(stage - 1, value) for stage, value in kept if stage}
        asked |= {(t, value) for t, place in chosen for value in program.graph.nodes[place].ins}
        for stage, value in asked - kept:
            made = program.graph.made[value]
            cannot = value in program.graph.fetched or (stage, made) not in program.run
            assert (stage, made) in chosen or cannot
        runs = program.graph.runs(chosen)
        need, _ = Liveness(trace, BYTES).least_budget(runs)
        assert need <= trace_peak_bytes(trace, BYTES)


def test_rounded_runs_are_whole():
    rounded_runs_are_whole()


def test_what_rounding_is_measured_by_is_the_relaxation_for_the_whole_budget():
    """For less than the budget it proves more, which lists within the budget need not obey."""
    trace = chain()
    budget = trace_peak_bytes(trace, BYTES) * 6 // 10
    program = program_of(trace, budget, whole=False)
    optimum_us = program.program.search(1).objective * program.unit_ns / 1000
    notes = CheckmateLp().plan(Question(trace, budget, PLAIN)).notes
    assert notes["bound_us"] == pytest.approx(optimum_us)
    assert sum(call_durations_ns(trace, PLAIN)) / 1000 < optimum_us <= notes["objective_us"]


@pytest.mark.slow
def test_rounding_is_never_faster_than_the_program():
    trace = chain()
    for share in ("25%", "50%"):
        whole, rounded = (oc.plan(trace, share, p, PLAIN) for p in ("checkmate", "checkmate-lp"))
        assert rounded.notes["bound_us"] <= whole.makespan_us <= rounded.makespan_us


@pytest.mark.parametrize("seed", quick(range(4), 0))
def test_on_a_chain_it_is_never_above_rotor(seed):
    """Whose lists run stages as a whole, so that its program has them too."""
    rng = random.Random(seed)
    times = [rng.randint(10, 90) for _ in range(5)]
    trace = oc.chain([8] * 6, [8] * 6, times, [30] * 5, [0] * 5, [0] * 5)
    rotor, most = get_planner("rotor"), trace_peak_bytes(trace, BYTES)
    with pytest.raises(Infeasible) as refused:
        rotor.plan(Question(trace, 0, PLAIN))
    least = refused.value.minimum_bytes
    for budget in (least, (least + most) // 2):
        asked = Question(trace, budget, PLAIN, host_budget_bytes=input_bytes(trace))
        ours, theirs = (planner.plan(asked) for planner in (Checkmate(), rotor))
        assert ours.makespan_us <= theirs.makespan_us + 1e-6
        assert not any(isinstance(i, SwapOut) for i in ours.schedule.instructions)


def what_a_search_has_found_is_the_plan():
    """However soon its number of nodes ends it: bound and gap say how far it may be from the least.
    Rounding would take 610 us here, where the first node's list takes 550 us.
    """
    trace, budget = chain(), 52
    program = program_of(trace, budget)
    found = program.program.search(1)
    notes = Checkmate(nodes=1).plan(Question(trace, budget, PLAIN)).notes
    assert notes["ended"] == found.ended == "nodes"
    assert notes["objective_us"] == pytest.approx(found.objective * program.unit_ns / 1000)
    assert notes["bound_us"] == pytest.approx(found.bound * program.unit_ns / 1000)
    gap = 1 - notes["bound_us"] / notes["objective_us"]
    assert notes["gap"] == pytest.approx(gap) != pytest.approx(0.0)
    assert "cut_short" not in notes


def test_what_a_search_has_found_is_the_plan():
    what_a_search_has_found_is_the_plan()


@pytest.mark.parametrize("planner", [Checkmate(), CheckmateLp()], ids=["whole", "rounded"])
def test_where_time_is_over_what_needs_least_is_the_plan_and_says_so(planner):
    trace = chain()
    need, _ = Liveness(trace, BYTES).least_budget(list(extremes(trace))[-1])
    budget = max(need, resolve_budget(trace, "50%"))
    assert budget < trace_peak_bytes(trace, BYTES)
    in_time = planner.plan(Question(trace, budget, PLAIN))
    late = planner.plan(Question(trace, budget, PLAIN, effort=Effort.within(0.0)))
    assert "cut_short" not in in_time.notes
    assert late.notes["cut_short"]
    assert late.makespan_us > in_time.makespan_us
    verify(late, trace, budget, PLAIN)


def step_and_budget(seed):
    """A random step, and a budget below its peak, if there is one."""
    rng = random.Random(seed)
    trace = random_trace(rng, calls=rng.randint(3, 10), max_bytes=24, duration_ns=20_000)
    least, most = trace_minimum_bytes(trace, BYTES), trace_peak_bytes(trace, BYTES)
    return trace, rng.randint(least, max(least, most - 1))


#: Steps and budgets for which other planners that copy nothing have a plan and the program has
#: none: their lists run a call twice in one stage, or in another order, or fetch an input again.
BELOW = (24, 41)


@pytest.mark.parametrize("seed", quick(BELOW, 0))
def test_where_its_program_has_no_list_it_refuses_whatever_others_find(seed):
    trace, budget = step_and_budget(seed)
    asked = Question(trace, budget, PLAIN, host_budget_bytes=input_bytes(trace))
    found = 0
    for name in ("rotor", "dtr", "prefix"):
        with contextlib.suppress(Infeasible):
            verify(get_planner(name).plan(asked), trace, budget, PLAIN)
            found += 1
    assert found
    with pytest.raises(Infeasible) as refused:
        Checkmate().plan(asked)
    assert refused.value.minimum_bytes > budget


def its_least_is_enough_and_no_less_is(trace):
    """And it is the same whatever budget is refused."""
    least = its_least(trace, 0)
    verify(Checkmate().plan(Question(trace, least, PLAIN)), trace, least, PLAIN)
    assert {its_least(trace, budget) for budget in (1, least // 2, least - 1)} == {least}


def its_least(trace, budget):
    """What it names when it refuses a budget; None: it has a plan."""
    try:
        Checkmate().plan(Question(trace, budget, PLAIN))
    except Infeasible as refused:
        return refused.minimum_bytes
    return None


@pytest.mark.parametrize("first", quick([0, 20, 40], 0))
def test_its_least_is_enough_and_no_less_is(first):
    for seed in range(first, first + (20 if first else 4)):
        its_least_is_enough_and_no_less_is(step_and_budget(seed)[0])


def test_its_least_is_that_of_its_program_where_the_simplest_lists_need_more():
    """Each call once and all dropped need 23 bytes, and the program 15."""
    trace = graph_of_eight(1)
    its_least_is_enough_and_no_less_is(trace)
    simplest = (Liveness(trace, BYTES).least_budget(runs)[0] for runs in extremes(trace))
    assert its_least(trace, 0) < min(simplest)


def test_a_command_says_how_far_a_plan_is_from_what_its_program_proves():
    """Gap, bound, and what ended the search."""
    trace = chain()
    plan = Checkmate().plan(Question(trace, resolve_budget(trace, "25%"), PLAIN))
    bound = plan.notes["bound_us"]
    assert program_rows(plan) == [
        ("program", f"computes for 550 us, bound of its program {format_us(bound)}, gap 0.0%; "
         "ended by its optimum"),
    ]  # fmt: skip
    notes = {**plan.notes, "bound_us": 440.0, "gap": 0.2, "ended": "time"}
    cut_short = replace(plan, notes={**notes, "cut_short": True})
    assert search_rows(cut_short)[1:] == [
        ("program", "computes for 550 us, bound of its program 440 us, gap 20.0%; ended by "
         "--time-limit"),
    ]  # fmt: skip
    assert not program_rows(replace(plan, notes={}))


@pytest.mark.slow
@pytest.mark.parametrize("planner", [Checkmate(), CheckmateLp()], ids=["whole", "rounded"])
def test_it_keeps_the_laws_of_planners(planner):
    assert check_planner(planner, examples=12, seed=3, time_limit_s=60) >= 2


def test_a_long_step_is_grouped_or_refused():
    trace = oc.trace(oc.models.build("vgg16"), (8, 3, 32, 32))
    step = apply_rewrites(trace, ("fuse", "share_storage"))
    graph, by_calls = limited("checkmate", step, BYTES, 30, 150)
    assert len(graph.nodes) < len(step.calls) / 2
    assert not by_calls
    assert [c for node in graph.nodes for c in node.calls] == [c.id for c in step.calls]
    with pytest.raises(ConfigError, match="too long for a program") as refused:
        Checkmate(most=20).plan(Question(step, 0, PLAIN))
    assert "combined" in str(refused.value)


class Blocks(oc.nn.Module):
    """Residual blocks of one size."""

    def __init__(self, count, planes=16):
        super().__init__()
        self.stem = self._layer(3, planes)
        self.blocks = oc.nn.ModuleList(
            oc.nn.Sequential(self._layer(planes, planes), oc.nn.ReLU(), self._layer(planes, planes))
            for _ in range(count)
        )

    def _layer(self, planes, out):
        conv = oc.nn.Conv2d(planes, out, 3, padding=1)
        return oc.nn.Sequential(conv, oc.nn.BatchNorm2d(out))

    def forward(self, x):
        x = relu(self.stem(x))
        for block in self.blocks:
            x = relu(block(x) + x)
        return x


def the_optimum_of_groups_is_said_to_be_one():
    """Groups cost optimality: their optimum is 4034 us at 75 %, and `dtr` takes 4005. At 60 % no
    list of groups fits: that bounds no list of single calls.
    """
    trace = oc.trace(Blocks(2), (64, 3, 64, 64), threads=1, loss="mse")
    trace = apply_rewrites(trace, ("fuse", "share_storage"))
    for share, ended in (("60%", "infeasible"), ("75%", "optimal")):
        asked = Question(trace, resolve_budget(trace, share, BYTES), oc.machine("v100-pcie"))
        notes = Checkmate().plan(asked).notes
        assert notes["ended"] == ended
        assert ("gap" in notes) == ("bound_us" in notes) == (ended == "optimal")
        # The bound counts calls of groups that run once in any list, too.
        assert notes.get("gap", 0.0) == pytest.approx(0.0, abs=1e-9)


@pytest.mark.slow
def test_the_optimum_of_groups_is_said_to_be_one():
    the_optimum_of_groups_is_said_to_be_one()


def test_whole_columns_are_whole_and_the_end_is_named():
    """5 a + 4 b >= 7.5 with a, b whole: 2 a is 10, a + b is 9, and 2 b is 8."""
    program = LinearProgram()
    a, b = program.column(cost=5.0, whole=True), program.column(cost=4.0, whole=True)
    program.at_most([(a, -5.0), (b, -4.0)], -7.5)
    found = program.search(100)
    assert (found.ended, found.objective, found.gap) == ("optimal", pytest.approx(8.0), 0.0)
    assert found.values == pytest.approx((0.0, 2.0))
    assert program.solve().primal == pytest.approx(7.5)
    program.at_most([(a, 1.0), (b, 1.0)], 1.0)
    none = program.search(100)
    assert (none.ended, none.values, none.gap) == ("infeasible", (), float("inf"))
