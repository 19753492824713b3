"""Runs that compute dropped values again: inputs are there, and the bits are the same."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from support.strategies import SEEDS, machines, traces

import ooctrain as oc
from ooctrain.errors import Infeasible
from ooctrain.rewrite import apply_rewrites
from ooctrain.sched.planners.tflms_hybrid import calls_added
from ooctrain.sched.planning.decisions import Decisions, lives, runs_once
from ooctrain.sched.planning.lower import lower
from ooctrain.sched.planning.rematerialise import droppable, last_forward_use, rematerialise
from ooctrain.sched.verify import verify
from ooctrain.testing.interpreter import in_core, interpret
from ooctrain.testing.random_traces import random_values


@pytest.fixture(scope="module")
def chain():
    """Stages 0 to 4; `F_i` reads x_i and writes x_{i+1}, `B_i` reads x_i, x_{i+1}, y_{i+1}."""
    return oc.chain([8] * 6, [8] * 6, [2] * 5, [3] * 5, [0] * 5, [0] * 5)


def names(trace, runs):
    return [trace.calls[run.call].name for run in runs]


def by_name(trace, *wanted):
    return [trace.variable_by_name[name].id for name in wanted]


def test_nothing_dropped_runs_every_call_once(chain):
    assert [run.call for run in rematerialise(chain, ())] == [c.id for c in chain.calls]
    assert all(run.keep is None for run in rematerialise(chain, ()))


def test_a_dropped_value_is_computed_right_before_its_next_use(chain):
    order = names(chain, rematerialise(chain, by_name(chain, "x3")))
    added = [place for place, name in enumerate(order) if name == "F2"][1]
    assert Counter(order)["F2"] == 2
    assert len(order) == len(chain.calls) + 1
    assert order[added + 1] == "B3"


def test_sources_that_are_gone_come_first_depth_first(chain):
    order = names(chain, rematerialise(chain, by_name(chain, "x2", "x3", "x4")))
    backward = order[order.index("loss") + 1 :]
    assert backward[:4] == ["F1", "F2", "F3", "B4"]
    assert Counter(order) == Counter([*names(chain, runs_once(chain)), "F1", "F2", "F3"])


def test_a_value_dropped_again_and_again_costs_a_run_for_each_use(chain):
    dropped = by_name(chain, "x2", "x3")
    once = Counter(names(chain, rematerialise(chain, dropped)))
    often = Counter(names(chain, rematerialise(chain, dropped, again=dropped)))
    assert once["F1"] == 2
    assert often["F1"] > once["F1"]


def test_an_unread_value_stays_for_the_next_call_and_no_longer():
    model = oc.models.build("resnet18", num_classes=10, stem="cifar")
    trace = apply_rewrites(oc.trace(model, (4, 3, 32, 32)), ("fuse", "share_storage"))
    dropped = by_name(trace, "layer1.0.conv1.out", "layer1.0.relu.out")
    again = names(trace, rematerialise(trace, dropped, again=dropped))
    unread = names(trace, rematerialise(trace, dropped, unread=dropped))
    norm = again[again.index("layer1.0.bn1.grad_reduce") :]
    assert norm[1:4] == ["layer1.0.conv1.fwd", "layer1.0.bn1.fwd", "layer1.0.bn1.grad_input"]
    norm = unread[unread.index("layer1.0.bn1.grad_reduce") :]
    assert norm[1] == "layer1.0.bn1.grad_input"
    # The weight gradient of conv2 comes earlier: bn1 runs once for it, and once for the norm.
    assert Counter(unread)["layer1.0.bn1.fwd"] == Counter(again)["layer1.0.bn1.fwd"] - 1 == 3


def test_droppable_values_are_read_after_the_forward_pass():
    model = oc.models.build("resnet18", num_classes=10, stem="cifar")
    trace = apply_rewrites(oc.trace(model, (64, 3, 32, 32)), ("fuse", "share_storage"))
    values = droppable(trace)
    assert values
    for var in values:
        assert trace.uses[var][-1] > last_forward_use(trace, var)
    assert len(rematerialise(trace, values)) > len(trace.calls)
    assert least_bytes(trace, rematerialise(trace, values[::2])) < least_bytes(
        trace, runs_once(trace)
    )


def least_bytes(trace, runs):
    with pytest.raises(Infeasible) as refused:
        lower(Decisions(runs), trace, 0, oc.machine("v100-pcie"))
    return refused.value.minimum_bytes


@settings(max_examples=200)
@given(traces(), machines(), SEEDS)
def test_any_choice_gives_legal_lists_and_the_same_values(trace, machine, seed):
    rng = random.Random(seed)
    values = droppable(trace)
    dropped = [v for v in values if rng.random() < 0.7]
    again = [v for v in dropped if rng.random() < 0.4]
    unread = [v for v in dropped if rng.random() < 0.4]
    held = [v.id for v in trace.variables if rng.random() < 0.3]
    runs = rematerialise(trace, dropped, again=again, unread=unread, held=held)
    lives(trace, runs)
    assert list(dict.fromkeys(run.call for run in runs)) == [call.id for call in trace.calls]
    budget_bytes = least_bytes(trace, runs)
    schedule = lower(Decisions(runs), trace, budget_bytes, machine)
    verify(schedule, trace, budget_bytes)
    start = random_values(trace, rng)
    outcome = interpret(trace, schedule, start, rng, shared_link=machine.link == "shared")
    assert outcome.persistent == in_core(trace, start).persistent


@settings(max_examples=150)
@given(traces(max_calls=24), SEEDS)
def test_the_calls_that_are_added_are_found_without_a_walk_over_the_step(trace, seed):
    rng = random.Random(seed)
    may = droppable(trace)
    dropped = [var for var in may if rng.random() < rng.choice([0.2, 0.6, 1.0])]
    seen, again = -1, []
    for run in rematerialise(trace, dropped):
        again += [run.call] if run.call <= seen else []
        seen = max(seen, run.call)
    assert calls_added(trace, dropped) == again
