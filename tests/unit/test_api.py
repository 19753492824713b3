"""The short names as an outsider uses them: names for machines, rubbish for plans, odd threads."""

from __future__ import annotations

import inspect
import pickle
from functools import cache

import numpy as np
import pytest

import ooctrain as oc
from ooctrain.errors import ConfigError, Infeasible, PlanMismatch, ShapeError
from ooctrain.execution.fit import prepare
from ooctrain.execution.settings import Settings
from ooctrain.testing import check_allocator, check_planner

CLASSES, BATCH = 4, 8
MACHINE = oc.machine("v100-pcie")


def small_model() -> oc.nn.Module:
    oc.manual_seed(5)
    return oc.nn.Sequential(
        oc.nn.Conv2d(3, 16, 3, padding=1), oc.nn.BatchNorm2d(16), oc.nn.ReLU(),
        oc.nn.Conv2d(16, 32, 3, padding=1), oc.nn.ReLU(), oc.nn.AdaptiveAvgPool2d(1),
        oc.nn.Flatten(), oc.nn.Linear(32, CLASSES),
    )  # fmt: skip


def batch() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(2)
    x = rng.normal(size=(BATCH, 3, 12, 12)).astype(np.float32)
    return x, rng.integers(0, CLASSES, BATCH)


def small_trace(threads: int | None = None) -> oc.Trace:
    return oc.trace(small_model(), (BATCH, 3, 12, 12), threads=threads)


def test_simulate_takes_a_name_a_machine_or_none():
    trace = small_trace()
    plan = oc.plan(trace, "50%", machine="v100-pcie")
    by_name = oc.simulate(plan.schedule, plan.trace, "v100-pcie")
    assert by_name == oc.simulate(plan.schedule, plan.trace, MACHINE)
    assert by_name == oc.simulate(plan, plan.trace, MACHINE)
    assert by_name.makespan_us == plan.makespan_us
    assert oc.simulate(plan.schedule, plan.trace).peak_bytes == plan.peak_bytes


@pytest.mark.parametrize("allocator", ["va", "va:chunk=4KiB", "best-fit"])
def test_measured_peak_is_that_of_the_plan_in_the_granule_of_the_plan(allocator):
    plan = oc.plan(small_trace(), "30%", planner="window")
    run = oc.execute(plan, small_model(), batch(), allocator=allocator)
    assert run.timeline.peak_bytes == plan.peak_bytes


#: Plan the same network many times over.
LONG = ("auto", "checkmate", "combined", "tflms-hybrid")


@pytest.mark.parametrize(
    "planner",
    [pytest.param(p, marks=pytest.mark.slow if p in LONG else ()) for p in oc.planners()],
)
def test_a_plan_for_an_allocator_runs_on_it_whoever_made_it(planner):
    """README's example, with each planner in place of "window"."""
    trace, options = small_trace(), {"planner": planner, "allocator": "va", "time_limit_s": 0.5}
    try:
        plan = oc.plan(trace, "30%", **options)
    except Infeasible as refused:
        plan = oc.plan(trace, refused.minimum_bytes, **options)
    chunk = plan.schedule.granule.size_bytes
    assert (chunk, plan.schedule.granule.ranges) == (64 << 10, True)
    run = oc.execute(plan, small_model(), batch(), allocator="va")
    assert run.loss == loss_in_core()
    assert run.timeline.peak_bytes == plan.peak_bytes


@cache
def loss_in_core():
    return oc.execute(oc.plan(small_trace(), "100%", "keep-all"), small_model(), batch()).loss


@pytest.mark.parametrize("allocator", ["va", "va:chunk=8KiB", "best-fit"])
def test_a_plan_to_the_byte_says_how_to_plan_for_the_allocator(allocator):
    trace = small_trace()
    with pytest.raises(PlanMismatch) as refused:
        oc.execute(oc.plan(trace, "90%", "belady"), small_model(), batch(), allocator=allocator)
    assert refused.value.code == "OOC-210"
    assert refused.value.fix == f'oc.plan(..., allocator="{allocator}")'
    plan = oc.plan(trace, "90%", "belady", allocator=allocator)
    oc.verify(plan, trace, "90%")
    oc.execute(plan, small_model(), batch(), allocator=allocator)


def test_a_plan_for_an_allocator_is_the_one_that_is_trained_with():
    trace = small_trace()
    plan = oc.plan(trace, "30%", "belady", allocator="va")
    assert plan == prepare(trace, Settings(budget="30%", planner="belady")).plan
    assert plan != oc.plan(trace, "30%", "belady")


def test_an_arena_takes_chunks_no_larger_than_those_of_the_plan(monkeypatch):
    """They grow with the arena, for a system maps only so many: 15 here."""
    for room in ("registry", "virtual"):
        monkeypatch.setattr(f"ooctrain.alloc.{room}.max_mapped_chunks", lambda: 15)
    plan = oc.plan(small_trace(), 15 * (64 << 10), "belady", allocator="va")
    assert plan.schedule.granule.size_bytes == 64 << 10
    assert 2 * plan.peak_bytes > 15 * (64 << 10)
    oc.execute(plan, small_model(), batch(), allocator="va")


