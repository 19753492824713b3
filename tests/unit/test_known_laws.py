"""Laws ask what they asked: the steps and networks that they draw, and what they then want to know.

A law that draws less, or asks for less, still passes; only a bug that nobody planted would tell.
So what is drawn for a seed is known, and so are all questions that a law puts to a planner, the
smaller steps that are tried when it fails, and where a list is laid out on bytes.
`support/known.py` says why and how to write the tables anew.
"""

from __future__ import annotations

import random
from dataclasses import astuple, replace

import pytest
from support import known
from support.known_numbers import numbers_in
from support.mutate import mutants

from ooctrain import nn
from ooctrain.errors import ConfigError
from ooctrain.execution.planners import get_planner
from ooctrain.sched.budget import trace_minimum_bytes, trace_peak_bytes
from ooctrain.sched.planning.question import Question
from ooctrain.sched.schedule import BYTES, Granule
from ooctrain.step.trace import Trace
from ooctrain.testing.byte_list import LawBroken, Release, RunnerStep, lay_out
from ooctrain.testing.check_planner import random_case, shrink
from ooctrain.testing.check_rewrite import random_step
from ooctrain.testing.check_split import random_network, sum_of_squares
from ooctrain.testing.describe import describe_list, describe_trace
from ooctrain.testing.interpreter import in_core, interpret
from ooctrain.testing.law_by_hand import PICKS, random_arena
from ooctrain.testing.planner_cases import Case
from ooctrain.testing.planner_laws import LAWS, delays_change_nothing
from ooctrain.testing.random_traces import random_machine, random_trace, random_values
from ooctrain.testing.tiled.bands_by_hand import chain_in, footprint_of, par_rows, random_chain
from ooctrain.tracing import trace

SEEDS = range(6)


def drawn(name: str, seed: int) -> random.Random:
    return random.Random(f"{name}/{seed}")


def whole(step: Trace) -> str:
    """All of a step in a word."""
    return known.digest((step.variables, step.calls, step.carries, step.outputs))


# What is drawn


def steps(rng: random.Random) -> known.Row:
    return [
        whole(random_trace(rng)), whole(random_trace(rng, calls=30, max_bytes=9)),
        whole(random_trace(rng, calls=5, duration_ns=700)), random_trace(rng).fingerprint,
    ]  # fmt: skip


def machines(rng: random.Random) -> known.Row:
    both = random_machine(rng), random_machine(rng, interference=True)
    return [known.digest([astuple(one) for one in both]), both[1].interference, both[0].link]


def values(rng: random.Random) -> known.Row:
    found = random_values(random_trace(rng, calls=3), rng)
    return [sum(map(len, found.values())), known.digest(found)]


def cases(rng: random.Random) -> known.Row:
    case = random_case(rng)
    return [whole(case.trace), known.digest(astuple(case.machine)), case.granule, case.seed]


def chains(rng: random.Random) -> known.Row:
    """With the rows that the library gives bands of them, and what these cost."""
    chain = random_chain(rng)
    rows = par_rows(chain.layers, chain.cuts)
    return [chain.layers, len(chain.cuts), known.digest(astuple(chain)), chain.heights,
            known.digest(rows), *astuple(footprint_of(chain, rows))]  # fmt: skip


def arenas(rng: random.Random) -> known.Row:
    arena = random_arena(rng)
    return [arena.size, next(name for name, pick in PICKS.items() if pick is arena.pick)]


def rewritten(rng: random.Random) -> known.Row:
    return [whole(random_step(rng))]


def split(rng: random.Random) -> known.Row:
    rows = []
    for kind in ("windows", "norm", "residual", "tiling", "counted", "wide", "chain"):
        net = random_network(rng, kind)
        step = trace(net.model, net.shape, sum_of_squares, threads=1)
        rows.append((kind, net.shape, net.grid, whole(step), net.model.training))
    many = [random_network(rng, "windows", "chain", "counted") for _ in range(12)]
    shown = [(net.shape, net.grid, numbers_in(repr(net.model).splitlines())) for net in many]
    return [known.digest(rows), known.digest(shown), *(row[1] for row in rows)]


