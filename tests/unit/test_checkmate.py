"""checkmate: exhaustive search, laws, other planners without host memory, limits of its size."""

from __future__ import annotations

import contextlib
import itertools
import random
from dataclasses import replace

import pytest
from ooctrain.sched.planners.checkmate_baselines import Companions
from ooctrain.sched.planners.checkmate_with_companions import checkmate
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
    limited,
    single_calls,
)
from ooctrain.sched.planners.combined import Combined
from ooctrain.sched.planners.naive import Naive
from ooctrain.sched.planners.registry import get_planner
from ooctrain.sched.planning.effort import with_effort
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
        checkmate(evaluations=20).plan(Question(trace, 0, PLAIN))
    least = refused.value.minimum_bytes
    assert exhaustive(trace, least - 1) is None
    for budget in (least, *(max(least, int(most * share)) for share in shares)):
        plan = checkmate(evaluations=20).plan(Question(trace, budget, PLAIN))
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
    assert (
        checkmate(evaluations=20).plan(Question(trace, budget, PLAIN)).notes["objective_us"]
        == 550.0
    )


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


@pytest.mark.parametrize(
    ("seed", "others"),
    [
        (0, ("rotor", "dtr")),
        pytest.param(
            1, ("rotor", "dtr", "prefix", "combined:evaluations=60"), marks=pytest.mark.slow
        ),
    ],
)
def test_it_is_never_above_others_without_host_memory(seed, others):
    """On chains and on a graph with skips; the host has room for the inputs alone."""
    rng = random.Random(seed)
    times = [rng.randint(10, 90) for _ in range(5)]
    like_rotor = oc.chain([8] * 6, [8] * 6, times, [30] * 5, [0] * 5, [0] * 5)
    compared = 0
    for trace, share in itertools.product((like_rotor, graph_of_eight(seed)), (0.6, 0.8)):
        budget = int(trace_peak_bytes(trace, BYTES) * share)
        inputs = input_bytes(trace)
        for name in others:
            try:
                theirs = get_planner(name).plan(
                    Question(trace, budget, PLAIN, host_budget_bytes=inputs)
                )
            except (Infeasible, ConfigError):
                continue
            ours = checkmate(evaluations=60).plan(
                Question(trace, budget, PLAIN, host_budget_bytes=inputs)
            )
            assert ours.makespan_us <= theirs.makespan_us + 1e-6, name
            assert not any(isinstance(i, SwapOut) for i in ours.schedule.instructions)
            compared += 1
    assert compared >= 2


class Asked(Naive):
    """Has no plan, and counts how often it is asked for one."""

    def __init__(self):
        self.times = 0

    def plan(self, *arguments, **options):
        self.times += 1
        raise Infeasible("nothing", minimum_bytes=0)


def test_others_are_asked_for_less_memory_only_where_nothing_fits():
    """Not at the least budget that the program needs, to the byte."""
    asked, trace = Asked(), there_and_back()
    planner = Checkmate(companions=Companions(for_least=(asked,)))
    with pytest.raises(Infeasible) as refused:
        planner.plan(Question(trace, 0, PLAIN))
    assert asked.times
    asked.times, least = 0, refused.value.minimum_bytes
    for budget in (least, trace_peak_bytes(trace, BYTES)):
        assert planner.plan(Question(trace, budget, PLAIN)).peak_bytes <= budget
    assert not asked.times


def step_and_budget(seed):
    """A random step, and a budget below its peak, if there is one."""
    rng = random.Random(seed)
    trace = random_trace(rng, calls=rng.randint(3, 10), max_bytes=24, duration_ns=20_000)
    least, most = trace_minimum_bytes(trace, BYTES), trace_peak_bytes(trace, BYTES)
    return trace, rng.randint(least, max(least, most - 1))


def is_never_above_others_on_random_steps(seed, ours=None):
    """Nor refuses what they plan: their lists may run a call twice in one stage, or in another
    order, or fetch an input again. Whose list it is.
    """
    trace, budget = step_and_budget(seed)
    inputs, best_us = input_bytes(trace), float("inf")
    for other in (*map(get_planner, ("rotor", "dtr", "prefix")), Combined(evaluations=60)):
        with contextlib.suppress(Infeasible):
            theirs = other.plan(Question(trace, budget, PLAIN, host_budget_bytes=inputs))
            best_us = min(best_us, theirs.makespan_us)
    ours = ours or checkmate(evaluations=60)
    try:
        plan = ours.plan(Question(trace, budget, PLAIN, host_budget_bytes=inputs))
    except Infeasible:
        assert best_us == float("inf")
        return None
    verify(plan, trace, budget, PLAIN, host_budget_bytes=inputs)
    assert plan.makespan_us <= best_us + 1e-6
    return plan.notes.get("from", "the program")


