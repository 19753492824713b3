"""Steps are prepared, and tilings offered, as they were: arenas, parts of a promise, estimates.

Laws hold that what is prepared fits and that promises are kept
(`../properties/test_memory_promise.py`); which of the plans that fit is taken, and how much is set
aside, they leave open. `support/known.py` says why the answers stand in a table.
"""

from __future__ import annotations

from dataclasses import astuple

import pytest
from support import known
from support.known_steps import DUPLEX, MACHINE, budget, step
from support.quick import quick

from ooctrain.errors import OoctrainError
from ooctrain.execution.compose import rewritten
from ooctrain.execution.fit import prepare, share_bytes
from ooctrain.execution.prepared_step import PreparedStep, placed
from ooctrain.execution.program import make_program
from ooctrain.execution.promise import OwnShare, expected_lists_bytes, list_bytes, parts_of
from ooctrain.execution.settings import Settings
from ooctrain.rewrite.tile.banded import offers_for
from ooctrain.rewrite.tile.mixed_bands import few_tilings, mixed_tilings, sparing
from ooctrain.rewrite.tile.offers import Offer, OperatorTimes, alive_as_offered
from ooctrain.rewrite.tile.operators import operators_of
from ooctrain.sched.planning.question import Question
from ooctrain.step.trace import Trace

MIB = 1 << 20
ALLOCATORS = ("best-fit", "va:chunk=64KiB", "stalloc")


def settings(**given: object) -> Settings:
    return Settings(**{"threads": 2, "machine": MACHINE, "rewrites": (), **given})  # type: ignore


def row_of(prepared: PreparedStep) -> known.Row:
    plan, promise = prepared.plan, prepared.promise
    program = make_program(plan.trace, plan.schedule, prepared.allocator)
    return (prepared.budget_bytes, prepared.reserved_bytes, prepared.in_core_peak_bytes,
            prepared.host_written_bytes, prepared.predict().makespan_us,
            prepared.predict(DUPLEX).makespan_us, len(prepared.notices), program.peak_bytes,
            known.digest(plan.schedule.to_json()), known.digest(program.steps),
            promise and astuple(promise))  # fmt: skip


def found(make, *about: object) -> known.Row:
    try:
        return *about, *row_of(make())
    except OoctrainError as refusal:
        return *about, refusal.code, known.digest(refusal.numbers)


@pytest.mark.parametrize("allocator", ALLOCATORS)
def test_a_step_is_prepared_as_it_was(allocator):
    rows = []
    for name, planner, share in (("plain", "belady", 0.8), ("blocks", "window", 0.9),
                                 ("worked", "naive", 0.9), ("plain", "hmms", 0.3),
                                 ("everything", "keep-all", None)):  # fmt: skip
        asked = None if share is None else budget(name, share)
        how = settings(allocator=allocator, planner=planner, budget=asked)
        rows.append(found(lambda name=name, how=how: prepare(step(name), how), name, planner))
    plan = prepare(step("plain"), settings(planner="belady", allocator="va")).plan
    rows.append(found(lambda: placed(plan, settings(allocator=allocator)), "placed"))
    rows.append(("share", share_bytes(step("plain"), settings(budget="60%", allocator=allocator))))
    known.check_rows("prepared", allocator, rows)


@pytest.mark.parametrize("name", ["plain", "worked"])
def test_memory_is_divided_as_it_was(name):
    trace, own = step(name), OwnShare(50 * MIB, 3 * MIB, MIB)
    rows: list[known.Row] = [("lists", expected_lists_bytes(trace, own), list_bytes(12_345))]
    for whole in (None, 4, 9):
        rows += [
            ("parts", whole, *astuple(parts_of(trace, 400 * MIB, share, 3, whole)))
            for share in (None, own, OwnShare(MIB, 0))
        ]
    evaluated = rewritten(trace, ("fuse",)).trace
    for memory, kind in ((60 * MIB, "bare"), (320 * MIB, "ample"), ("79MiB", "scarce")):
        how = settings(memory=memory, planner="window", allocator="best-fit", machine=None)
        own_share = None if kind == "ample" else OwnShare(38 * MIB, MIB)
        rows.append(found(lambda how=how, own=own_share: prepare(evaluated, how, own), kind))
    known.check_rows("promises", name, rows)


def offered(trace: Trace, offers: list[Offer]) -> list[known.Row]:
    return [(*offer.rewrites[:1], len(offer.rewrites), offer.work, offer.kept_bytes,
             offer.need_bytes, offer.moves, known.digest(offer),
             number % 3 or alive_as_offered(trace, offer.rewrites))
            for number, offer in enumerate(offers)]  # fmt: skip


@pytest.mark.parametrize("name", quick(["plain", "blocks"], 0))
def test_tilings_are_offered_as_they_were(name):
    trace = step(name)
    operators = operators_of(trace)
    times = OperatorTimes.of(operators, MACHINE)
    rows = offered(trace, offers_for(trace, MACHINE))
    for share in (0.3, 0.6) if name == "blocks" else (0.3,):
        question = Question(trace, budget(name, share), MACHINE, host_budget_bytes=1 << 20)
        mixed = mixed_tilings(operators, times, question)
        fewer = [sparing(operators, times, offer) for offer in mixed]
        rows += [*offered(trace, mixed), *offered(trace, [offer for offer in fewer if offer])]
        rows += offered(trace, few_tilings(operators, times, question))
    known.check_rows("offers", name, rows)
