"""Paper 004's figures 1, 8 and 9 beside what is computed here: two tables and a figure.

In: the rows of `hmms.py`. Out: tables for a terminal, one SVG. The one idea: figure 1 explains the
two others: where the curve of what the link carries stays below the curve of what is generated,
somebody waits, and the timelines show who. Read next: `report/charts.py`, `report/svg.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate

from rich.table import Table

from ooctrain.experiments.paper_004.hmms import CallBytes, Share, Speed
from ooctrain.report.charts import Curve, Piece, curves_svg, stacked_svg, strips_svg
from ooctrain.report.svg import timelines_svg
from ooctrain.report.tables import plain_table
from ooctrain.sched.timeline import Timeline
from ooctrain.units import format_bytes

HERE, PAPER = 0, 1


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
        curves, x_axis="forward call", y_axis="GB, cumulated",
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
