"""The strongest test of the engine: out-of-core is in-core, to the last bit, for real networks.

Swapping only moves bytes, so any tolerance would hide a race. Whatever the planner, the budget, the
allocator, the link, the delays and the number of threads: loss, gradients, parameters, momenta and
running statistics of three steps are those of `run_trace`, which keeps everything in memory.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.quick import quick
from support.same_bits import check_same_bits, in_core, out_of_core

import ooctrain as oc
from ooctrain import nn
from ooctrain.alloc.registry import choose_allocator
from ooctrain.devices.interface import Debug
from ooctrain.engine.incore import initial_values
from ooctrain.execution.fit import prepare
from ooctrain.execution.prepared_step import placed
from ooctrain.execution.settings import Settings
from ooctrain.rewrite import apply_rewrites, keeps_bits
from ooctrain.sched.planners.registry import get_planner
from ooctrain.sched.planning.question import Question

BATCH, CLASSES = 4, 5
#: Every one, those of virtual addressing with chunks that fit the small networks here.
CHUNKED = ("va:chunk=4KiB", "va:chunk=16KiB", "va-paper:chunk=2MiB")
ALLOCATORS = [*CHUNKED, *sorted(set(oc.allocators()) - {"va", "va-paper"})]
DEBUGS = [
    Debug(check_ledger=True),
    Debug(poison=0xFF, check_ledger=True),
    Debug(poison=0x7F),
    Debug(delay_us=400, delay_seed=3),
    Debug(synchronous=True),
]


class Residual(nn.Module):
    """x + f(x): a fork and a join."""

    def __init__(self, body):
        super().__init__()
        self.body = body

    def forward(self, x):
        return oc.functional.relu(self.body(x) + x)


@st.composite
def networks(draw):
    """Small networks of the usual layers, for images of 8 x 8."""
    oc.manual_seed(draw(st.integers(0, 1000)))
    channels, size, layers = 3, 8, []
    for _ in range(draw(st.integers(1, 4))):
        kind = draw(st.sampled_from(["conv", "conv", "norm", "residual", "pool", "dropout"]))
        if kind == "conv":
            out = draw(st.sampled_from([4, 8, 16]))
            layers += [nn.Conv2d(channels, out, 3, padding=1), nn.ReLU()]
            channels = out
        elif kind == "norm":
            layers += [nn.BatchNorm2d(channels), nn.ReLU()]
        elif kind == "residual":
            body = [nn.Conv2d(channels, channels, 3, padding=1, bias=False)]
            layers.append(Residual(nn.Sequential(*body, nn.BatchNorm2d(channels))))
        elif kind == "pool" and size > 2:
            layers.append(draw(st.sampled_from([nn.MaxPool2d, nn.AvgPool2d]))(2))
            size //= 2
        elif kind == "dropout":
            layers.append(nn.Dropout(0.3))
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(channels * size * size, CLASSES))


@st.composite
def ways(draw):
    """How to run: planner, budget, allocator, link, debug mode, threads."""
    return Settings(
        budget=draw(st.sampled_from(["0%", "5%", "30%", "80%", "100%", None])),
        planner=draw(st.sampled_from(["window", "window:size=2", "naive", "auto", "keep-all"])),
        allocator=draw(st.sampled_from(ALLOCATORS)),
        machine=draw(st.sampled_from(["cpu-generic", "v100-pcie"])),
        threads=draw(st.sampled_from([1, 2, 3])),
        link_bandwidth=draw(st.sampled_from([None, None, 200.0, 3000.0])),
        debug=draw(st.sampled_from(DEBUGS)),
        time_limit_s=0.2,
    )


def prepare_or_least(trace, how):
    """The step within the budget, else at the planner's own minimum; None: fragmentation.

    `auto` is asked without bands where it would take them: sums over bands have other bits.
    """
    try:
        try:
            found = prepare(trace, how)
        except oc.Infeasible as refusal:
            found = prepare(trace, replace(how, budget=refusal.minimum_bytes))
    except oc.errors.DoesNotFit:
        return None
    if how.planner != "auto" or keeps_bits(found.plan.rewrites):
        return found
    return prepare_or_least(trace, replace(how, same_bits=True))


def random_batches(count):
    rng = np.random.default_rng(0)
    return [
        (rng.standard_normal((BATCH, 3, 8, 8), np.float32), rng.integers(0, CLASSES, BATCH))
        for _ in range(count)
    ]


@settings(max_examples=20)
@given(networks(), ways())
def test_three_steps_out_of_core_are_three_steps_in_core_to_the_bit(model, how):
    trace = oc.trace(model, (BATCH, 3, 8, 8), threads=how.thread_count)
    start, scalars = initial_values(trace, model), {"lr": 0.05, "seed": 7}
    batches = random_batches(3)
    prepared = prepare_or_least(trace, how)
    if prepared is None:
        assert not how.allocator.startswith("va")  # the others fragment
        return
    found = out_of_core(prepared, how, start, batches, scalars)
    check_same_bits(found, in_core(trace, start, batches, scalars, how.thread_count))


@pytest.mark.parametrize("rewrites", [("fuse", "share_storage"), ("fuse",)])
@pytest.mark.parametrize("allocator", quick(ALLOCATORS, *range(0, len(ALLOCATORS), 2)))
def test_every_allocator_trains_to_the_bit_in_an_arena_of_its_reserved_peak(allocator, rewrites):
    """The smallest plan, placed by each allocator: holes may cost memory, never a bit.

    Without `share_storage` updates are not in place, and parameters move from step to step.
    """
    if allocator == "bump" and "share_storage" not in rewrites:
        return  # they climb, as its file says
    oc.manual_seed(3)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1),
        nn.ReLU(), nn.Flatten(), nn.Linear(8 * 64, CLASSES),
    )  # fmt: skip
    trace = oc.trace(model, (BATCH, 3, 8, 8), threads=1)
    how = Settings(
        allocator=allocator, planner="naive", threads=1, budget="0%", rewrites=rewrites,
        debug=Debug(poison=0xFF, check_ledger=True),
    )  # fmt: skip
    granule = choose_allocator(allocator, 1 << 24, binding=False).granule
    rewritten = apply_rewrites(trace, rewrites)
    with pytest.raises(oc.Infeasible) as refusal:
        get_planner("naive").plan(Question(rewritten, 1, how.find_machine(), granule=granule))
    least = refusal.value.minimum_bytes
    plan = get_planner("naive").plan(
        Question(rewritten, least, how.find_machine(), granule=granule)
    )
    start, scalars = initial_values(trace, model), {"lr": 0.05, "seed": 7}
    batches = random_batches(4)
    found = out_of_core(placed(plan, how), how, start, batches, scalars)
    check_same_bits(found, in_core(trace, start, batches, scalars, 1))


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.slow
@pytest.mark.parametrize("planner", ["window", "naive"])
def test_resnet_block_by_block_at_the_smallest_budget(planner, optimizer):
    """A CIFAR ResNet-18 step at its planner's own minimum: everything that can move, moves."""
    oc.manual_seed(1)
    model = oc.models.build("resnet18", num_classes=CLASSES, stem="cifar")
    trace = oc.trace(model, (2, 3, 8, 8), optimizer=optimizer, threads=1)
    start, scalars = initial_values(trace, model), {"lr": 0.01, "seed": 0}
    debug = Debug(poison=0xFF, check_ledger=True)
    how = Settings(budget="0%", planner=planner, threads=1, debug=debug)
    prepared = prepare_or_least(trace, how)
    rng = np.random.default_rng(2)
    x, y = rng.standard_normal((2, 3, 8, 8), np.float32), rng.integers(0, CLASSES, 2)
    found = out_of_core(prepared, how, start, [(x, y), (x, y)], scalars)
    check_same_bits(found, in_core(trace, start, [(x, y), (x, y)], scalars, 1))
    assert prepared.plan.peak_bytes < prepared.in_core_peak_bytes
