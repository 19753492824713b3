"""`ooctrain train`: trains within a budget, shows the swapping, and reports its cost.

From a model, data and a budget it makes a trained model in a checkpoint, a summary, and numbers as
JSON; status 3 means that the step does not fit. With --verify the same steps run in-core too, and
every bit is compared. Read next: `training.py` for the run,
`run/train_rows.py` for what is printed, `docs/json.md` for the numbers.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from ooctrain.activity import doing
from ooctrain.cli import DONE, FAILED, training
from ooctrain.cli.command_ranks import (
    agree_on_run,
    is_compared_on_all,
    rank_rows,
    ranks_of_run,
    with_cores,
)
from ooctrain.cli.launch import launch
from ooctrain.cli.live import Lines, shown
from ooctrain.cli.options import file_option, gathered, json_option
from ooctrain.cli.run.kept_promise import expect_kept
from ooctrain.cli.run.run_files import (
    changes,
    expect_comparable,
    save_weights,
    steps_apart,
    take_up,
)
from ooctrain.cli.run.run_record import (
    WARMUP_STEPS,
    EpochEnd,
    RunOptions,
    RunRecord,
    TrainingRun,
)  # fmt: skip
from ooctrain.cli.run.train_rows import plan_rows, summary_rows, task_rows
from ooctrain.cli.step_options import Extent, RankOptions, Workload, step_options
from ooctrain.cli.stepping import Stepping
from ooctrain.cli.terminal import make_console
from ooctrain.cli.workload import (
    host_rows,
    make_task,
    usual_data,
    written_rows,
)
from ooctrain.devices.cpu.process_memory import MemoryWatch
from ooctrain.devices.interface import Debug
from ooctrain.distributed.mpi import launched_ranks
from ooctrain.distributed.ranks import Ranks
from ooctrain.errors import ConfigError
from ooctrain.execution.checkpoint import only_writer
from ooctrain.execution.placement import allocation_log
from ooctrain.execution.prepared_step import PreparedStep
from ooctrain.execution.settings import Options
from ooctrain.report.numbers_file import write_numbers
from ooctrain.report.record import NOT_DRAWN, drawing
from ooctrain.report.text import facts
from ooctrain.step.option import option
from ooctrain.train import Trainer

JSON_VERSION = 1


@dataclass(frozen=True, slots=True)
class Looking:
    """How closely a run is looked at.

    Args:
        verify_steps: with how many of the first steps `verify` is done; None: with all, if at all.
    """

    verify: bool = option(False, "Run in-core as well and compare every bit.")
    verify_steps: int | None = option(None, "The same with the first steps alone.", least=1)
    stops: bool = option(False, "Stop before each instruction and explain it.", flag="step")

    @property
    def compares(self) -> bool:
        """Whether steps run in-core as well."""
        return self.verify or self.verify_steps is not None


@click.command()
@step_options
@json_option
@gathered("extent", Extent)
@gathered("shared", RankOptions)
@file_option(
    "--allocation-log", "log_path", text="Write what the steps ask of the allocator, for `replay`."
)
@gathered("looking", Looking)
def train(
    workload: Workload, how: Options, extent: Extent, json_path: str | None,
    looking: Looking, log_path: str | None, shared: RankOptions,
) -> int:  # fmt: skip
    """Train MODEL within a memory budget; with --ranks, or under mpiexec, on several ranks."""
    if looking.stops and max(shared.ranks or 1, launched_ranks()) > 1:
        raise ConfigError("--step asks one process, and several would run", fix="--ranks 1")
    if shared.ranks is not None and shared.ranks > 1 == launched_ranks():
        return launch(shared.ranks, click.get_current_context().find_root().obj)
    with ranks_of_run(shared) as ranks:
        files = (json_path, log_path) if ranks is None or ranks.is_first else (None, None)
        options = RunOptions(workload, with_cores(how, ranks), extent)
        return _train(options, ranks, files, looking)


def _train(
    options: RunOptions, ranks: Ranks | None, files: tuple[str | None, str | None],
    looking: Looking,
) -> int:  # fmt: skip
    """Trains as asked.

    Args:
        files: for numbers as JSON, and for the allocation log.
    """
    workload, how, extent = options.workload, options.how, options.extent
    json_path, log_path = files
    data = usual_data(workload) if workload.data is None else workload.data
    workload = replace(workload, data=data)
    extent = replace(extent, checkpoint_path=extent.checkpoint_path or extent.resume_path)
    options = RunOptions(workload, how, extent)
    console, record = make_console(), RunRecord()
    console.quiet = ranks is not None and not ranks.is_first
    trainer: Trainer | None = None
    error: BaseException | None = None
    try:
        record.watch = None if how.memory is None else MemoryWatch()  # while data is read, too
        task = make_task(workload, how.seed)
        if ranks is not None:
            agree_on_run(ranks, options, task, verify=looking.compares)
        trainer = training.make_trainer(task, workload, how, ranks=ranks)
        writes = ranks is None or ranks.is_first
        with only_writer(_to_hold(extent) if writes else None):
            _run(console, TrainingRun(options, task, trainer, record), looking)
        if log_path and trainer.prepared:
            write_log(trainer.prepared, workload, log_path)
            console.print(f"wrote {log_path}")
        expect_kept(trainer.prepared.promise if trainer.prepared else None, record)
    except BaseException as caught:
        error = caught
        raise
    finally:
        prepared = trainer.prepared if trainer else None
        if record.watch:
            record.watch.close()
        if json_path:
            write_numbers(json_path, _as_json(options, record, prepared, error))
        if trainer:
            trainer.close()
    return FAILED if record.identical_to_incore is False else DONE


def _to_hold(extent: Extent) -> str | None:
    """The checkpoint that a run writes; None: none, or there is no folder to resume from."""
    resumed = extent.resume_path
    return None if resumed and not Path(resumed).parent.is_dir() else extent.checkpoint_path


def _run(console: Console, run: TrainingRun, looking: Looking) -> None:
    trainer, asked = run.trainer, run.options
    workload, how, extent = asked.workload, asked.how, asked.extent
    before = take_up(run)  # first: a broken file needs no plan
    ranks = trainer.ranks
    steps_per_epoch = len(training.make_loader(run))
    changed = changes(run, before, steps_per_epoch)
    run.record.verify_steps = looking.verify_steps
    if looking.compares:
        expect_comparable(run, before, steps_per_epoch)
    apart = steps_apart(run, before, steps_per_epoch)
    lines = Lines(console, "", steps_per_epoch, extent, apart)
    stepping = Stepping(lines, trainer) if looking.stops else None
    if stepping:
        debug = Debug(before=stepping.before)
        trainer.settings = replace(trainer.settings, debug=debug)
    part = workload.batch // (1 if ranks is None else ranks.count)
    console.print(facts(task_rows(workload, run.task), least=len("in-core peak")))
    if how.memory is not None:  # what a process promises is compiled before
        _say_that_it_compiles(console)
    with doing("planning"):
        prepared = trainer.prepare(run.task.input_shape(part))
    rows = plan_rows(prepared)
    rows += host_rows(how, prepared.machine)
    rows += written_rows(how, prepared.host_written_bytes, lines.total_steps)
    console.print(facts([*rows, *rank_rows(ranks, workload.batch)]))
    for notice in (*prepared.notices, *changed):
        console.print(f"note: {notice}")
    if how.memory is None:
        _say_that_it_compiles(console)
    in_core = prepared.plan.notes.get("planner") == "keep-all"
    lines.title = "in-core" if in_core else "out-of-core"
    with nullcontext(stepping) if stepping else shown(lines) as display:
        training.run_training(run, display, before)
    verifies = looking.compares and bool(run.record.losses)
    on_all = verifies and is_compared_on_all(ranks, trainer)
    if ranks is not None and not ranks.is_first:
        if on_all:  # the console of this rank says nothing
            training.compare_with_in_core(run, display, on_all)
        return
    save_weights(run)
    if not display.ends:
        training.run_test(run)
    if run.record.watch:
        trainer.close()  # the values come home, which is promised, too
        run.record.watch.close()
    if verifies:
        compared = min(looking.verify_steps or lines.total_steps, lines.total_steps)
        until = replace(extent, steps=compared)
        with shown(Lines(console, "in-core again", steps_per_epoch, until)) as again:
            training.compare_with_in_core(run, again, on_all)
    console.print(facts(summary_rows(prepared, run, stopped=display.ends)))


def _say_that_it_compiles(console: Console) -> None:
    if not has_compiled_kernels():
        console.print("compiling the kernels, once; later starts take them from the cache ...")


def write_log(prepared: PreparedStep, workload: Workload, path: str) -> None:
    """Writes the requests of the first steps; the executor makes exactly these."""
    plan, allocator = prepared.plan, prepared.allocator
    about = f"{workload.model}, batch {workload.batch}, planner {plan.notes.get('planner', '')}"
    log = allocation_log(plan.trace, plan.schedule, prepared.budget_bytes, allocator)
    replace(log, about=about).save(path)


def _row_of(end: EpochEnd) -> dict[str, Any]:
    return {
        "epoch": end.number,
        "loss": end.loss,
        "test_loss": end.test_loss,
        "test_accuracy": end.accuracy,
    }


def has_compiled_kernels() -> bool:
    """Whether the cache holds kernels of these sources on this processor."""
    # Not at the top, since it loads Numba, and `--help` is to answer at once.
    from ooctrain.layers.kernels.cpu.runtime.kernel_jit import cache_folder

    folder = cache_folder()
    return folder.is_dir() and any(folder.iterdir())


def _as_json(
    options: RunOptions, record: RunRecord, prepared: PreparedStep | None,
    error: BaseException | None,
) -> dict[str, Any]:  # fmt: skip
    workload, how = options.workload, options.how
    timeline, plan = record.timeline, prepared.plan if prepared else None
    predicted = prepared.predict() if prepared else None
    drawn = drawing(plan, timeline, predicted) if plan and timeline else NOT_DRAWN
    promise = prepared.promise if prepared else None
    return {
        "version": JSON_VERSION,
        "model": workload.title,
        "data": workload.data,
        "batch": workload.batch,
        "epochs": options.extent.epochs,
        "seed": how.seed,
        "budget_bytes": prepared.budget_bytes if prepared else None,
        "planner": how.planner,
        "allocator": prepared.allocator.name if prepared else how.allocator,
        "granule_bytes": prepared.allocator.granule.size_bytes if prepared else None,
        "device": how.device,
        "machine": prepared.machine.name if prepared else how.machine,
        "losses": record.losses,
        "curve": [_row_of(end) for end in record.epochs],
        "test_loss": record.test_loss,
        "test_accuracy": record.test_accuracy,
        "peak_bytes": timeline.peak_bytes if timeline else None,
        "predicted_peak_bytes": plan.peak_bytes if plan else None,
        "reserved_peak_bytes": prepared.reserved_bytes if prepared else None,
        "host_peak_bytes": timeline.host_peak_bytes if timeline else None,
        "step_us": record.step_us,
        "warmup_steps": WARMUP_STEPS,
        "predicted_step_us": predicted.makespan_us if predicted else None,
        "incore_peak_bytes": prepared.in_core_peak_bytes if prepared else None,
        "memory_bytes": promise.memory_bytes if promise else None,
        "promised_bytes": promise.promised_bytes if promise else None,
        "counted_peak_bytes": record.watch.most_bytes if record.watch else None,
        "incore_step_us": record.incore_step_us,
        "bytes_out": timeline.bytes_out if timeline else None,
        "bytes_in": timeline.bytes_in if timeline else None,
        "identical_to_incore": record.identical_to_incore,
        **drawn,
        "error": None if error is None else str(error) or type(error).__name__,
    }