DRAWN = {f.__name__: f for f in
         (steps, machines, values, cases, chains, arenas, rewritten, split)}  # fmt: skip


@pytest.mark.parametrize("name", DRAWN)
def test_what_is_drawn_is_what_it_was(name):
    many = 40 if name in ("chains", "arenas", "machines") else len(SEEDS)
    known.check_rows("drawn", name, [DRAWN[name](drawn(name, seed)) for seed in range(many)])


def test_each_kind_of_network_is_drawn():
    """Of several kinds one is drawn."""
    seen = {len(random_network(drawn("any", seed), "chain", "wide").grid) for seed in range(9)}
    shapes = {random_network(drawn("any", seed), "chain", "wide").grid for seed in range(30)}
    assert seen == {2}
    assert (3, 1) in shapes
    assert len(shapes) > 2


# What is asked of planners


class Noting:
    """A planner that writes down what it is asked, and answers as another one does."""

    name = "noting"

    def __init__(self, planner: str):
        self.planner, self.asked = get_planner(planner), []

    def plan(self, question: Question):
        self.asked.append((
            whole(question.trace), question.budget_bytes, question.host_budget_bytes,
            question.granule, question.seed, astuple(question.machine),
        ))  # fmt: skip
        return self.planner.plan(question)


QUICK_LAWS = [name for name, law in LAWS.items() if law is not delays_change_nothing]


@pytest.mark.parametrize("law", QUICK_LAWS)
def test_a_law_asks_what_it_asked(law):
    rows = []
    for seed in SEEDS:
        for planner in ("belady", "window"):
            noting = Noting(planner)
            LAWS[law](noting, random_case(drawn("case", seed)))
            budgets = [asked[1:3] for asked in noting.asked]
            rows.append((seed, planner, len(budgets), known.digest(budgets),
                         known.digest(noting.asked)))  # fmt: skip
    known.check_rows("questions", law, rows)


def test_delays_are_tried_on_what_they_were():
    rows = []
    for seed in range(3):
        noting = Noting("belady")
        delays_change_nothing(noting, random_case(drawn("case", seed)))
        rows.append((seed, len(noting.asked), known.digest(noting.asked)))
    known.check_rows("questions", "delays", rows)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_step_is_made_smaller_as_it_was(seed):
    """All steps that are tried while none fails, and those on the way to the smallest that has two
    inputs of one call, or none."""
    step = random_trace(drawn("small", seed), calls=6)
    rows = []
    for name, fails in (
        ("none", lambda smaller: False), ("all", lambda smaller: bool(smaller.calls)),
        ("two inputs", lambda smaller: any(len(c.ins) > 1 for c in smaller.calls)),
        ("in place", lambda smaller: any(c.reuse for c in smaller.calls)),
        ("two outputs", lambda smaller: any(len(c.outs) > 1 for c in smaller.calls)),
    ):  # fmt: skip
        tried: list[str] = []
        last = shrink(step, lambda s, f=fails, t=tried: (t.append(whole(s)), f(s))[1])
        rows.append((name, len(tried), known.digest(tried), len(last.calls), whole(last)))
    tried = []
    shrink(step, lambda s: tried.append(whole(s)), max_questions=7)
    known.check_rows("smaller", str(seed), [*rows, ("seven", len(tried))])


# A list on bytes