def test_an_allocator_rounds_by_itself():
    with pytest.raises(ConfigError, match="granule"):
        oc.plan(small_trace(), "50%", granule=oc.Granule(512), allocator="va")
    with pytest.raises(ConfigError, match="budget"):
        oc.plan(small_trace(), None, allocator="va")


def test_a_trace_for_one_thread_runs_on_one_with_the_same_bits():
    one = oc.execute(oc.plan(small_trace(threads=1), "100%"), small_model(), batch())
    two = oc.execute(oc.plan(small_trace(threads=2), "100%"), small_model(), batch())
    assert one.loss == two.loss
    assert all(np.array_equal(one.gradients[k], two.gradients[k]) for k in one.gradients)


@pytest.mark.slow
def test_a_host_budget_of_nothing_leaves_the_inputs_and_they_alone_are_enough():
    trace = small_trace()
    inputs_bytes = sum(v.nbytes for v in trace.variables if v.kind == "input")
    for planner, budget in (("keep-all", "100%"), ("auto", "70%"), ("chen-sqrt", "70%")):
        for host_budget in (0, "1B", inputs_bytes):
            plan = oc.plan(trace, budget, planner, MACHINE, host_budget=host_budget)
            assert plan.host_peak_bytes == inputs_bytes
            assert oc.simulate(plan, plan.trace, MACHINE).bytes_out == 0


def test_the_learning_rate_is_a_scalar_of_the_step():
    model, plan = small_model(), oc.plan(small_trace(), "100%")
    still = oc.execute(plan, model, batch(), scalars={"lr": 0.0})
    moved = oc.execute(plan, model, batch())
    for name, parameter in model.named_parameters():
        assert np.array_equal(still.state[name], parameter.numpy())
        expected = parameter.numpy() - np.float32(0.1) * moved.gradients[name]
        np.testing.assert_allclose(moved.state[name], expected, rtol=1e-6, atol=1e-7)


def test_more_threads_than_the_workspaces_serve_are_refused():
    plan = oc.plan(small_trace(threads=1), "100%")
    with pytest.raises(PlanMismatch, match="workspaces"):
        oc.execute(plan, small_model(), batch(), settings=Settings(threads=2))


@pytest.mark.parametrize("threads", [0, -2])
def test_no_threads_are_refused(threads):
    with pytest.raises(ConfigError, match="threads"):
        small_trace(threads=threads)
    with pytest.raises(ConfigError, match="threads"):
        oc.Trainer(small_model(), threads=threads)


@pytest.mark.parametrize("shape", [(), 5, (0, 3, 12, 12), (2.5, 3, 12, 12), (2, 3, -1, 12)])
def test_no_shape_of_a_batch(shape):
    with pytest.raises(ShapeError, match="shape of a batch"):
        oc.trace(small_model(), shape)


class Nothing:
    """Has the looks of a planner."""

    name = "nothing"

    def plan(self, question):
        return None


def test_planners_as_class_object_and_what_is_none():
    trace = small_trace()
    with pytest.raises(ConfigError, match="not a Plan"):
        oc.plan(trace, "50%", planner=Nothing)
    with pytest.raises(ConfigError, match="not a planner"):
        oc.plan(trace, "50%", planner=object())
    with pytest.raises(ConfigError, match="not a Plan"):
        oc.Trainer(small_model(), planner=Nothing(), budget="50%").step(*batch())


def test_an_unknown_planner_is_refused_without_a_budget_too():
    with pytest.raises(ConfigError, match="unknown planner"):
        oc.Trainer(small_model(), planner="widnow").step(*batch())


def test_laws_run_by_name():
    assert check_planner("window:size=2", examples=2) == 2
    assert check_allocator("va:chunk=4KiB", examples=1) == 1
    assert check_allocator("best-fit", examples=1) == 1


@pytest.mark.parametrize("rubbish", ["a list", [], None])
def test_verify_and_execute_want_lists(rubbish):
    with pytest.raises(ConfigError):
        oc.verify(rubbish, small_trace(), "50%")
    with pytest.raises(ConfigError):
        oc.execute(rubbish, small_model(), batch())


@pytest.mark.parametrize("text", ["{x", "[1]", "{}", '{"rewrites": 3}', None])
def test_broken_plan_files(tmp_path, text):
    file = tmp_path / "plan.json"
    if text is not None:
        file.write_text(text)
    with pytest.raises(ConfigError) as refused:
        oc.load_plan(str(file), small_trace())
    assert refused.value.code == "OOC-104"


