"""`ooctrain reproduce distributed`: paper 004's figure 11 beside what is computed here.

In: what is wanted. Out: the speed-up of an epoch over the bandwidth, on two machines; the same at
one bandwidth over the batch that it starts from; a figure, numbers. The one idea: the paper prints
one number, 2.1 at 10 Gbit/s, and not the time of the small batch that decides it; so both tables
stand beside each other. Read next: `distributed.py`; `report/charts.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table

from ooctrain.api import step_trace
from ooctrain.experiments.paper_004 import distributed as experiment
from ooctrain.experiments.paper_004.distributed import (
    BASELINE,
    HMMS,
    OURS,
    PAPERS_LOSS,
    Speedup,
    StepTimes,
)
from ooctrain.experiments.paper_004.hmms import IMAGE_SIZE
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
    write_figure(wanted, console, distributed_figure(curves, gains))
    return {
        "model": experiment.MODEL,
        "gradient_bytes": size_bytes,
        "alpha": experiment.ALPHA,
        "largest_in_core": in_core,
        "steps": [asdict(row) for row in times],
        "speedups": [asdict(row) for row in curves],
        "gains": [asdict(row) for row in gains],
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
