"""Planners compared: the same steps, budgets, machines, with how far each plan is from the bound.

A `CompareCase` holds everything that decides its `CompareRow`. So rows can be computed in any order
and by several processes, and they are kept on disk, as are their plans and bounds, under a name
made of their content. A comparison that was interrupted, or is given again, computes only what is
missing. Where a planner fails on a step, or there is no such step, its row says so, and the others
go on. Each ratio is to a
bound that no list beats (`sched/bounds/lp_bound.py`); the row says for which class of lists that
holds. Read next: `planned.py`, `kept.py`.
"""

from __future__ import annotations

import csv
import io
import itertools
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, astuple, dataclass, fields, replace
from functools import partial
from pathlib import Path

from rich.table import Table

from ooctrain.activity import doing
from ooctrain.api import step_trace
from ooctrain.errors import ConfigError, OoctrainError, PartFailed, printable
from ooctrain.execution.planners import get_planner
from ooctrain.experiments.kept import ResultStore, digest, package_sources, planner_sources
from ooctrain.experiments.planned import Planned, PlanQuestion, least_bytes, planned
from ooctrain.experiments.spread import finished
from ooctrain.plugins import fault_of_own_code
from ooctrain.report.charts import Curve, curves_svg, stacked_svg
from ooctrain.report.text import or_dash, plain_table
from ooctrain.rewrite import REWRITES, apply_rewrites, rewritten_with_remarks
from ooctrain.sched.bounds import closed as bounds
from ooctrain.sched.bounds.lp_bound import FluidBound, fluid_bound
from ooctrain.sched.bounds.recompute import RecomputeBound, recompute_bound
from ooctrain.sched.budget import (
    input_bytes,
    resolve_host_budget,
    trace_minimum_bytes,
    trace_peak_bytes,
)
from ooctrain.sched.schedule import LowerBound, Plan, Run
from ooctrain.sched.simulate import simulate
from ooctrain.sched.verify import verify
from ooctrain.step.machine import Machine, call_durations_ns
from ooctrain.step.presets import machine as machine_by_name
from ooctrain.step.presets import threads_for, with_link
from ooctrain.step.trace import Trace
from ooctrain.units import (
    Granule,
    Percent,
    format_bytes,
    format_percent,
    format_us,
    parse_budget,
    per_second,
)

#: The LP over all lists; over those that leave parameters where they are; over those of the latter
#: that run each call once; the programs over lists that copy nothing to the host, and over those of
#: them that run only calls of the forward pass again; the bounds without a program.
BOUNDS = ("lp", "lp-resident", "lp-offload", "recompute", "recompute-forward", "simple")


@dataclass(frozen=True, slots=True)
class CompareCase:
    """One cell.

    Args:
        model, batch: model and batch of the step, by name or "file.py:function".
        image_size: height of its images; None: the model's usual.
        machine: a preset's name, or a calibration file.
        budget: as typed: "25%", "8GiB".
        planner: by name, with parameters, or "file.py:Class".
        granule_bytes: what sizes are rounded to.
        bound: one of `BOUNDS`.
        evaluations: evaluations of searching planners; None: as many as they make by themselves.
        time_limit_s: interrupts them; None: nothing does.
        seed: seed of planners that draw random numbers.
        host_budget: as typed; None: the machine's host memory.
        link_bytes_per_us: in both directions; None: the machine's own.
        optimizer, accumulate: "sgd" or "adam"; micro-batches of the step.
        rewrites: further rewrites, after those of every step; budgets and bound are for the step
            before them.
        split: split of the network, in the words of --split; "": whole.
        classes: outputs of the network; None: the usual ones.
    """

    model: str
    batch: int
    image_size: int | None
    machine: str | None
    budget: str
    planner: str
    granule_bytes: int = 1
    bound: str = "lp"
    evaluations: int | None = None
    time_limit_s: float | None = None
    seed: int = 0
    host_budget: str | None = None
    link_bytes_per_us: float | None = None
    optimizer: str = "sgd"
    accumulate: int = 1
    rewrites: tuple[str, ...] = ()
    split: str = ""
    classes: int | None = None


