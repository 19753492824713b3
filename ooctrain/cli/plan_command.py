"""`ooctrain plan`: what a step needs, layer by layer, whether it fits, and if not, what would.

From a model, a batch, a budget and a machine it prints a table and a verdict; status 3 means that
the step does not fit. No kernel is compiled and nothing is executed. Read next:
`ooctrain/cli/advice.py`, which finds the changes.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from functools import cache
from typing import Any

import click

from ooctrain.alloc import AllocationLog
from ooctrain.alloc.registry import choose_allocator
from ooctrain.cli import DOES_NOT_FIT, DONE
from ooctrain.cli.advice import (
    Change,
    FitQuestion,
    Need,
    changes_that_fit,
    describe_change,
    need_of,
)
from ooctrain.cli.options import POSITIVE, file_option, json_option
from ooctrain.cli.step_limits import limits, promise_rows
from ooctrain.cli.step_options import Workload, step_options
from ooctrain.cli.terminal import make_console
from ooctrain.cli.workload import (
    as_on,
    find_machine,
    host_rows,
    make_task,
    make_trace,
    network_rows,
    split_rows,
)
from ooctrain.errors import DoesNotFit, Infeasible
from ooctrain.execution.fit import exactly
from ooctrain.execution.placement import allocation_log, reserved_peak
from ooctrain.execution.planners import as_planner, get_planner, planners
from ooctrain.execution.promise import Promise
from ooctrain.execution.settings import DEFAULT_REWRITES, Options, Settings
from ooctrain.report.layer_costs import layer_rows
from ooctrain.report.numbers_file import write_numbers
from ooctrain.report.record import NOT_DRAWN, drawing
from ooctrain.report.text import (
    facts,
    layer_table,
    placement,
    search_rows,
    share,
    tiling_rows,
)
from ooctrain.rewrite import apply_rewrites
from ooctrain.sched.planners.registry import PLANNERS
from ooctrain.sched.planners.tflms_hybrid import TflmsHybrid
from ooctrain.sched.schedule import Plan
from ooctrain.sched.simulate import simulate
from ooctrain.sched.timeline import Timeline
from ooctrain.step.blocks import whole_of
from ooctrain.step.trace import Trace
from ooctrain.units import format_bytes, format_us

JSON_VERSION = 1
Rows = list[tuple[str, str]]
_AGAIN = "`train` plans with less, until it fits"


@click.command()
@step_options
@json_option
@click.option("--depth", type=POSITIVE, default=2, show_default=True,
              help="Parts of a layer's name in the table.")  # fmt: skip
@file_option("--save", "plan_path", text="Write the plan, for `simulate --plan`.")
@file_option(
    "--allocation-log", "log_path", text="Write what the plan asks of an allocator, for `replay`."
)
@click.option(
    "--list-checkpoints",
    is_flag=True,
    help="Only print the checkpoints of planner tflms-hybrid: number, name, size.",
)
def plan(
    workload: Workload, how: Options, json_path: str | None, depth: int, plan_path: str | None,
    log_path: str | None, list_checkpoints: bool,
) -> int:  # fmt: skip
    """Say what a training step of MODEL needs, and what fits."""
    how, console = as_on(how), make_console()
    if list_checkpoints:
        console.print(facts(_checkpoint_rows(workload, how)))
        return DONE
    answer: Answer | None = None
    error: BaseException | None = None
    try:
        answer = _answer(workload, how)
    except BaseException as caught:  # an interruption too: the file says why it has no numbers
        error = caught
        raise
    finally:
        if json_path:
            content = _as_json(workload, how, answer, error)
            write_numbers(json_path, content)
    console.print(layer_table(layer_rows(answer.trace, depth), console.width))
    console.print()
    console.print(facts(_rows(workload, how, answer)))
    if answer.plan is None:
        return DOES_NOT_FIT
    if plan_path:
        answer.plan.save(plan_path)
        console.print(f"wrote {plan_path}")
    if log_path:
        make_log(workload, how, answer.plan, answer.question.budget_bytes).save(log_path)
        console.print(f"wrote {log_path}")
    return DONE


def _checkpoint_rows(workload: Workload, how: Options) -> Rows:
    named = as_planner(how.planner)
    planner = named if isinstance(named, TflmsHybrid) else TflmsHybrid()
    traced = make_trace(make_task(workload, how.seed), workload, how)
    trace = apply_rewrites(traced, DEFAULT_REWRITES)
    return [
        (str(checkpoint.id), f"{checkpoint.name}  {format_bytes(checkpoint.size_bytes)}")
        for checkpoint in planner.checkpoints(trace)
    ]


def make_log(workload: Workload, how: Options, made: Plan, budget_bytes: int) -> AllocationLog:
    """The allocation log of a plan."""
    allocator = how.allocator if made.schedule.granule.size_bytes > 1 else ""
    about = f"{workload.model}, batch {workload.batch}, planner {how.planner}"
    log = allocation_log(made.trace, made.schedule, budget_bytes)
    return replace(log, allocator=allocator, about=about)


@dataclass(frozen=True, slots=True)
class Answer:
    """What was found out.

    Args:
        trace: trace of the step, rewritten.
        network: rows that say what was chosen of the network beyond its name.
        question, need: what is to be planned, and what the step needs by itself.
        plan, timeline: where it fits.
        refusal, changes: what the planner said, and what would fit, where it does not.
        promise: how a memory budget was divided, if one was given.
    """

    trace: Trace
    network: Rows
    question: FitQuestion
    need: Need
    plan: Plan | None
    timeline: Timeline | None
    refusal: Infeasible | None
    changes: list[Change]
    promise: Promise | None = None


def _answer(workload: Workload, how: Options) -> Answer:
    task, machine = make_task(workload, how.seed), find_machine(how)
    original = make_trace(task, workload, how)
    found = limits(how, machine, original)
    step = found.step

    @cache
    def rewritten(batch: int) -> Trace:
        if batch == task.batch:
            return step.trace
        return apply_rewrites(make_trace(task, workload, how, batch), step.rewrites)

    question = FitQuestion(
        rewritten, task.batch, found.budget_bytes, machine, step.granule,
        found.host_budget_bytes, how.seed,
    )  # fmt: skip
    need = need_of(step.trace, machine, step.granule)
    try:
        asked = Settings(
            planner=found.planner, host_budget=found.host_budget_bytes, seed=how.seed,
            time_limit_s=how.time_limit_s, evaluations=how.evaluations,
        )  # fmt: skip
        made = exactly(step, asked, machine).at_or_refused(found.budget_bytes).plan
    except Infeasible as refusal:
        changes = _changes(question, refusal, how, need)
        said = network_rows(task, workload)
        return Answer(step.trace, said, question, need, None, None, refusal, changes, found.promise)
    if rows := split_rows(task):
        in_words = "; ".join(text for _, text in rows)
        made = replace(made, notes={**made.notes, "split": in_words})
    timeline = simulate(made.schedule, made.trace, machine)
    rows = network_rows(task, workload)
    return Answer(step.trace, rows, question, need, made, timeline, None, [], found.promise)


def _rows(workload: Workload, how: Options, answer: Answer) -> Rows:
    question, need = answer.question, answer.need
    shape = " x ".join(map(str, whole_of("input", answer.trace.variables)[0]))
    machine = question.machine
    scale = (
        f"0 % is {format_bytes(need.minimum_bytes)}, 100 % is {format_bytes(need.in_core_bytes)}"
    )
    rows = [
        ("step", f"{workload.model}, images {shape}, {workload.optimizer}"),
        *answer.network,
        ("machine", f"{machine.name}, {format_bytes(machine.device_bytes)}"),
        *host_rows(how, machine),
        ("in-core peak", f"{format_bytes(need.in_core_bytes)} at {need.peak_call}"),
        ("budgets", scale),
        ("budget", _budget_text(question, need)),
        *promise_rows(answer.promise),
    ]
    if answer.plan is not None and answer.timeline is not None:
        placed = _placement_rows(how, question, answer.plan)
        return rows + _plan_rows(need, answer.plan, answer.timeline) + placed
    assert answer.refusal is not None
    return rows + _refusal_rows(answer, answer.refusal, how)


def _budget_text(question: FitQuestion, need: Need) -> str:
    over = need.in_core_bytes - question.budget_bytes
    size = format_bytes(question.budget_bytes)
    part = share(question.budget_bytes, need.in_core_bytes)
    machine = question.machine
    there = format_bytes(machine.device_bytes)
    beyond = f"; {machine.name} has {there}" if question.budget_bytes > machine.device_bytes else ""
    if over <= 0:
        return f"{size}: fits in-core, {format_bytes(-over)} to spare{beyond}"
    return f"{size} ({part} of the peak): does not fit in-core by {format_bytes(over)}{beyond}"


def _placement_rows(how: Options, question: FitQuestion, made: Plan) -> Rows:
    """How far the allocator's placement is from the least that any needs, where it can differ."""
    choice = choose_allocator(how.allocator, 2 * made.peak_bytes, binding=False)
    if choice.granule.ranges:
        return []
    try:
        reserved = reserved_peak(made.schedule, made.trace, choice)
    except DoesNotFit as refusal:
        return [("placement", refusal.what), ("", f"{_AGAIN}, if it can")]
    rows = [("placement", placement(choice.name, reserved, made.peak_bytes))]
    if reserved > question.budget_bytes:
        rows.append(("", f"more than the budget: {_AGAIN}"))
    return rows


