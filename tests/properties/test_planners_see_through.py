"""Law: a planner that tells operations apart sees what computes, also where it works on parts.

A tiled step runs its operations on some rows of their inputs (`rewrite/tile/on_rows.py`). Here all
operations of a step are wrapped so, on all rows: nothing else differs, so no plan may differ.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
from support.quick import quick

import ooctrain as oc
from ooctrain.errors import Infeasible
from ooctrain.rewrite import apply_rewrites
from ooctrain.rewrite.tile.on_rows import OnRows
from ooctrain.sched.budget import resolve_budget
from ooctrain.sched.planners.registry import get_planner, planners
from ooctrain.sched.planning.question import Question
from ooctrain.sched.schedule import BYTES
from ooctrain.step.machine import Machine
from ooctrain.step.trace import Trace
from ooctrain.tracing import trace

#: Those that ask what an operation is; all others are slow to try and cannot tell.
TELL_APART = ("superneurons", "vdnn-conv", "bn-recompute:swap=belady")
#: They search for seconds.
LONG = ("auto", "checkmate", "combined", "tflms-hybrid")
#: A link that is slow beside the arithmetic, so that who can computes again.
MACHINE = Machine("m", 1e7, 1e6, link_bytes_per_us=100.0, link="duplex")
BUDGETS = ("20%", "50%", "90%")


@cache
def steps(model: str) -> tuple[Trace, Trace]:
    """A step, and the same with every operation wrapped."""
    plain = trace(oc.models.build(model, stem="cifar"), (64, 3, 32, 32), threads=1)
    plain = apply_rewrites(plain, ("fuse", "share_storage"))
    calls = [replace(call, op=OnRows(call.op, (None,) * len(call.ins))) for call in plain.calls]
    return plain, replace(plain, calls=tuple(calls))


def answer(planner: str, step: Trace, budget: str):
    """The list, or what is said instead."""
    machine = oc.machine("v100-pcie")
    try:
        return (
            get_planner(planner)
            .plan(Question(step, resolve_budget(step, budget, BYTES), machine))
            .schedule
        )
    except Infeasible as refusal:
        return refusal.minimum_bytes, refusal.witness_call


def check(planner: str) -> None:
    for model in ("resnet18", "vgg11"):
        plain, wrapped = steps(model)
        differ = [b for b in BUDGETS if answer(planner, plain, b) != answer(planner, wrapped, b)]
        assert not differ, f"{planner} plans otherwise at {differ}"


@pytest.mark.parametrize(
    "planner",
    quick([*TELL_APART, *(n for n in planners() if n not in (*LONG, *TELL_APART))], 0),
)
def test_a_wrapped_operation_is_planned_as_itself(planner):
    check(planner)


@pytest.mark.slow
@pytest.mark.parametrize("planner", TELL_APART)
def test_the_law_bites(planner, monkeypatch):
    monkeypatch.setattr(OnRows, "computes", property(lambda op: op))
    with pytest.raises(AssertionError, match="plans otherwise"):
        check(planner)
