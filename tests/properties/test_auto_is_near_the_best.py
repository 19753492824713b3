"""`auto` takes at most 3 % longer than any planner that keeps the bits, whatever the host holds.

Small random steps are where planners differ most: each is the best somewhere, and nothing is near
the bound. So all are asked one by one, with as many evaluations as `auto` has. Real networks are
tried too, where the host holds all, a slow disk is the host, or nothing but the inputs may wait
there. Read next: `benchmarks/bench_frontier.py`, which executes such points.
"""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.directed import always
from support.tiny_steps import tiny_step
from zoo.planting import plant

import ooctrain as oc
from ooctrain.errors import ConfigError, Infeasible
from ooctrain.rewrite import apply_rewrites
from ooctrain.sched.budget import input_bytes, resolve_budget, trace_minimum_bytes, trace_peak_bytes
from ooctrain.sched.planners import auto
from ooctrain.sched.planners.portfolio import Portfolio
from ooctrain.sched.planners.registry import PLANNERS, get_planner
from ooctrain.sched.planning.effort import Effort
from ooctrain.sched.planning.question import Question
from ooctrain.sched.schedule import BYTES, Granule
from ooctrain.step.presets import on_disk
from ooctrain.testing.random_traces import random_machine, random_trace

MOST = 1.03
EVALUATIONS = 200
OTHERS = [name for name in PLANNERS if name != "auto"]
#: They search for minutes in a step of hundreds of calls.
LONG = ("checkmate", "checkmate-lp")


def question_of(seed: int) -> Question:
    """A small step; a budget from the least that it needs to in-core; the host full or empty."""
    rng = random.Random(seed)
    if rng.random() < 1 / 3:
        trace = tiny_step(rng, most_stages=rng.randint(2, 6))
    else:
        trace = random_trace(
            rng, calls=rng.randint(3, 14), max_bytes=rng.choice([4, 24, 200]), duration_ns=20_000
        )
    machine, granule = random_machine(rng), rng.choice([BYTES, Granule(1, ranges=False)])
    budget = rng.randint(trace_minimum_bytes(trace, granule), trace_peak_bytes(trace, granule))
    host = rng.choice([None, input_bytes(trace)])
    return Question(trace, budget, machine, granule, host, effort=Effort(EVALUATIONS))


def step_us(name: str, question: Question) -> float:
    """Infinite where there is no plan."""
    try:
        return get_planner(name).plan(question).makespan_us
    except (Infeasible, ConfigError):  # ConfigError: the step is too long for this one
        return float("inf")


def ahead_of_auto(question: Question, others=OTHERS) -> list[str]:
    """Planners that are faster than `auto` by more than 3 %."""
    own_us = step_us("auto", question)
    return [name for name in others if MOST * step_us(name, question) < own_us]


#: Before this law `auto` was 15 % behind `checkmate-lp`; had no plan, where `combined` had one; was
#: 5 % behind `pofo`; and 12, 19 and 12 % behind `checkmate`, where the host has room. In the last
#: one `combined` is 17 % ahead of all that is asked in chunks.
KNOWN = [(12,), (19,), (30,), (253,), (295,), (386,), (184,)]
#: Where all fits, `auto` was 12 % behind `belady`, whose inputs come in beside the calls, and 16 %
#: behind `prefix`, which makes room for them.
ALL_FITS = [(53,), (37779,)]


@pytest.mark.slow
@settings(max_examples=60)
@always(KNOWN)
@given(st.integers(0, 2**32 - 1))
def test_nobody_is_faster_by_more_than_3_percent(seed):
    assert not ahead_of_auto(question_of(seed))


@settings(max_examples=4)
@always(ALL_FITS)
@given(st.integers(0, 2**32 - 1))
def test_nobody_is_faster_where_all_fits(seed):
    asked = question_of(seed)
    peak = trace_peak_bytes(asked.trace, asked.granule)
    asked = replace(asked, budget_bytes=peak, host_budget_bytes=None)
    assert not ahead_of_auto(asked, [name for name in OTHERS if name not in (*LONG, "combined")])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("owner", "name", "piece", "wrong"),
    [
        (auto, "_in_bytes", "if wasted(question):", "if False:"),
        (auto, "_rest", "if race.calls <= SHORT_STEP:", "if False:"),
        (Portfolio, "run", "if entry.gain * cost_us < self.best_us:", "if self.best is None:"),
    ],
)
def test_a_planted_bug_is_found(monkeypatch, owner, name, piece, wrong):
    right = getattr(owner, name)
    planted = plant(monkeypatch, owner, name, piece, wrong)
    for table in ("QUICK", "THOROUGH"):  # which have the function by value
        stages = (
            stage._replace(turns=planted) if stage.turns is right else stage
            for stage in getattr(auto, table)
        )
        monkeypatch.setattr(auto, table, tuple(stages))
    assert any(ahead_of_auto(question_of(*case)) for case in KNOWN)


@pytest.mark.slow
@pytest.mark.parametrize("host", ["none", "disk", "host"])
@pytest.mark.parametrize("budget", ["60%", "30%", "10%"])
@pytest.mark.parametrize(
    ("network", "shape"), [("resnet18", (16, 3, 32, 32)), ("unet", (2, 3, 64, 64))]
)
def test_nobody_is_faster_on_real_networks(network, shape, budget, host):
    model = oc.models.build(network, stem="cifar")
    trace = apply_rewrites(oc.trace(model, shape), ("fuse", "share_storage"))
    machine = oc.machine("cpu-generic")
    question = Question(
        trace, resolve_budget(trace, budget), on_disk(machine) if host == "disk" else machine,
        host_budget_bytes=input_bytes(trace) if host == "none" else None, effort=Effort(2000),
    )  # fmt: skip
    assert not ahead_of_auto(question, [name for name in OTHERS if name not in LONG])


@pytest.mark.slow
def test_room_on_the_host_makes_no_plan_slower():
    """U-Net within 30 % took 5 % longer with the host than without it."""
    trace = apply_rewrites(
        oc.trace(oc.models.build("unet", stem="cifar"), (2, 3, 64, 64)), ("fuse", "share_storage")
    )
    alone = Question(
        trace, resolve_budget(trace, "30%"), oc.machine("cpu-generic"),
        host_budget_bytes=input_bytes(trace), effort=Effort(2000),
    )  # fmt: skip
    beside = replace(alone, host_budget_bytes=None)
    assert step_us("auto", beside) <= MOST * step_us("auto", alone)
