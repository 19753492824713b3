"""The least budget of a refusal does: asked for again with the same arguments, it gives a plan.

Random steps, machines, granules, budgets of device and host; every planner and every allocator by
name. A refusal either names a budget that has been tried, or says that none is known (None). Where
only the list counts and the host has room, what it names is the least: a byte less is refused with
the same code and number. With an allocator, or a host that is too small, plans need not get easier
with every byte, and what is named is the least of those that were tried. And what the
LP bound says of a host budget is said of the plans that keep to it.
"""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from support.quick import quick

import ooctrain as oc
from ooctrain.cli import main
from ooctrain.errors import DoesNotFit
from ooctrain.sched.planners.naive import Naive
from ooctrain.sched.planners.superneurons import SuperNeurons
from ooctrain.sched.planning.question import Question
from ooctrain.sched.schedule import BYTES
from ooctrain.testing.random_traces import random_machine, random_trace
from ooctrain.units import Granule

MORE = ("window:size=1", "window:persistent=host", "banded:planner=belady", "combined:forms=false")


def random_question(seed: int, *, allocators: bool) -> tuple[oc.Trace, int, str, dict]:
    """A trace, a budget, a planner and the other arguments of `oc.plan`; planners and allocators in
    turn.
    """
    rng = random.Random(seed)
    trace = random_trace(rng, calls=rng.randint(2, 5), max_bytes=rng.choice([8, 24, 300]))
    if rng.random() < 0.3:
        sizes = [[rng.randint(1, 100) for _ in range(5)] for _ in range(2)]
        extra = [[rng.randint(0, 40)] * 4 for _ in range(2)]
        trace = oc.chain(*sizes, [10] * 4, [20] * 4, *extra)
    granule = rng.choice([BYTES, BYTES, Granule(4), Granule(64, True)])
    peak = oc.trace_peak_bytes(trace, granule)
    host = rng.choice([None, 0, rng.randint(0, 50), peak // 4, peak])
    budget = max(1, rng.choice([1, peak // 4, peak // 2, peak * 3 // 4]))
    names = [*oc.planners(), *MORE]
    planner = names[seed % len(names)]
    more = {"machine": random_machine(rng), "host_budget": host, "rewrites": (), "evaluations": 5}
    places = oc.allocators()
    more |= {"allocator": places[seed % len(places)]} if allocators else {"granule": granule}
    return trace, budget, planner, more


def check(seed: int, *, allocators: bool) -> str:
    """Puts a random question. What came of it, in a word."""
    trace, budget, planner, more = random_question(seed, allocators=allocators)
    try:
        oc.plan(trace, budget, planner, **more)
    except (oc.Infeasible, DoesNotFit) as refusal:
        least, of_slab, code = refusal.minimum_bytes, refusal.needs == "host", refusal.code
    else:
        return "plan"
    if not least:
        return "none known"
    if of_slab:
        oc.plan(trace, budget, planner, **{**more, "host_budget": least})
        return "slab does"
    plan = oc.plan(trace, least, planner, **more)
    assert plan.peak_bytes <= least
    oc.verify(plan, trace, least)
    if allocators or more["host_budget"] is not None:
        return "does"
    with pytest.raises(oc.Infeasible) as less:
        oc.plan(trace, least - 1, planner, **more)
    assert (less.value.code, less.value.minimum_bytes) == (code, least)
    return "is the least"


def test_of_lists() -> None:
    found = [check(seed, allocators=False) for seed in range(70)]
    assert found.count("does") > 15
    assert found.count("is the least") > 5
    assert found.count("none known") < 20


def test_with_allocators() -> None:
    found = [check(seed, allocators=True) for seed in range(25)]
    assert found.count("does") > 15


@pytest.mark.slow
def test_of_many() -> None:
    for seed in range(1000, 1800):
        check(seed, allocators=seed % 5 == 0)


@pytest.mark.parametrize("host", quick(["0", "20KiB"], 1))
@pytest.mark.parametrize("planner", ["window", "naive", "superneurons"])
def test_of_the_command(planner: str, host: str, tmp_path: Path) -> None:
    """The budget that `plan` prints fits when it is given."""
    path = tmp_path / "plan.json"
    words = ["plan", "lenet", "--batch", "4", "--planner", planner, "--host-budget", host]
    words += ["--json", str(path), "--budget"]
    assert main([*words, "1KiB"]) != 0
    least = json.loads(path.read_text(encoding="utf-8"))["minimum_bytes"]
    if least:
        assert main([*words, str(least)]) == 0


def test_the_bound_reads_a_host_budget_as_plans_do() -> None:
    """A host budget below the inputs means the inputs and nothing else."""
    tried = 0
    for seed in range(40):
        rng = random.Random(seed)
        trace, machine = random_trace(rng, calls=4, max_bytes=24), random_machine(rng)
        budget = rng.choice([oc.trace_peak_bytes(trace), oc.trace_minimum_bytes(trace)])
        for host in (0, 1, 10**6):
            bound = oc.fluid_bound(trace, budget, machine, host_budget_bytes=host)
            try:
                plan = oc.plan(trace, budget, "prefix", machine, host_budget=host, rewrites=())
            except oc.Infeasible:
                continue
            assert bound is not None
            assert bound.makespan_us <= plan.makespan_us * (1 + 1e-9)
            tried += 1
    assert tried > 60


def test_a_question_with_an_answer_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, plan = [], Naive.plan

    def counted(*arguments: object, **options: object) -> oc.Plan:
        asked.append(arguments)
        return plan(*arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(Naive, "plan", counted)
    trace = random_trace(random.Random(1), calls=4, max_bytes=24)
    oc.plan(trace, oc.trace_peak_bytes(trace), "naive", rewrites=())
    assert len(asked) == 1


class InTurns:
    """Has a plan at every seventh budget, some of them, and remembers which were tried."""

    name = "in-turns"

    def __init__(self, like: int):
        self.like, self.tried = like, dict[int, bool]()

    def plan(self, question: Question) -> oc.Plan:
        does = question.budget_bytes % 7 == self.like % 7
        self.tried[question.budget_bytes] = False
        if not does:
            raise oc.Infeasible("no", minimum_bytes=11)
        plan = SuperNeurons().plan(question)
        self.tried[question.budget_bytes] = True
        return plan


def test_what_lies_between_two_tries_is_not_guessed() -> None:
    """Budgets that do and do not, in turns: the answer is one of those that were tried and did."""
    trace = random_trace(random.Random(2), calls=6, max_bytes=300)
    peak = oc.trace_peak_bytes(trace)
    for like in (peak, peak + 1):
        planner = InTurns(like)
        with pytest.raises(oc.Infeasible) as refused:
            oc.plan(trace, 1 + like % 7 + 1, planner, rewrites=(), host_budget=0)
        least = refused.value.minimum_bytes
        if like == peak:
            assert least is not None
            assert planner.tried[least]
        else:
            assert least is None, "neither what is named nor the in-core peak does"
            assert refused.value.needs == "host"


@pytest.mark.parametrize(
    ("allocator", "shares"), quick([("bump", (20, 50, 90)), ("buddy", (0, 10))], 0, names=2)
)
def test_an_allocator_without_a_place_names_an_arena_that_does(
    allocator: str, shares: tuple[int, ...]
) -> None:
    """It named none: "a larger budget". Whatever was asked, it is the same one."""
    oc.manual_seed(0)
    convolutions = [layer for _ in range(4) for layer in (oc.nn.Conv2d(8, 8, 3), oc.nn.ReLU())]
    model = oc.nn.Sequential(oc.nn.Conv2d(3, 8, 3), *convolutions, oc.nn.Flatten())
    trace, how = oc.trace(model, (4, 3, 32, 32), threads=1), ("window", "cpu-generic")
    named = set()
    for share in shares:
        with pytest.raises(DoesNotFit) as refused:
            oc.plan(trace, f"{share}%", *how, allocator=allocator)
        named.add(refused.value.minimum_bytes)
    (least,) = named
    assert least is not None
    assert oc.plan(trace, least, *how, allocator=allocator).peak_bytes <= least
