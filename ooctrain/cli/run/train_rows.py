"""What `train` prints of a run: the plan before its first step, and what came of it after the last.

Each row is a name and a text; `../train_command.py` puts them on the console. Peaks, bytes moved
and times stand next to their predictions, so that the reader can hold the run to the plan.
The bound is that of `sched/bounds/closed.py` with call times as measured in-core, and stands there
only where `--verify` has run the steps in-core, too. Read next: `../train_command.py`,
`kept_promise.py`.
"""

from __future__ import annotations

from dataclasses import replace

from ooctrain.cli.run.kept_promise import Rows, counted_rows
from ooctrain.cli.run.run_record import RunRecord, TrainingRun, typical_us
from ooctrain.cli.step_limits import promise_rows
from ooctrain.cli.step_options import Workload
from ooctrain.cli.workload import Task, network_rows
from ooctrain.execution.prepared_step import PreparedStep
from ooctrain.machine.measured import profile_of_steps
from ooctrain.report.text import placement, search_rows, share, tiling_rows
from ooctrain.rewrite import keeps_bits
from ooctrain.sched.bounds.closed import lower_bound
from ooctrain.step.presets import PRESETS
from ooctrain.units import format_bytes, format_percent, format_us

#: Planning is shown where it takes this share of a step, as where boundaries are drawn anew.
LEAST_PLANNING = 0.02


def task_rows(workload: Workload, task: Task) -> Rows:
    """What is trained: printed before anything that takes long."""
    return [
        ("training", f"{workload.model} on {workload.data}, batch {workload.batch}"),
        *network_rows(task, workload),
    ]


def plan_rows(prepared: PreparedStep) -> Rows:
    """How it was planned: printed before the first step."""
    peak, budget = prepared.in_core_peak_bytes, prepared.budget_bytes
    plan = prepared.plan
    name = plan.notes.get("chosen", plan.notes.get("planner", ""))
    return [
        ("in-core peak", format_bytes(peak)),
        ("budget", _budget_text(budget, peak)),
        *promise_rows(prepared.promise),
        *_measured_row(prepared),
        ("plan", f"{name}, {len(plan.schedule)} instructions"),
        *tiling_rows(plan),
        *search_rows(plan),
        ("placement", placement(prepared.allocator.name, prepared.reserved_bytes, plan.peak_bytes)),
    ]


def _budget_text(budget: int, peak: int) -> str:
    """A budget, and what it means for the step."""
    if budget > peak:
        return f"{format_bytes(budget)}, more than the in-core peak: nothing has to leave"
    return f"{format_bytes(budget)}, {share(budget, peak)} of the in-core peak"


def _measured_row(prepared: PreparedStep) -> Rows:
    """Why the same command may be planned otherwise next time."""
    if prepared.promise is None:
        return []
    said = "the process itself is measured at each start; where less is compiled already it holds "
    return [("", f"{said}more, and arena and plan may differ")]


def summary_rows(prepared: PreparedStep, run: TrainingRun, *, stopped: bool) -> Rows:
    """What came of it: printed after the last step.

    Args:
        stopped: whether the user ended the run between two steps.
    """
    record, extent = run.record, run.options.extent
    rows: Rows = [("", "")]
    if stopped:
        rows.append(("stopped", _stopped(run)))
    elif not record.step_us:
        rows.append(("resumed", _nothing_left(run)))
    if record.identical_to_incore is not None:
        same = "the same bits as in-core" if record.identical_to_incore else "NOT those of in-core"
        alike = "" if keeps_bits(prepared.plan.rewrites) else ", tiled alike"
        rows.append(("result", f"{same}{alike}: every loss, parameter and statistic"))
        done = len(record.losses)
        if record.verify_steps is not None and record.verify_steps < done:
            rows.append(("", f"{record.verify_steps} of {done} steps compared"))
    if record.test_accuracy is not None:
        right = format_percent(record.test_accuracy, 1)
        rows.append(("accuracy", f"{right} of {record.tested_on}"))
    timeline, predicted = record.timeline, prepared.plan.peak_bytes
    if timeline is not None:
        equal = "=" if timeline.peak_bytes == predicted else "but"
        measured = format_bytes(timeline.peak_bytes)
        peaks = f"predicted {format_bytes(predicted)} {equal} measured {measured}"
        rows.append(
            ("peak", f"{peaks} ({share(predicted, prepared.in_core_peak_bytes)} of in-core)")
        )
        moved = f"{format_bytes(timeline.bytes_out)} out, {format_bytes(timeline.bytes_in)} in"
        rows.append(("moved", f"{moved} a step"))
    rows += counted_rows(prepared.promise, record)
    rows += _time_rows(prepared, record)
    if record.saved:
        rows.append(("checkpoint", f"{extent.checkpoint_path}; --resume FILE goes on from there"))
    if extent.save_weights_path:
        rows.append(("weights", f"{extent.save_weights_path}; --weights FILE begins with them"))
    elif record.step_us and not stopped and not record.saved:
        rows.append(
            ("not saved", "--checkpoint FILE keeps what was learned, --resume FILE goes on")
        )
    return rows


def _stopped(run: TrainingRun) -> str:
    """By the user, between two steps."""
    path = run.options.extent.checkpoint_path
    how = f"; --resume {path} goes on" if path else "; with --checkpoint FILE it could go on later"
    return f"after step {run.trainer.steps_done}, as you asked{how}"


def _nothing_left(run: TrainingRun) -> str:
    """What a run says that has reached its end before it was resumed."""
    extent, done = run.options.extent, run.trainer.steps_done
    assert run.task.train is not None, "it has been trained"
    epochs_done = done // max(1, len(run.task.train) // run.options.workload.batch)
    limits = {"--epochs": (extent.epochs, epochs_done), "--steps": (extent.steps, done)}
    reached = {name: most for name, (most, now) in limits.items() if most and now >= most}
    asked = " ".join(f"{name} {most}" for name, most in reached.items())
    return (
        f"{extent.resume_path} has done {done} steps already: nothing is left to do with {asked}; "
        f"a larger {' and '.join(reached)} goes on"
    )


def _time_rows(prepared: PreparedStep, record: RunRecord) -> Rows:
    step_us = typical_us(record.step_us)
    if step_us is None:
        return []
    rows = [("step", f"{format_us(step_us)} (median)")]
    plan_us = typical_us(record.plan_us)
    if plan_us is not None and plan_us > LEAST_PLANNING * step_us:
        rows.append(("planning", f"{format_us(plan_us)} before each step (median)"))
    in_core_us = typical_us(record.incore_step_us)
    if in_core_us is not None:
        rows.append(("in-core step", f"{format_us(in_core_us)}: {step_us / in_core_us:.2f} x"))
    bound = _bound_us(prepared, record)
    if bound is not None:
        ratio = f"{format_us(bound)}: {step_us / bound:.2f} x"
        name = prepared.machine.name
        preset = f", by the preset {name}; `ooctrain calibrate` measures this machine's own"
        rows.append(("bound", ratio + (preset if name in PRESETS else "")))
    return rows


def _bound_us(prepared: PreparedStep, record: RunRecord) -> float | None:
    """What no schedule can beat, with call times as measured in-core; None where nothing was."""
    measured = record.incore_timelines
    if not measured:
        return None
    profile = profile_of_steps(measured, prepared.plan.trace)
    machine = replace(prepared.machine, profile=profile, interference=1.0)
    return lower_bound(prepared.plan.trace, prepared.budget_bytes, machine).makespan_us or None
