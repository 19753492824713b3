"""`ooctrain reproduce hmms`: paper 004's figures 1, 8 and 9, and the values computed here.

It shows two tables, on the preset machine and on the one that is fitted to a printed figure; a
picture of the second; and numbers. Figure 1 explains the two others: a call waits where the curve
of what the link carries stays below the curve of what is generated, and the timelines show which
call. Read next: `hmms.py`; `report/charts.py`, `report/svg.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import accumulate
from typing import Any

from rich.console import Console
from rich.table import Table

from ooctrain.api import step_trace
from ooctrain.experiments.paper_004 import hmms as experiment
from ooctrain.experiments.paper_004.hmms import CallBytes, Share, Speed
from ooctrain.experiments.reproducing import Wanted, print_title, write_figure
from ooctrain.report.charts import Curve, Piece, curves_svg, stacked_svg, strips_svg
from ooctrain.report.svg import timelines_svg
from ooctrain.report.tables import plain_table
from ooctrain.sched.timeline import Timeline
from ooctrain.units import format_bytes

HERE, PAPER = 0, 1


def hmms(wanted: Wanted, console: Console) -> Mapping[str, Any]:
    """Paper 004, figures 1, 8 and 9."""
    batch = experiment.QUICK_BATCH if wanted.quick else experiment.BATCH
    preset, fitted = experiment.machines(batch)
    shares = [row for where in (preset, fitted) for row in experiment.shares(batch, where)]
    print_title(console, "What can be offloaded without loss")
    console.print(share_table(shares))
    plans = {
        (where.name, model): experiment.plans(model, batch, where)
        for where in (preset, fitted)
        for model in experiment.FIGURE_8
    }
    speeds = [
        row
        for where in (preset, fitted)
        for model in experiment.FIGURE_8
        for row in experiment.speeds(model, batch, where, plans[where.name, model])
    ]
    print_title(console, f"\nThree memory plans at batch {batch}, simulated (paper 004)")
    console.print(speed_table(speeds))
    calls = {
        model: experiment.call_bytes(step_trace(model, batch, experiment.IMAGE_SIZE), fitted)
        for model in experiment.FIGURE_1
    }
    profiled = experiment.FIGURE_9
    step = step_trace(profiled, batch, experiment.IMAGE_SIZE)
    figure = hmms_figure(
        calls, [row for row in speeds if row.machine == fitted.name],
        experiment.timelines(plans[fitted.name, profiled], fitted),
        {call.name: call.phase for call in step.calls}, profiled,
    )  # fmt: skip
    write_figure(wanted, console, figure)
    return {
        "batch": batch,
        "machines": [asdict(where) | {"profile": {}} for where in (preset, fitted)],
        "shares": [asdict(row) for row in shares],
        "speeds": [asdict(row) for row in speeds],
        "calls": {model: [asdict(row) for row in rows] for model, rows in calls.items()},
    }


def share_table(rows: Sequence[Share]) -> Table:
    """What can be offloaded for nothing; what exceeds the whole is the whole."""
    table = plain_table(
        "machine", "network", "batch norm", "offloadable", "paper 004",
        left=("machine", "network", "batch norm"),
    )  # fmt: skip
    for row in rows:
        again = "recomputed" if row.recomputed else "kept"
        shown = f"{row.share:.0%}" if row.share <= 1 else f"all ({row.share:.2f} times)"
        paper = f"{row.printed:.0%}" if row.printed < 1 else "all"
        table.add_row(row.machine, row.model, again, shown, paper)
    return table


def speed_table(rows: Sequence[Speed]) -> Table:
    """The loss of each memory plan; the paper's in brackets."""
    table = plain_table(
        "machine", "network", "plan", "offloaded", "out", "peak", "images/s", "loss",
        left=("machine", "network", "plan"),
    )  # fmt: skip
    for row in rows:
        paper = "" if row.printed is None else f" ({row.printed:.1%})"
        table.add_row(
            row.machine, row.model, row.method, f"{row.ratio:.0%}", format_bytes(row.bytes_out),
            format_bytes(row.peak_bytes), f"{row.images_per_s:.0f}", f"{row.loss:.1%}{paper}",
        )  # fmt: skip
    return table


def hmms_figure(
    calls: Mapping[str, Sequence[CallBytes]], speeds: Sequence[Speed],
    profiles: Mapping[str, Timeline], phases: Mapping[str, str], profiled: str,
) -> str:  # fmt: skip
    """SVG: figure 1 for each network, figure 8, figure 9.

    Args:
        calls: {network: its forward calls}.
        speeds: of one machine.
        profiles: {method: timeline}; phases: {call: phase}.
        profiled: the network of the timelines.
    """
    ones = [_one(model, rows) for model, rows in calls.items()]
    titled = {f"Figure 9, {profiled}, {method}": timeline for method, timeline in profiles.items()}
    return stacked_svg([*ones, _eight(speeds), timelines_svg(titled, phases=phases)])


def _one(model: str, rows: Sequence[CallBytes]) -> str:
    generated = accumulate(row.generated_bytes / 1e9 for row in rows)
    offloadable = accumulate(row.offloadable_bytes / 1e9 for row in rows)
    curves = [
        Curve(name, list(enumerate(values, 1)))
        for name, values in (("generated", generated), ("the link carries", offloadable))
    ]
    return curves_svg(
        f"Figure 1, {model}: what forward calls leave for backward ones, and what the link carries",
        curves, axes=("forward call", "GB, cumulated"),
    )  # fmt: skip


def _eight(rows: Sequence[Speed]) -> str:
    strips = []
    for row in rows:
        kept = 100 * (1 - row.loss)
        strips.append((f"{row.model}, {row.method}", [Piece(0, kept, f"here {kept:.1f} %", HERE)]))
        if row.printed is not None:
            kept = 100 * (1 - row.printed)
            strips.append(("", [Piece(0, kept, f"paper {kept:.1f} %", PAPER)]))
    return strips_svg(
        "Figure 8: throughput of three memory plans", strips, extent=100.0,
        axis="% of the baseline's", legend=("simulated", "paper 004, measured"),
    )  # fmt: skip