def test_what_has_no_loss_cannot_be_executed_and_says_so():
    model, (x, _) = small_model(), batch()
    chain = oc.chain([4, 6], [3, 0], [3], [5], [1], [1])
    forward = oc.trace(model, x.shape, None, training=False, threads=1)
    for step in (chain, forward):
        with pytest.raises(ConfigError, match="has no loss"):
            oc.execute(oc.plan(step, "100%"), model, (x, None))


def test_a_batch_without_target_costs_nothing():
    x, y = batch()
    spoilt, clean = oc.Trainer(small_model()), oc.Trainer(small_model())
    assert spoilt.step(x, y) == clean.step(x, y)
    with pytest.raises(ConfigError, match="target"):
        spoilt.step(x, None)
    assert spoilt.step(x, y) == clean.step(x, y)


def test_trainer_takes_an_optimizer_by_name():
    x, y = batch()
    model = small_model()
    named = oc.Trainer(small_model(), optimizer="adam")
    made = oc.Trainer(model, optimizer=oc.optim.Adam(model.parameters()))
    assert [named.step(x, y) for _ in range(2)] == [made.step(x, y) for _ in range(2)]
    with pytest.raises(ConfigError, match="unknown optimizer"):
        oc.Trainer(small_model(), optimizer="adm")


def test_a_granule_is_a_granule():
    with pytest.raises(ConfigError, match="granule"):
        oc.plan(small_trace(), "50%", granule=65536)
    granule = oc.Granule(65536, True)
    found = oc.plan(small_trace(), "50%", granule=granule).schedule.granule
    assert (found.size_bytes, found.ranges) == (65536, True)


@pytest.mark.parametrize("groups", [0, 2, 5])
def test_groups_part_the_channels(groups):
    with pytest.raises(ShapeError, match="groups"):
        oc.nn.Conv2d(3, 4, 3, groups=groups)


def test_a_trace_knows_for_how_many_threads_it_is_and_rewrites_keep_that():
    model = oc.models.build("lenet")
    traced = oc.trace(model, (4, 3, 32, 32), threads=3)
    assert traced.threads == 3
    planned = oc.plan(traced, "1GiB", machine="v100-pcie")
    assert planned.trace.threads == 3
    assert planned.trace is not traced
    assert oc.tile(traced, (2, 2), first="conv1.fwd", last="max_pool2d.fwd").threads == 3
    x, y = np.zeros((4, 3, 32, 32), np.float32), np.arange(4)
    one = oc.plan(oc.trace(model, (4, 3, 32, 32), threads=1), "1GiB")
    # Asked for two, a plan for one says which it was made for; by itself it takes one.
    assert np.isfinite(oc.execute(one, model, (x, y)).loss)


def test_every_plan_comes_with_a_bound_that_it_does_not_beat():
    traced = oc.trace(oc.models.build("lenet"), (64, 3, 32, 32), threads=1)
    for planner in ("keep-all", "naive", "window"):
        for machine in ("v100-pcie", "cpu-generic"):
            plan = oc.plan(traced, "100%", planner, machine)
            assert plan.lower_bound is not None
            assert 0 < plan.lower_bound.makespan_us <= plan.makespan_us + 0.001


@pytest.mark.parametrize(
    "wrong",
    [small_model, lambda: np.zeros((8, 3, 32, 32)), lambda: None],
    ids=["model", "x", "none"],
)
def test_what_takes_a_trace_says_how_to_make_one(wrong):
    """A model in a trace's place is the first mistake of whoever comes from other libraries."""
    given, plan = wrong(), oc.plan(small_trace(), "100%", "keep-all", MACHINE)
    asked = {
        "plan": lambda: oc.plan(given, "25%"),
        "plan for va": lambda: oc.plan(given, "25%", allocator="va"),
        "verify": lambda: oc.verify(plan, given, "100%"),
        "simulate": lambda: oc.simulate(plan, given),
        "lower_bound": lambda: oc.lower_bound(given, "50%"),
        "load_plan": lambda: oc.load_plan("plan.json", given),
        "trace_minimum_bytes": lambda: oc.trace_minimum_bytes(given),
        "trace_peak_bytes": lambda: oc.trace_peak_bytes(given),
        "tile": lambda: oc.tile(given),
        "chain_view": lambda: oc.chain_view(given),
    }
    for name, call in asked.items():
        with pytest.raises(ConfigError, match="not a Trace") as refused:
            call()
        assert "oc.trace(model, (N, C, H, W))" in refused.value.fix, name
    with pytest.raises(ConfigError, match="a Schedule or a Plan"):
        oc.simulate(given, small_trace())


def test_a_pickle_finds_each_public_function():
    for name in oc.__all__:
        found = getattr(oc, name)
        if inspect.isfunction(found):
            assert pickle.loads(pickle.dumps(found)) is found, name


def test_what_takes_a_model_says_so():
    plan = oc.plan(small_trace(), "100%", "keep-all", MACHINE)
    for given in (small_trace(), batch()):
        with pytest.raises(ConfigError, match="not a model"):
            oc.execute(plan, given, batch())