@dataclass(frozen=True, slots=True)
class CompareRow:
    """The result of a case; what an infeasible one does not have is None.

    Args:
        model, batch, planner, granule_bytes, optimizer, accumulate, classes: as in the case.
        image_size: height of its images.
        machine: its name.
        budget_bytes: budget of the case, resolved on the step.
        feasible: whether the planner has a plan.
        budget_fraction: from the trace's minimum (0) to its in-core peak (1).
        minimum_bytes: the planner's least budget: what its refusal names; where it plans, with any
            host budget; None where it fails.
        trace_minimum_bytes: a budget of 0 %.
        makespan_us: makespan of the plan, simulated.
        compute_us: time of the step without any stall.
        lower_bound_us: what no list beats, of the class that `lower_bound_kind` names.
        ratio: makespan / lower bound.
        peak_bytes: peak of the plan; bytes_out, bytes_in: copied to the host and back in a step.
        recompute_us: time of calls that ran again.
        plan_s: time to plan.
        host_budget_bytes: for what is swapped out; None: no limit.
        host_peak_bytes: the plan's peak on the host.
        link_bytes_per_us: speed of the machine's link, as it was used.
        remarks: what rewrites do otherwise than requested: fewer tiles.
        chosen_rewrites: what the planner did to the step first: "narrow:1048576", or tilings.
        error: why the planner neither has a plan nor refuses the budget, or why there is no step,
            whose numbers are 0 then; "" where it does.
    """

    model: str
    batch: int
    image_size: int
    machine: str
    budget_bytes: int
    budget_fraction: float
    planner: str
    feasible: bool
    minimum_bytes: int | None
    trace_minimum_bytes: int
    granule_bytes: int
    makespan_us: float | None
    compute_us: float
    lower_bound_us: float | None
    lower_bound_kind: str
    ratio: float | None
    peak_bytes: int | None
    bytes_out: int | None
    bytes_in: int | None
    recompute_us: float | None
    plan_s: float
    host_budget_bytes: int | None
    host_peak_bytes: int | None
    link_bytes_per_us: float
    optimizer: str
    accumulate: int
    remarks: str = ""
    chosen_rewrites: str = ""
    classes: int | None = None
    error: str = ""

    @property
    def images_per_s(self) -> float | None:
        """Speed, simulated."""
        return None if self.makespan_us is None else per_second(self.batch, self.makespan_us)


def cases(
    models: Sequence[str], shapes: Sequence[tuple[int, int | None]],
    machines: Sequence[str | None], budgets: Sequence[str], planners: Sequence[str],
) -> list[CompareCase]:  # fmt: skip
    """All combinations, those of one trace next to each other; a shape is (batch, image size)."""
    return [
        CompareCase(model, *shape, where, budget, planner)
        for model, shape, where, budget, planner in itertools.product(
            models, shapes, machines, budgets, planners
        )
    ]


def compare(
    wanted: Sequence[CompareCase], *, jobs: int | None = 1, keep: Path | None = None,
    done: Callable[[CompareCase], None] = lambda case: None,
) -> list[CompareRow]:  # fmt: skip
    """The rows of some cases, in their order.

    Args:
        jobs: processes; 1: this one; None: as many as there are cores, or ranks of `mpiexec`.
        keep: folder of rows, plans and bounds; what it has is not computed again. None: nothing is
            kept.
        done: called with each case when its row is there.

    Raises:
        OoctrainError: none of them is a step.
    """
    found: dict[int, CompareRow | OoctrainError] = {}
    with doing("comparing", of=len(wanted)) as one_more:
        for place, row in finished(partial(_row_or_error, keep=keep), wanted, jobs):
            found[place] = row
            one_more()
            done(wanted[place])
    errors = [row for row in found.values() if isinstance(row, OoctrainError)]
    if errors and len(errors) == len(wanted):
        raise errors[0]
    return [
        _without_step(wanted[place], row) if isinstance(row, OoctrainError) else row
        for place, row in sorted(found.items())
    ]