#: Steps and budgets for which others have a plan, and the program has none.
BELOW = (24, 41)


@pytest.mark.parametrize("seed", quick(BELOW, 0))
def test_it_is_never_above_others_whose_lists_it_cannot_write(seed):
    assert is_never_above_others_on_random_steps(seed) in ("rotor", "dtr", "prefix", "combined")
    with pytest.raises(AssertionError):
        is_never_above_others_on_random_steps(seed, Checkmate())


@pytest.mark.slow
def test_it_is_never_above_others_on_many_random_steps():
    assert {*map(is_never_above_others_on_random_steps, range(60))} > {"the program"}


def its_least_is_enough_and_no_less_is(seed):
    """Also where it is the least of others."""
    trace, _ = step_and_budget(seed)
    ours = checkmate(evaluations=60)
    with pytest.raises(Infeasible) as refused:
        ours.plan(Question(trace, 0, PLAIN))
    least = refused.value.minimum_bytes
    verify(ours.plan(Question(trace, least, PLAIN)), trace, least, PLAIN)
    with pytest.raises(Infeasible) as again:
        ours.plan(Question(trace, least - 1, PLAIN))
    assert again.value.minimum_bytes == least


@pytest.mark.parametrize("seed", quick(BELOW, 0))
def test_its_least_is_enough_and_no_less_is(seed):
    its_least_is_enough_and_no_less_is(seed)


def test_a_command_says_how_far_a_plan_is_from_what_its_program_proves():
    """Gap, bound, what ended the search, and whose list it is."""
    trace = chain()
    plan = checkmate(evaluations=20).plan(Question(trace, resolve_budget(trace, "25%"), PLAIN))
    bound = plan.notes["bound_us"]
    assert program_rows(plan) == [
        ("program", f"computes for 550 us, bound of its program {format_us(bound)}, gap 0.0%; "
         "ended by its optimum"),
    ]  # fmt: skip
    notes = {**plan.notes, "bound_us": 440.0, "gap": 0.2, "ended": "time", "from": "combined"}
    cut_short = replace(plan, notes={**notes, "cut_short": True})
    assert search_rows(cut_short)[1:] == [
        ("program", "computes for 550 us, bound of its program 440 us, gap 20.0%; ended by "
         "--time-limit"),
        ("", "faster than what it found: the list of combined, without copies"),
    ]  # fmt: skip
    assert not program_rows(replace(plan, notes={}))


@pytest.mark.parametrize("value", ["3", "maybe"])
def test_whether_others_search_is_true_or_false(value):
    with pytest.raises(ConfigError, match="neither true nor false"):
        get_planner(f"checkmate:combined={value}")


@pytest.mark.slow
@pytest.mark.parametrize(
    "planner", [checkmate(evaluations=20), CheckmateLp()], ids=["whole", "rounded"]
)
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
        checkmate(most=20).plan(Question(step, 0, PLAIN))
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


@pytest.mark.slow
def test_the_optimum_of_groups_is_not_above_what_others_find_call_by_call():
    """Groups cost optimality: their optimum is 4034 us at 75 %, and `dtr` takes 4005."""
    trace = oc.trace(Blocks(2), (64, 3, 64, 64), threads=1, loss="mse")
    trace = apply_rewrites(trace, ("fuse", "share_storage"))
    for share in ("60%", "75%"):
        budget, plans = resolve_budget(trace, share, BYTES), {}
        for name in ("dtr", "checkmate"):
            planner = with_effort(get_planner(name), 60)
            plans[name] = planner.plan(Question(trace, budget, oc.machine("v100-pcie")))
        assert plans["checkmate"].makespan_us <= plans["dtr"].makespan_us
        notes = plans["checkmate"].notes
        # At 60 % no list of groups fits: that bounds no list of single calls.
        assert ("gap" in notes) == ("bound_us" in notes) == (share == "75%")
        assert notes["ended"] == ("optimal" if share == "75%" else "infeasible")


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
