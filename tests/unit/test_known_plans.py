"""Planners answer known questions as they did: the same bytes, the same time, the same list.

That a plan is legal and what it claims is true, laws hold for any planner. That a planner still
finds the plans that it found is held here, for each planner on a few steps under three budgets:
rules of thumb, tie breaks and orders in which things are tried have no other judge.
`support/known.py` says
why and how to write the tables anew.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from random import Random

import numpy as np
import pytest
from support import known
from support.known_steps import DUPLEX, MACHINE, MAKERS, budget, step
from support.quick import every

from ooctrain.errors import Infeasible
from ooctrain.execution.planners import PLANNERS, get_planner
from ooctrain.sched.bounds.closed import (
    arrivals_us,
    compute_us,
    first_wait_us,
    lower_bound,
    per_call_link_us,
    proposition_3_us,
)
from ooctrain.sched.bounds.lp_bound import fluid_bound
from ooctrain.sched.budget import trace_minimum_bytes, trace_peak_bytes
from ooctrain.sched.planning.effort import Effort
from ooctrain.sched.planning.question import Question
from ooctrain.sched.schedule import BYTES, Granule, Run, SwapIn, SwapOut
from ooctrain.sched.simulate import simulate
from ooctrain.step.chain import chain
from ooctrain.step.machine import Machine
from ooctrain.step.trace import Trace
from ooctrain.testing.random_traces import random_machine, random_trace

#: They solve programs with a solver of others, and the plan is the solver's.
LEFT_OUT = {"checkmate", "checkmate-lp"}
#: More of some planners than their defaults.
WITH_PARAMETERS = ()
SPECS = [name for name in PLANNERS if name not in LEFT_OUT] + list(WITH_PARAMETERS)
SHARES = (0.5, 0.8)
EVALUATIONS = 40
GRANULES = {"bytes": BYTES, "whole": Granule(512, ranges=False), "pages": Granule(4096)}


def answer(name: str, share: float, spec: str, form: str, host_bytes: int | None) -> known.Row:
    machine = MACHINE if form == "bytes" else DUPLEX
    asked = Question(
        step(name), budget(name, share), machine, GRANULES[form], host_budget_bytes=host_bytes,
        effort=Effort(EVALUATIONS),
    )  # fmt: skip
    about = share, form, host_bytes
    try:
        plan = get_planner(spec).plan(asked)
    except Infeasible as refusal:
        return *about, "at least", refusal.minimum_bytes or 0, refusal.witness_call
    listed = plan.schedule.instructions
    out = sum(i.hi - i.lo for i in listed if isinstance(i, SwapOut))
    back = sum(i.hi - i.lo for i in listed if isinstance(i, SwapIn))
    took_us = simulate(plan.schedule, plan.trace, machine).makespan_us
    notes = {key: value for key, value in plan.notes.items() if not key.endswith("_s")}
    return (*about, plan.peak_bytes, plan.host_peak_bytes, took_us, out, back,
            sum(isinstance(i, Run) for i in listed), known.digest(plan.schedule.to_json()),
            known.digest(notes))  # fmt: skip


QUESTIONS = {
    "plain": [(0.1, "bytes", None), (0.3, "whole", None), (0.5, "bytes", None),
              (0.75, "bytes", None), (1.0, "pages", None), (0.75, "whole", None),
              (0.6, "bytes", 100_000)],
    "blocks": [(0.1, "bytes", None), (0.4, "bytes", 10_000), (0.6, "bytes", None),
               (0.8, "pages", None), (0.7, "bytes", 150_000), (1.0, "whole", None)],
    "random": [(0.8, "bytes", None), (1.0, "bytes", None)],
    "worked": [(0.85, "bytes", None), (1.0, "bytes", None)],
    "everything": [(0.7, "bytes", None)],
}  # fmt: skip
#: What these search takes longer than all others together.
DEAR = {"auto", "banded", "combined"}
ASKED = [
    (spec, name) for name in QUESTIONS for spec in SPECS
    if spec not in DEAR or name in ("worked", "random") or (spec, name) == ("banded", "plain")
]  # fmt: skip


@pytest.mark.parametrize(("spec", "name"), every(ASKED, 3, names=2))
def test_a_planner_answers_as_it_did(spec, name):
    asked = QUESTIONS[name][2:4] if (spec, name) == ("banded", "plain") else QUESTIONS[name]
    rows = [answer(name, share, spec, form, host) for share, form, host in asked]
    known.check_rows("plans", f"{spec} of {name}", rows)


#: (number of a random step, its granule, the share of the way from its least bytes to its peak,
#: host bytes). The odd ones are chains, which the planners of papers are for.
MANY = [
    (seed, form, share, host)
    for seed in range(8)
    for form, share, host in (("bytes", 0.15, None), ("bytes", 0.6, 700), ("coarse", 0.4, None))
]


@cache
def small_step(seed: int) -> tuple[Trace, Machine]:
    """A random step of eight to nineteen calls and some hundred bytes, and a random machine."""
    rng = Random(seed)
    machine = random_machine(rng, interference=True)
    if seed % 2 == 0:
        return random_trace(rng, calls=8 + seed, max_bytes=64), machine
    stages = 3 + seed // 2
    sizes = [[rng.randint(1, 90) for _ in range(stages + 1)] for _ in range(2)]
    times = [[rng.randint(1, 40) / 2 for _ in range(stages)] for _ in range(2)]
    extra = [[rng.choice((0, 0, 30)) for _ in range(stages)] for _ in range(2)]
    return chain(*sizes, *times, *extra), machine


@pytest.mark.parametrize("spec", [spec for spec in SPECS if spec not in DEAR])
def test_a_planner_plans_many_small_steps_as_it_did(spec):
    """One row for all: how many have a plan, their bytes and times, and a digest of their lists."""
    found = []
    for seed, form, share, host in MANY:
        trace, machine = small_step(seed)
        granule = BYTES if form == "bytes" else Granule(8, ranges=False)
        least, most = trace_minimum_bytes(trace, granule), trace_peak_bytes(trace, granule)
        bytes_ = round(least + share * (most - least))
        asked = Question(trace, bytes_, machine, granule, host_budget_bytes=host,
                         effort=Effort(EVALUATIONS))  # fmt: skip
        try:
            plan = get_planner(spec).plan(asked)
        except Infeasible as refusal:
            found.append((0, 0.0, (refusal.minimum_bytes, refusal.witness_call)))
            continue
        notes = {key: value for key, value in plan.notes.items() if not key.endswith("_s")}
        found.append((plan.peak_bytes, plan.makespan_us, (plan.schedule.to_json(), notes)))
    peaks, times, lists = zip(*found, strict=True)
    known.check_rows("plans", f"{spec} of many", [
        (sum(map(bool, peaks)), sum(peaks), sum(times), known.digest(lists))
    ])  # fmt: skip


@pytest.mark.parametrize("name", MAKERS)
def test_bounds_are_what_they_were(name):
    rows = []
    for machine in (MACHINE, DUPLEX):
        trace = step(name)
        whole = compute_us(trace, machine), arrivals_us(trace, machine)
        rows.append(("any", machine.name, *whole, first_wait_us(trace, machine)))
        for share in SHARES:
            bytes_ = budget(name, share)
            link = [per_call_link_us(trace, bytes_, machine, recompute=r) for r in (False, True)]
            best = [lower_bound(trace, bytes_, machine, recompute=r) for r in (False, True)]
            rows.append((share, machine.name, proposition_3_us(trace, bytes_, machine), *link,
                         *(bound.makespan_us for bound in best)))  # fmt: skip
    known.check_rows("bounds", name, rows)


CHAINS = (1, 3, 5, 7)


@pytest.mark.parametrize("seed", CHAINS)
def test_bounds_of_small_steps_are_what_they_were(seed):
    """On a slow link, beyond the work: closed bounds and a linear program, of three budgets."""
    trace, machine = small_step(seed)
    slow = replace(machine, link_bytes_per_us=0.3, link_in_bytes_per_us=0.4)
    least, most = trace_minimum_bytes(trace), trace_peak_bytes(trace)
    rows = []
    for again, stays in ((False, False), (True, False), (True, True)):
        found = np.zeros(4)
        for share in (0.0, 0.3, 0.7):
            asked = trace, round(least + share * (most - least)), slow
            program = fluid_bound(*asked, recompute=again, resident=stays, host_budget_bytes=500)
            found += (per_call_link_us(*asked, recompute=again), proposition_3_us(*asked),
                      lower_bound(*asked, recompute=again).makespan_us,
                      program.dual_us if program else -1)  # fmt: skip
        beyond = found - 3 * compute_us(trace, slow)
        rows.append((again, stays, *(f"{value:.4f}" for value in beyond)))
    known.check_rows("bounds", f"small {seed}", rows)


def test_every_row_is_of_a_planner():
    many = {f"{spec} of many" for spec in SPECS if spec not in DEAR}
    assert known.whose("plans") == {f"{spec} of {name}" for spec, name in ASKED} | many
    assert known.whose("bounds") == {*MAKERS, *(f"small {seed}" for seed in CHAINS)}


def test_another_number_is_noticed():
    """The judge itself: of the rows of a table one number is another, or a row is missing."""
    rows = [row[1:] for row in known.read(known.FOLDER / "bounds.csv") if row[0] == "plain"]
    known.check_rows("bounds", "plain", rows)
    wrong = [*rows[:-1], [*rows[-1][:-1], float(rows[-1][-1]) * 1.000001]]
    for other in (wrong, rows[:-1], [*rows, rows[0]]):
        with pytest.raises(AssertionError):
            known.check_rows("bounds", "plain", other)