def _row_or_error(case: CompareCase, keep: Path | None) -> CompareRow | OoctrainError:
    """The row of a case, or why there is no step to be planned: an image too small for a network,
    say, which others may take.
    """
    try:
        return row_of(case, keep)
    except OoctrainError as error:
        return error


def _without_step(case: CompareCase, error: OoctrainError) -> CompareRow:
    """The row of a case that is no step."""
    where = _machine(case)
    return CompareRow(
        model=case.model, batch=case.batch, image_size=case.image_size or 0, machine=where.name,
        budget_bytes=0, budget_fraction=0.0, planner=case.planner, feasible=False,
        minimum_bytes=None, trace_minimum_bytes=0, granule_bytes=case.granule_bytes,
        makespan_us=None, compute_us=0.0, lower_bound_us=None, lower_bound_kind=case.bound,
        ratio=None, peak_bytes=None, bytes_out=None, bytes_in=None, recompute_us=None, plan_s=0.0,
        host_budget_bytes=None, host_peak_bytes=None, link_bytes_per_us=where.link_bytes_per_us,
        optimizer=case.optimizer, accumulate=case.accumulate, classes=case.classes,
        error=_in_one_line(error, case.model),
    )  # fmt: skip


def row_of(case: CompareCase, keep: Path | None = None) -> CompareRow:
    """The row of one case, from the folder if it is there.

    Raises:
        ConfigError: an unknown model, machine, planner or budget.
    """
    step = step_trace(
        case.model, case.batch, case.image_size, case.optimizer, case.accumulate,
        threads_for(case.machine), case.split, case.classes,
    )  # fmt: skip
    get_planner(case.planner)
    where, store = _machine(case), ResultStore(keep)
    sources = planner_sources(case.planner)
    planned_for = apply_rewrites(step, case.rewrites).fingerprint
    name = f"row-{digest(astuple(case), planned_for, repr(where), sources)}.json"
    kept = store.read(name)
    if kept is not None:
        return CompareRow(**kept)
    row = _compute(case, step, where, store)
    if not row.error:  # which may have been this process's: too little memory, a missing package
        store.write(name, asdict(row))
    return row


def _machine(case: CompareCase) -> Machine:
    """The machine of a case, with its link."""
    named = machine_by_name(case.machine)
    rate = case.link_bytes_per_us
    return named if rate is None else with_link(named, rate)


def _compute(case: CompareCase, step: Trace, where: Machine, store: ResultStore) -> CompareRow:
    granule = Granule(case.granule_bytes)
    least, most = trace_minimum_bytes(step, granule), trace_peak_bytes(step, granule)
    budget = _budget_bytes(case.budget, least, most)
    host_budget = resolve_host_budget(step, case.host_budget, where)
    tiled, remarks = rewritten_with_remarks(step, case.rewrites)
    question = PlanQuestion(
        tiled, budget, where, case.planner, case.granule_bytes, case.seed, case.evaluations,
        case.time_limit_s, host_budget,
    )  # fmt: skip
    answer, minimum, error = Planned(None, None, 0.0), None, ""
    try:
        answer = planned(question, store)
        minimum = answer.minimum_bytes
        if minimum is None and answer.plan is not None:
            minimum = least_bytes(question, store)
        if answer.plan is not None:
            verify(
                answer.plan, tiled, budget, where, host_budget_bytes=host_budget, rewrites=REWRITES
            )
    except OoctrainError as failure:
        answer, minimum = replace(answer, plan=None), None
        error = _in_one_line(failure, case.planner)
    plan, timeline = answer.plan, None
    if plan is not None:
        timeline = simulate(plan.schedule, plan.trace, where)
    makespan_us = None if timeline is None else timeline.makespan_us
    bound = _bound(case, step, budget, where, store)
    bound_us = None if bound is None else bound.makespan_us
    return CompareRow(
        model=f"{case.model} split ({case.split})" if case.split else case.model,
        batch=case.batch,
        image_size=step.variables[step.initial[0]].shape[-2],
        machine=where.name,
        budget_bytes=budget,
        budget_fraction=(budget - least) / max(1, most - least),
        planner=case.planner,
        feasible=plan is not None,
        minimum_bytes=minimum,
        trace_minimum_bytes=least,
        granule_bytes=case.granule_bytes,
        makespan_us=makespan_us,
        compute_us=sum(call_durations_ns(step, where)) / 1000,
        lower_bound_us=bound_us,
        lower_bound_kind=case.bound if bound is None else bound.kind,
        ratio=None if makespan_us is None or bound_us is None else makespan_us / bound_us,
        peak_bytes=None if plan is None else plan.peak_bytes,
        bytes_out=None if timeline is None else timeline.bytes_out,
        bytes_in=None if timeline is None else timeline.bytes_in,
        recompute_us=None if plan is None else recompute_us(plan, where),
        plan_s=answer.plan_s,
        host_budget_bytes=host_budget,
        host_peak_bytes=None if plan is None else plan.host_peak_bytes,
        link_bytes_per_us=where.link_bytes_per_us,
        optimizer=case.optimizer,
        accumulate=case.accumulate,
        remarks="; ".join(remarks),
        chosen_rewrites="" if plan is None else "; ".join(plan.rewrites),
        classes=case.classes,
        error=error,
    )


