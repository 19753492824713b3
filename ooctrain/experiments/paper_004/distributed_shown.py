"""`ooctrain reproduce distributed`: paper 004's figure 11, and the values computed here.

One table has the speed-up of an epoch over the bandwidth, on two machines; another has it at one
bandwidth over the batch that it starts from. Both are shown because the paper prints one number,
2.1 at 10 Gbit/s, but not the time of the small batch that decides it. All this is a formula, so
measured steps of ranks of this machine, over such networks, are shown too, with a figure and
numbers. Read next: `distributed.py`, `ranks_runs.py`; `report/charts.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table

from ooctrain.api import step_trace
from ooctrain.experiments.paper_004 import distributed as experiment
from ooctrain.experiments.paper_004 import ranks_runs
from ooctrain.experiments.paper_004.distributed import (
    BASELINE,
    HMMS,
    OURS,
    PAPERS_LOSS,
    Speedup,
    StepTimes,
)
from ooctrain.experiments.paper_004.hmms import IMAGE_SIZE
from ooctrain.experiments.paper_004.ranks_runs import RankStep
from ooctrain.experiments.reproducing import Wanted, print_title, write_figure
from ooctrain.report.charts import Curve, curves_svg, stacked_svg
from ooctrain.report.tables import or_dash, plain_table
from ooctrain.units import format_bytes, format_us


def distributed(wanted: Wanted, console: Console) -> Mapping[str, Any]:
    """Paper 004, figure 11."""
    small, large = experiment.BATCH, experiment.BATCH * experiment.TIMES
    # Its search takes seconds.
    ways = (PAPERS_LOSS, HMMS) if wanted.quick else (PAPERS_LOSS, HMMS, OURS)
    machines = experiment.both_machines()
    size_bytes = experiment.gradient_bytes(step_trace(experiment.MODEL, small, IMAGE_SIZE))
    times: list[StepTimes] = []
    curves: list[Speedup] = []
    for where in machines:
        baseline = experiment.step_times(small, where, BASELINE)
        others = [experiment.step_times(large, where, way) for way in ways]
        times += [baseline, *others]
        curves += [r for other in others for r in experiment.speedups(baseline, other, size_bytes)]
    about = f" ({format_bytes(size_bytes)} of gradients)"
    print_title(console, f"A step of {experiment.MODEL}, simulated", about)
    console.print(times_table(times))
    print_title(console, f"\nHow much faster an epoch is with batch {large} than with {small}")
    console.print(speedup_table(curves))
    gains = [row for where in machines for row in experiment.gains(where)]
    in_core = experiment.largest_in_core(machines[0])
    about = f" (without any method {in_core} fits)"
    title = f"\nThe same at {experiment.AT_GBIT_S:g} Gbit/s from other batches, computing alone"
    print_title(console, title, about)
    console.print(gain_table(gains))
    lacking = "not run here: --quick" if wanted.quick else ranks_runs.why_not()
    title = f"\nSteps of {ranks_runs.MODEL} on ranks of this machine, over an imposed bandwidth"
    print_title(console, title, f" ({lacking})" if lacking else "")
    runs = [] if lacking else list(ranks_runs.rank_steps())
    if runs:
        console.print(runs_table(runs))
    write_figure(wanted, console, distributed_figure(curves, gains))
    return {
        "model": experiment.MODEL,
        "gradient_bytes": size_bytes,
        "alpha": experiment.ALPHA,
        "largest_in_core": in_core,
        "steps": [asdict(row) for row in times],
        "speedups": [asdict(row) for row in curves],
        "gains": [asdict(row) for row in gains],
        "runs": [asdict(row) for row in runs],
        "not_run": lacking or None,
    }


def times_table(rows: Sequence[StepTimes]) -> Table:
    """Forwards, backwards, and the memory of the list."""
    table = plain_table(
        "machine", "step", "batch", "forwards", "backwards", "images/s", "memory",
        left=("machine", "step"),
    )  # fmt: skip
    for row in rows:
        speed = row.batch / (row.forward_us + row.backward_us) * 1e6
        memory = "" if row.peak_bytes is None else format_bytes(row.peak_bytes)
        table.add_row(
            row.machine, row.way, str(row.batch), format_us(row.forward_us),
            format_us(row.backward_us), f"{speed:.0f}", memory,
        )  # fmt: skip
    return table


def speedup_table(rows: Sequence[Speedup]) -> Table:
    """A line for each machine and bandwidth, a column for each way to train the large batch."""
    ways = list(dict.fromkeys(row.way for row in rows))
    table = plain_table("machine", "Gbit/s", "exchange", *ways, "paper 004", left=("machine",))
    for where, gbit_s in dict.fromkeys((row.machine, row.gbit_s) for row in rows):
        here = [row for row in rows if (row.machine, row.gbit_s) == (where, gbit_s)]
        table.add_row(
            where, f"{gbit_s:g}", format_us(here[0].network_us),
            *(f"{row.speedup:.2f}" for row in here), or_dash(here[0].printed),
        )  # fmt: skip
    return table


def gain_table(rows: Sequence[Speedup]) -> Table:
    """A line for each machine, a column for each batch that it starts from."""
    batches = list(dict.fromkeys(row.small_batch for row in rows))
    table = plain_table("machine", *(f"from {batch}" for batch in batches), left=("machine",))
    for where in dict.fromkeys(row.machine for row in rows):
        here = {row.small_batch: row for row in rows if row.machine == where}
        table.add_row(where, *(f"{here[batch].speedup:.2f}" for batch in batches))
    return table


def runs_table(rows: Sequence[RankStep]) -> Table:
    """Measured and predicted, and how many times as fast six times the batch is."""
    table = plain_table(
        "ranks", "Gbit/s", "images of a rank", "measured", "predicted", "error", "six times",
        "predicted",
    )  # fmt: skip
    small = {(row.ranks, row.gbit_s): row for row in rows if row.batch == min(ranks_runs.BATCHES)}
    for row in rows:
        start = small[row.ranks, row.gbit_s]
        table.add_row(
            str(row.ranks), "as fast as it goes" if row.gbit_s is None else f"{row.gbit_s:g}",
            str(row.batch), format_us(row.step_us),
            "" if row.predicted_us is None else format_us(row.predicted_us),
            "" if row.predicted_us is None else f"{row.predicted_us / row.step_us - 1:+.0%}",
            *_times_as_fast(start, row),
        )  # fmt: skip
    return table


def _times_as_fast(small: RankStep, large: RankStep) -> tuple[str, str]:
    """Measured and predicted speed of the larger batch over that of the smaller one."""
    if small.batch == large.batch:
        return "", ""
    factor = large.batch / small.batch
    found = f"{factor * small.step_us / large.step_us:.2f}"
    if small.predicted_us is None or large.predicted_us is None:
        return found, ""
    return found, f"{factor * small.predicted_us / large.predicted_us:.2f}"


def distributed_figure(curves: Sequence[Speedup], gains: Sequence[Speedup]) -> str:
    """SVG: figure 11, and the gain over the batch that it starts from. The ways to train the large
    batch would hide each other, so one is drawn."""
    names = list(dict.fromkeys(row.machine for row in curves))
    eleven = [Curve(where, _points(curves, where)) for where in names]
    printed = sorted({(row.gbit_s, row.printed) for row in curves if row.printed is not None})
    machines = [
        Curve(where, [(row.small_batch, row.speedup) for row in gains if row.machine == where])
        for where in names
    ]
    return stacked_svg(
        [
            curves_svg(
                f"Figure 11: an epoch with six times the batch ({HMMS}), how many times as fast",
                [*eleven, Curve("paper 004", printed)], axes=("Gbit/s", "times as fast"),
                doubling=True,
            ),
            curves_svg(
                f"At {experiment.AT_GBIT_S:g} Gbit/s, from other batches", machines,
                axes=("batch of the baseline", "times as fast"), doubling=True,
            ),
        ]
    )  # fmt: skip


def _points(rows: Sequence[Speedup], where: str) -> list[tuple[float, float]]:
    """From slow networks to fast ones."""
    return sorted((r.gbit_s, r.speedup) for r in rows if (r.machine, r.way) == (where, HMMS))