def _plan_rows(need: Need, made: Plan, timeline: Timeline) -> Rows:
    name = made.notes.get("chosen", made.notes.get("planner", ""))
    slower = timeline.makespan_us / need.in_core_us if need.in_core_us else 1.0
    rows = [
        ("verdict", f"fits with planner {name}, {format_bytes(made.peak_bytes)} at the peak"),
        ("predicted", f"{format_us(timeline.makespan_us)} a step, {slower:.2f} x in-core"),
        ("moved", f"{format_bytes(timeline.bytes_out)} out, {format_bytes(timeline.bytes_in)} in"),
        ("host peak", format_bytes(made.host_peak_bytes)),
        *tiling_rows(made),
        *search_rows(made),
    ]
    if made.lower_bound is not None:
        bound = made.lower_bound
        over = timeline.makespan_us / bound.makespan_us if bound.makespan_us else 1.0
        rows.append(("bound", f"{format_us(bound.makespan_us)} ({bound.kind}), step {over:.2f} x"))
    return rows


def _refusal_rows(answer: Answer, refusal: Infeasible, how: Options) -> Rows:
    lacking = (refusal.minimum_bytes or 0) - answer.question.budget_bytes
    where = f" at {refusal.witness_call}" if refusal.witness_call else ""
    text = f"does not fit with planner {how.planner} by {format_bytes(lacking)}{where}"
    verdict = text if lacking > 0 else f"does not fit: {refusal.what}"
    labels = ("fits with", *["or"] * len(answer.changes))
    fitting = list(zip(labels, map(describe_change, answer.changes), strict=False))
    rows = [("verdict", verdict), *(fitting or [("fits with", "none of the changes tried")])]
    if any(c.kind == "budget" for c in answer.changes) and (
        (refusal.minimum_bytes or 0) < answer.need.minimum_bytes
    ):
        rows.append(("", "a budget below 0 % runs the step in parts of calls (bands, tiles)"))
    return rows