def _in_one_line(error: OoctrainError, planner: str) -> str:
    """Code, what, and where: in the planner's own file, where it raised no error of this tree."""
    if isinstance(error, PartFailed):
        error = fault_of_own_code(error, [planner]) or error
    place = f" ({error.where})" if error.where else ""
    return printable(" ".join(f"[{error.code}] {error.what}{place}".split()))


def recompute_us(plan: Plan, where: Machine) -> float:
    """Time of the calls of a plan that run again."""
    durations = call_durations_ns(plan.trace, where)
    runs = [i.call for i in plan.schedule.instructions if isinstance(i, Run)]
    return (sum(durations[call] for call in runs) - sum(durations)) / 1000


def _budget_bytes(text: str, least: int, most: int) -> int:
    budget = parse_budget(text)
    if isinstance(budget, Percent):
        return least + round(budget.fraction * (most - least))
    return budget


def _bound(
    case: CompareCase, step: Trace, budget: int, where: Machine, store: ResultStore
) -> LowerBound | None:
    """The bound of a cell, kept for all its planners; None where no list fits at all."""
    if case.bound == "simple":
        return bounds.lower_bound(step, budget, where)
    host_bytes = None
    if case.host_budget is not None:
        host_bytes = resolve_host_budget(step, case.host_budget, where)
    content = digest(
        case.bound, step.fingerprint, repr(where), budget, host_bytes, package_sources()
    )
    name = f"bound-{content}.json"
    kept = store.read(name)
    if kept is None:
        found = _programmed(case.bound, step, budget, where, host_bytes)
        kept = {"bound": found and asdict(found.lower_bound())}
        store.write(name, kept)
    return kept["bound"] and LowerBound(**kept["bound"])


def _programmed(
    bound: str, step: Trace, budget: int, where: Machine, host_bytes: int | None
) -> FluidBound | RecomputeBound | None:
    """The bound that a program proves."""
    if bound in ("recompute", "recompute-forward"):
        if host_bytes != input_bytes(step):
            raise ConfigError(
                f"the bound {bound!r} is of lists that copy nothing to the host",
                numbers="the host budget leaves room after the inputs",
                fix="--host-budget 0, or --bound lp-resident",
            )
        return recompute_bound(step, budget, where, backward=bound == "recompute")
    return fluid_bound(
        step, budget, where, recompute=bound != "lp-offload", resident=bound != "lp",
        host_budget_bytes=host_bytes,
    )  # fmt: skip


# The rows shown: as a table, as CSV, as Markdown, as two kinds of curves. A ratio of 1 is the bound
# itself, so one number says how good a plan is, on any network and any link.

HEADINGS = (
    "model", "batch", "machine", "budget", "share", "planner", "step", "ratio", "in-core", "out",
    "in", "again", "planned in",
)  # fmt: skip


