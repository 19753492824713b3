"""The short names: plan, verify, simulate, lower_bound, execute, as users call them.

These functions take traces, budgets in words ("25%") and names of networks, planners, machines and
allocators, and return steps, plans and runs. They only resolve words into objects and compose the
packages below; every decision is made there. Read next: `train.py`, which composes the same pieces
over many steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from os import PathLike
from typing import Unpack

import numpy as np

from ooctrain.engine.incore import initial_values
from ooctrain.engine.module import Module
from ooctrain.errors import ConfigError, Infeasible
from ooctrain.execution.evaluation import pair_of
from ooctrain.execution.fit import prepare
from ooctrain.execution.prepared_step import placed
from ooctrain.execution.sessions import Images, input_values, open_session, threads_served
from ooctrain.execution.settings import DEFAULT_REWRITES, Settings
from ooctrain.models import build, expect_classes, recipe_of, stem_for
from ooctrain.optim.algorithms import DEFAULT_LR
from ooctrain.rewrite import REWRITES, apply_rewrites
from ooctrain.sched import verify as laws
from ooctrain.sched.bounds import closed as bounds
from ooctrain.sched.budget import resolve_budget, trace_minimum_bytes
from ooctrain.sched.plan_schema import rows_of_file
from ooctrain.sched.planning.effort import EVALUATIONS
from ooctrain.sched.planning.planner import Planner, collecting_rarely
from ooctrain.sched.schedule import BYTES, Granule, LowerBound, Plan, Schedule
from ooctrain.sched.simulate import simulate as simulated
from ooctrain.sched.timeline import Timeline
from ooctrain.split.model import Chance, SplitModel
from ooctrain.split.split_settings import Splitting, coarser, expect_free, parse_splitting
from ooctrain.step.arguments import checked
from ooctrain.step.blocks import put_together
from ooctrain.step.machine import Machine
from ooctrain.step.presets import machine as find_machine
from ooctrain.step.trace import Trace
from ooctrain.tracing import trace as traced
from ooctrain.units import format_bytes, parse_budget

#: Steps with drawn boundaries that a split must fit; others may need a little more.
STEPS_FITTED = 8


@dataclass(frozen=True, slots=True)
class Executed:
    """What one executed step gave.

    Args:
        timeline: measured; its peak is counted in the granule of the plan.
        loss: the step's loss.
        gradients: {parameter name: its final gradient, logical layout}.
        state: {name: value after the step} of parameters, buffers and optimizer slots.
    """

    timeline: Timeline
    loss: float
    gradients: Mapping[str, np.ndarray]
    state: Mapping[str, np.ndarray]

    def __repr__(self) -> str:
        return f"Executed(loss {self.loss:.6g}, {len(self.gradients)} gradients, {self.timeline!r})"


@lru_cache(maxsize=2)
def step_trace(
    model: str, batch: int, image_size: int | None = None, optimizer: str = "sgd",
    accumulate: int = 1, threads: int = 1, split: str = "", classes: int | None = None,
) -> Trace:  # fmt: skip
    """The training step of a named network on its usual images, rewritten as `plan` rewrites.

    Args:
        model, batch: model and batch of the step, by name or "file.py:function".
        image_size: height of its images; None: the model's usual. The aspect is kept.
        optimizer, accumulate, threads: as for `oc.trace`.
        split: in the words of --split, "depth=0.5,grid=2x2"; "": whole.
        classes: outputs of the network; None: the usual ones.

    Raises:
        ConfigError: an unknown network, or one that cannot have as many classes.
    """
    recipe = recipe_of(model)
    height = image_size or recipe.height
    width = height * recipe.width // recipe.height
    if classes is not None:
        expect_classes(model, classes, recipe.target)
    network = build(model, classes or recipe.classes, stem_for(height, width), recipe.channels)
    shape = (batch, recipe.channels, height, width)
    network = split_by_words(network, split)
    step = traced(network, shape, optimizer=optimizer, threads=threads, accumulate=accumulate)
    return apply_rewrites(step, DEFAULT_REWRITES)


@checked
def plan(
    trace: Trace, budget: int | str | None = None, planner: str | Planner = "auto",
    machine: str | Machine | None = None, granule: Granule = BYTES,
    time_limit_s: float | None = None, *, evaluations: int | None = EVALUATIONS,
    host_budget: int | str | None = None, seed: int = 0,
    rewrites: Sequence[str] = DEFAULT_REWRITES, allocator: str | None = None,
    memory: int | str | None = None,
) -> Plan:  # fmt: skip
    """Rewrites the trace, plans it within a budget, and verifies what the planner returned.

    Args:
        trace: a step as `oc.trace` or `oc.chain` gives it.
        budget: device bytes, "512MiB", "8GB" or "25%": minimum + share of (peak - minimum).
        planner: name with parameters ("window:size=2"), "file.py:Class", or a planner object.
        machine: name, `Machine`, or None for the saved calibration or "cpu-generic".
        granule: how the allocator rounds; `BYTES` is the pure model: whatever runs such a plan
            rounds on top of it.
        time_limit_s: interrupts a search; then the plan depends on how busy the machine is.
        evaluations: what a searching planner may try; None: its own number. One that is
            named with a number ("combined:evaluations=500") keeps it.
        host_budget: host memory for inputs, which wait there, and what is swapped out; 0, or less
            than the inputs: none for what is swapped out; None: the machine's.
        seed: seed of planners that draw random numbers.
        rewrites: names of rewrites, applied in order.
        allocator: name with parameters, of the one that will run the plan: it rounds as that one
            does, and the arena that it needs there, holes included, keeps to the budget. None: any.
        memory: in place of budget and host_budget, for a process on the cpu device: all that it
            holds, divided between arena and host slab (docs/memory.md). None: these two count.

    Returns:
        A verified `Plan` whose `.trace` is the rewritten trace.

    Raises:
        Infeasible: the planner finds no schedule; it carries the planner's minimum.
        DoesNotFit: it finds one, but not one that the allocator places within the budget.
        ScheduleError: the planner returned an illegal schedule.
        ConfigError: an unknown name or an invalid budget.
    """
    if memory is None:
        parse_budget(budget)  # type: ignore[arg-type]  # None means in-core elsewhere, not here
    exact = allocator is None and memory is None
    if not exact and granule != BYTES:
        raise ConfigError(
            f"allocator {allocator or 'va'!r} has a granule of its own", code="OOC-105",
            fix="give granule or allocator",
        )  # fmt: skip
    settings = Settings(
        budget, planner, allocator or "va", trace.device, machine=machine,
        host_budget=host_budget, seed=seed, time_limit_s=time_limit_s, evaluations=evaluations,
        rewrites=tuple(rewrites), memory=memory,
    )  # fmt: skip
    if not exact:
        return prepare(trace, settings).plan
    return prepare(trace, replace(settings, machine=find_machine(machine)), granule=granule).plan


@checked
@collecting_rarely()
def verify(
    plan: Plan | Schedule, original_trace: Trace, budget: int | str,
    machine: str | Machine | None = None,
) -> None:  # fmt: skip
    """Proves a plan (or a bare schedule) legal within the budget.

    Raises:
        ScheduleError: with `.rule` and `.index` of the first breach.
        ConfigError: neither a plan nor a schedule, or an invalid budget or machine.
    """
    where = None if machine is None else find_machine(machine)
    laws.verify(plan, original_trace, budget, where, rewrites=REWRITES)


@checked
def simulate(
    schedule: Schedule | Plan, trace: Trace, machine: str | Machine | None = None
) -> Timeline:
    """Times of every instruction on a machine; `sched/simulate.py` says how.

    Args:
        schedule: legal for `trace` (`verify` first); of a plan, its schedule.
        trace: that the schedule runs, so a plan's `.trace`.
        machine: name, `Machine`, or None for the saved calibration or "cpu-generic".

    Raises:
        ScheduleError: the list names what the trace has not.
        ConfigError: neither a plan nor a schedule, or an invalid machine.
    """
    listed = schedule.schedule if isinstance(schedule, Plan) else schedule
    laws.check_names(listed, trace)
    return simulated(listed, trace, find_machine(machine))


@checked
def lower_bound(
    trace: Trace, budget: int | str, machine: str | Machine | None = None, recompute: bool = True
) -> LowerBound:
    """A makespan that no schedule within the budget can beat (`sched/bounds/closed.py` says of
    which class).
    """
    return bounds.lower_bound(
        trace, resolve_budget(trace, budget, BYTES), find_machine(machine), recompute
    )


class FitOrChance(Chance, total=False):
    """What may be said of a split besides depth and grid."""

    fit: int | str | None


@checked
def split(
    model: Module, depth: float = 0.5, grid: tuple[int, int] = (2, 2), stochastic: bool = False,
    **more: Unpack[FitOrChance],
) -> SplitModel:  # fmt: skip
    """A model whose first layers see an image only in patches; it is another network.

    In training the first `depth` of the convolutions work on `grid` patches of the image, each for
    itself; in evaluation the model is whole. With one patch, or depth 0, it is the model, to the
    bit. Source: paper 004, section 3; section 4.1 for `fit`.

    Args:
        model: with convolutions; its parameters are shared, not copied.
        depth: share of the convolutions, 0 to 1; patches are joined at the nearest place where a
            single image is alive (in a residual network the end of a block).
        grid: patches in a column and in a row.
        stochastic: draws the boundaries anew for each training step of a `Trainer`.
        omega: how far they may be from even ones, as a share of a part, in [0, 0.5); default 0.2.
        seed: seed of the boundaries, default 0; they are a function of it and of the step's number.
        fit: a budget, as for `plan`; it chooses depth and grid as `split_to_fit` does, for the
            shape of the first batch that is trained on, and later batches have the same.

    Raises:
        ConfigError: a number out of its range, a model that is split, or `fit` with depth or grid;
            when it is traced: no convolution, or more patches than rows.
        Infeasible: when it is traced: no split fits the budget.
    """
    fit = more.pop("fit", None)
    chance: Chance = more
    how = Splitting(depth, grid, stochastic, **chance)
    return SplitModel(model, how) if fit is None else _to_fit(model, how, fit)


split.keeps = SplitModel.keeps  # type: ignore[attr-defined]


def split_by_words(model: Module, words: str, seed: int = 0) -> Module:
    """A model split as --split says: "depth=0.5,grid=2x2,stochastic" or "fit=4GiB"; "": itself.

    Raises:
        ConfigError: an unknown setting, or a model that cannot be split like that.
    """
    if not words:
        return model
    how, budget = parse_splitting(words, seed)
    return _to_fit(model, how, budget) if budget else SplitModel(model, how)


def _to_fit(model: Module, how: Splitting, budget: int | str) -> SplitModel:
    expect_free(how)
    parse_budget(budget, "split: fit")
    return SplitModel(model, how, partial(least_split, budget=budget))


@checked
def split_to_fit(
    model: Module, input_shape: tuple[int, ...], budget: int | str, how: Splitting | None = None
) -> Module:
    """A model in the fewest patches, of the least depth, whose training step some list can run
    within a budget; the model itself where it needs no split (paper 004, section 4.1).

    Args:
        input_shape: shape of a batch, (N, C, H, W).
        budget: as for `plan`; a percentage is of the unsplit step.
        how: whether boundaries are drawn, and how; depth and grid are chosen.

    Raises:
        Infeasible: none of those that are tried fits.
    """
    chosen = least_split(model, how or Splitting(), input_shape, budget)
    return SplitModel(model, chosen) if chosen.splits else model


def least_split(
    model: Module, how: Splitting, input_shape: tuple[int, ...], budget: int | str
) -> Splitting:
    """The least of the splits that are tried whose training step fits; see `split_to_fit`."""
    whole = apply_rewrites(traced(model, tuple(input_shape)), DEFAULT_REWRITES)
    budget_bytes = resolve_budget(whole, budget, BYTES)
    needs: list[int] = []
    refusals: list[ConfigError] = []
    for tried in coarser(how):
        try:
            needs.append(_needed_bytes(SplitModel(model, tried), input_shape, budget_bytes))
        except ConfigError as error:  # more patches than the image has rows, or no joint so deep
            refusals.append(error)
            continue
        if needs[-1] <= budget_bytes:
            return tried
    if len(needs) == 1:  # the whole model alone: it cannot be split
        raise refusals[0]
    raise Infeasible(
        "no split of the model fits", minimum_bytes=min(needs),
        numbers=f"the least of those tried needs {format_bytes(min(needs))}",
        fix="a larger budget, or a smaller batch",
    )  # fmt: skip


def _needed_bytes(model: SplitModel, input_shape: tuple[int, ...], enough_bytes: int) -> int:
    """The most that a step of a split model needs; where boundaries are drawn, of the first ones,
    as far as these need no more than `enough_bytes`."""
    needed, model.tested_in_patches = 0, True  # whichever mode the whole model is in
    for number in range(STEPS_FITTED if model.how.stochastic and model.how.splits else 1):
        model.begin_step(number)
        step = apply_rewrites(traced(model, tuple(input_shape)), DEFAULT_REWRITES)
        needed = max(needed, trace_minimum_bytes(step))
        if needed > enough_bytes:
            break
    return needed


@checked
@collecting_rarely()
def load_plan(path: str | PathLike[str], trace: Trace, rewrites: Sequence[str] = ()) -> Plan:
    """Reads a plan file for the trace that it was made for (before rewriting).

    Args:
        rewrites: those of files ("file.py:name") that the plan may name: their code is run.

    Raises:
        PlanMismatch: it belongs to another trace.
        ConfigError: not there, not a plan file, or it names other files.
    """
    data, names = rows_of_file(path, rewrites)
    return Plan.from_json(data, apply_rewrites(trace, names), str(path))


@checked
def execute(
    plan: Plan, model: Module, batch: tuple[Images, np.ndarray], device: str = "cpu",
    allocator: str = "va", *, scalars: Mapping[str, float] | None = None,
    settings: Settings | None = None,
) -> Executed:  # fmt: skip
    """Runs one step of a plan from the model's present values, and changes nothing of the model.

    Args:
        plan: made for this model and batch shape.
        model: gives parameters and buffers; optimizer slots start at zero.
        batch: (x, y), logical layout; x may be a `data.RowImage`.
        device: "cpu" or "cuda": that of the trace.
        allocator: name with parameters, such as "va:chunk=1MiB".
        scalars: step scalars besides {"lr": 0.1, "step": 0, "seed": 0}.
        settings: threads (default: the trace's, or all cores where they are fewer), link, debug
            modes; what it says of planning is not used.

    Raises:
        PlanMismatch: the plan is for another shape, model, or an allocator with other granules.
        ScheduleError: its list breaks a rule.
        ConfigError: not a plan, or one of a step without a loss.
    """
    if "loss" not in plan.trace.outputs:
        raise ConfigError(
            "the plan's step has no loss", code="OOC-104",
            fix="Trainer.predict evaluates a model; chains of oc.chain have no kernels",
        )  # fmt: skip
    laws.verify(plan.schedule, plan.trace, None)  # it may come from a file, and would run as it is
    chosen = replace(settings or Settings(), device=device, allocator=allocator)
    trace = plan.trace
    if chosen.threads is None and trace.device == "cpu":
        most = min(chosen.thread_count, trace.threads or chosen.thread_count)
        chosen = replace(chosen, threads=threads_served(trace, most))
    values = initial_values(trace, model)
    prepared = placed(plan, chosen)
    if device == "cpu":
        # Late: it loads Numba, which planning does without.
        from ooctrain.execution.compile_apart import compile_ahead

        compile_ahead(call.op for call in trace.calls)
    opened, session = open_session(
        prepared, chosen, {trace.variable_by_name[n].id: a for n, a in values.items()},
        tuple(dict.fromkeys(trace.outputs.values())),
    )  # fmt: skip
    try:
        step_scalars = {"lr": DEFAULT_LR, "step": 0, "seed": chosen.seed, **(scalars or {})}
        result = session.run_step(input_values(trace, *pair_of(batch)), step_scalars)
        timeline = result.timeline
        if plan.schedule.granule == BYTES:
            # What the pure model grants is what was requested; the allocator's own rounding of it
            # is not a part of the plan.
            peak_bytes = session.allocator.stats().peak_requested_bytes
            timeline = replace(timeline, peak_bytes=peak_bytes)
        state = {name: session.read(trace.variable_by_name[name].id) for name in values}
    finally:
        session.close()
        opened.close()
    found = put_together({name: result.outputs[v] for name, v in trace.outputs.items()})
    gradients = {n.removeprefix("grad:"): g for n, g in found.items() if n.startswith("grad:")}
    return Executed(timeline, float(found["loss"]), gradients, state)