def _changes(question: FitQuestion, refusal: Infeasible, how: Options, need: Need) -> list[Change]:
    # `auto` has asked the others already; integer programs take longer than an advice may.
    names = () if how.planner == "auto" else planners()
    left_out = {"auto", "checkmate", "checkmate-lp", how.planner}
    if question.budget_bytes < need.minimum_bytes:
        left_out |= set(PLANNERS)  # these run whole calls
    others = {name: get_planner(name) for name in names if name not in left_out}
    return changes_that_fit(question, refusal, as_planner(how.planner), others)


def _as_json(
    workload: Workload, how: Options, answer: Answer | None, error: BaseException | None
) -> dict[str, Any]:
    question, need = (answer.question, answer.need) if answer else (None, None)
    made, refusal = (answer.plan, answer.refusal) if answer else (None, None)
    drawn = drawing(made, answer.timeline) if made and answer and answer.timeline else NOT_DRAWN
    why, promise = refusal or error, answer.promise if answer else None
    return {
        "version": JSON_VERSION,
        "model": workload.title,
        "batch": workload.batch,
        "machine": question.machine.name if question else how.machine,
        "planner": how.planner,
        "budget_bytes": question.budget_bytes if question else None,
        "granule_bytes": question.granule.size_bytes if question else None,
        "incore_peak_bytes": need.in_core_bytes if need else None,
        "trace_minimum_bytes": need.minimum_bytes if need else None,
        "compute_us": need.compute_us if need else None,
        "incore_us": need.in_core_us if need else None,
        "feasible": made is not None,
        "minimum_bytes": why.minimum_bytes if isinstance(why, Infeasible) else None,
        "memory_bytes": promise.memory_bytes if promise else None,
        "promised_bytes": promise.promised_bytes if promise else None,
        "makespan_us": made.makespan_us if made else None,
        "peak_bytes": made.peak_bytes if made else None,
        "host_peak_bytes": made.host_peak_bytes if made else None,
        "changes": [asdict(change) for change in answer.changes] if answer else [],
        **drawn,
        "error": None if why is None else str(why) or type(why).__name__,
    }