def listed(seed: int) -> tuple[Case, list]:
    """A random step of which something is wanted, and plans of it for several budgets."""
    case = random_case(drawn("listed", seed))
    step = random_trace(drawn("listed", seed), calls=8, max_bytes=12)
    outs = [v for call in step.calls for v in call.outs if step.variables[v].nbytes]
    ends = {"first": outs[0], "last": outs[-1]}
    step = Trace(step.variables, step.calls, step.carries, ends)
    granule = (BYTES, Granule(8), Granule(4, ranges=False))[seed % 3]
    least, most = trace_minimum_bytes(step, granule), trace_peak_bytes(step, granule)
    plans = [
        get_planner(name).plan(Question(step, budget, case.machine, granule))
        for name, budget in (("naive", most), ("belady", most), ("belady", least),
                             ("capuchin", (least + most) // 2), ("window", most))
    ]  # fmt: skip
    return replace(case, trace=step), plans


def in_order(step: RunnerStep | Release) -> list:
    """Its fields, of sets their members."""
    fields = [getattr(step, name) for name in step.__dataclass_fields__]
    return [sorted(value) if isinstance(value, set) else value for value in fields]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_list_is_laid_out_and_computes_as_it_did(seed):
    case, plans = listed(seed)
    rows = []
    for plan in plans:
        rng = random.Random(seed)
        job = lay_out(case.trace, plan.schedule, rng)
        placed = known.digest(
            [*map(in_order, job.steps.values()), *map(in_order, job.releases), job.start_device,
             job.start_host, job.end_device, job.end_host, job.captures]
        )  # fmt: skip
        start = random_values(case.trace, rng)
        found = interpret(case.trace, plan.schedule, start, rng, shared_link=seed % 2 == 1)
        truth = in_core(case.trace, start)
        assert (found.persistent, found.outputs) == (truth.persistent, truth.outputs)
        rows.append((len(plan.schedule), job.arena_bytes, job.host_arena_bytes, placed,
                     found.physical_peak_bytes, known.digest(truth), rng.random()))  # fmt: skip
    known.check_rows("laid", str(seed), rows)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_changed_list_is_stopped_where_it_was(seed):
    case, plans = listed(seed)
    rows = []
    for plan in plans:
        rng = random.Random(seed)
        for what, changed in mutants(case.trace, plan.schedule, rng, 25):
            try:
                start = random_values(case.trace, rng)
                found = interpret(case.trace, changed, start, rng)
            except LawBroken as error:
                rows.append((what, error.index, error.where))
            except Exception as error:  # a list that is no list
                rows.append((what, type(error).__name__))
            else:
                rows.append(
                    (what, "same", found.persistent == in_core(case.trace, start).persistent)
                )
    stopped = [row for row in rows if row[-1] not in (True, False) and len(row) == 3]
    known.check_rows("stopped", str(seed), [
        (len(rows), len(stopped), known.digest(rows)), *stopped[:12],
    ])  # fmt: skip


@pytest.mark.parametrize("seed", SEEDS)
def test_a_list_is_described_as_it_was(seed):
    case, plans = listed(seed)
    rows = [
        numbers_in(describe_trace(case.trace)),
        numbers_in(describe_trace(case.trace, case.machine)),
    ]
    for plan in plans:
        for index in (None, 0, len(plan.schedule) - 1):
            lines = describe_list(plan.schedule, plan.trace, index)
            rows += [len(lines), numbers_in(lines)]
    known.check_rows("described", str(seed), [(len(rows), known.digest(rows))])


def test_the_chain_of_a_network_is_that_of_its_layers():
    net = nn.Sequential(
        nn.Conv2d(3, 6, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 4, 3),
        nn.Conv2d(4, 2, 1),
    )
    chain = chain_in(trace(net, (2, 3, 20, 14), loss=sum_of_squares, threads=1), 3)
    assert chain.layers == ((5, 1, 2), (2, 2, 0), (3, 1, 0))
    assert chain.cuts == (0, 6, 13, 20)
    assert chain.row_bytes == (3 * 14 * 4, 6 * 14 * 4, 6 * 7 * 4, 4 * 5 * 4)
    assert chain.heights == (20, 20, 10, 8)
    dilated = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 4, 3, dilation=2))
    with pytest.raises(ConfigError) as caught:
        chain_in(trace(dilated, (2, 3, 20, 14), loss=sum_of_squares, threads=1), 2)
    assert caught.value.code == "OOC-119"