def compare_table(rows: Sequence[CompareRow]) -> Table:
    """A line for each row; what repeats from the line above is left out."""
    table = plain_table(*HEADINGS, left=("model", "machine", "planner"), no_wrap=True)
    last: tuple[str, ...] = ()
    for row in rows:
        cells = _cells(row)
        head = cells[:5]
        table.add_row(*(("",) * 5 if head == last else head), *cells[5:])
        last = head
    return table


def compare_markdown(rows: Sequence[CompareRow]) -> str:
    """The same as Markdown."""
    lines = [" | ".join(HEADINGS), " | ".join("---" for _ in HEADINGS)]
    lines += [" | ".join(_cells(row)) for row in rows]
    return "".join(f"| {line} |\n" for line in lines)


def compare_csv(rows: Sequence[CompareRow]) -> str:
    """All numbers, one line for each row, as RFC 4180 has it."""
    text = io.StringIO()
    writer = csv.DictWriter(text, [field.name for field in fields(CompareRow)])
    writer.writeheader()
    writer.writerows(asdict(row) for row in rows)
    return text.getvalue()


def compare_figure(rows: Sequence[CompareRow]) -> str:
    """Ratio against budget for each step and machine; speed against batch where there are
    several.
    """
    pictures = list(_by_budget(rows))
    pictures += _by_batch(rows)
    return stacked_svg(pictures)


def _by_budget(rows: Sequence[CompareRow]) -> list[str]:
    groups: dict[tuple[str, int, int, str], list[CompareRow]] = defaultdict(list)
    for row in rows:
        groups[row.model, row.batch, row.image_size, row.machine].append(row)
    return [
        curves_svg(
            f"{model}, batch {batch}, {size} pixels high, {machine}",
            _curves(group, lambda row: 100 * row.budget_fraction, lambda row: row.ratio),
            axes=("budget, % of the way from least to in-core", "step / lower bound"),
        )
        for (model, batch, size, machine), group in groups.items()
        if len({row.budget_bytes for row in group}) > 1
    ]


def _by_batch(rows: Sequence[CompareRow]) -> list[str]:
    """Where several batches stand in the same number of bytes, or share, each."""
    groups: dict[tuple[str, int, str, str], list[CompareRow]] = defaultdict(list)
    for row in rows:
        share = format_percent(row.budget_fraction)
        for budget in {share, format_bytes(row.budget_bytes)}:
            groups[row.model, row.image_size, row.machine, budget].append(row)
    return [
        curves_svg(
            f"{model}, {size} pixels high, {machine}, budget {budget}",
            _curves(group, lambda row: row.batch, lambda row: row.images_per_s),
            axes=("batch", "images/s"), doubling=True,
        )
        for (model, size, machine, budget), group in groups.items()
        if len({row.batch for row in group}) > 2
    ]  # fmt: skip


def _curves(
    rows: Sequence[CompareRow],
    x: Callable[[CompareRow], float],
    y: Callable[[CompareRow], float | None],
) -> list[Curve]:
    by_planner: dict[str, list[tuple[float, float | None]]] = defaultdict(list)
    for row in rows:
        by_planner[row.planner].append((x(row), y(row)))
    return [Curve(name, sorted(points)) for name, points in by_planner.items()]


def _cells(row: CompareRow) -> tuple[str, ...]:
    head = (
        row.model, str(row.batch), row.machine,
        format_bytes(row.budget_bytes), format_percent(row.budget_fraction), row.planner,
    )  # fmt: skip
    if row.makespan_us is None:
        minimum = row.minimum_bytes or 0
        lacks = minimum > row.budget_bytes  # else host memory is too small
        least = "fails" if row.error else f"needs {format_bytes(minimum)}" if lacks else "-"
        return (*head, least, "-", "-", "-", "-", "-", f"{row.plan_s:.2f} s")
    return (
        *head, format_us(row.makespan_us), or_dash(row.ratio, ".3f"),
        f"{row.makespan_us / row.compute_us:.3f} x", format_bytes(row.bytes_out or 0),
        format_bytes(row.bytes_in or 0), format_us(row.recompute_us or 0), f"{row.plan_s:.2f} s",
    )  # fmt: skip
