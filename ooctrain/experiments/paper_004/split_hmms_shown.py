"""`ooctrain reproduce split-hmms`: paper 004's figure 10, and the values computed here.

It shows a table of largest batches and speeds, one of calls that need more than half of the memory,
a picture and numbers. Read next: `split_hmms.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table

from ooctrain.experiments.paper_004 import split_hmms as experiment
from ooctrain.experiments.paper_004.hmms import QUICK_BATCH, machines
from ooctrain.experiments.paper_004.split_hmms import SPLIT, WHOLE, LargeCalls, SplitBatch
from ooctrain.experiments.reproducing import Wanted, print_title, write_figure
from ooctrain.experiments.spread import spread
from ooctrain.report.charts import Piece, strips_svg
from ooctrain.report.tables import plain_table
from ooctrain.units import format_bytes

HERE, PAPER, EXACT = 0, 1, 2


def split_hmms(wanted: Wanted, console: Console) -> Mapping[str, Any]:
    """Paper 004, figure 10."""
    _, where = machines(QUICK_BATCH)
    step, most, names = experiment.STEP, experiment.MOST, tuple[str, ...]()
    if wanted.quick:
        step, most = experiment.QUICK_STEP, experiment.QUICK_MOST
        names = experiment.QUICK_METHODS
    models = ("vgg19",) if wanted.quick else tuple(experiment.METHODS)
    cases = [c for model in models for c in experiment.cases_of(model, where, step, most, names)]
    rows: list[SplitBatch] = []
    with console.status("") as status:
        found = spread(experiment.reached, cases, 1 if wanted.quick else None, wanted.keep)
        for row in experiment.largest_batches(cases, found):
            rows.append(row)
            status.update(f"{row.model}, {row.method}: {row.batch}")
    calls: list[LargeCalls] = []
    for model in models:
        # Where the split is compared with itself unsplit: at the largest batch that it reaches.
        split = [row.batch for row in rows if row.model == model and not row.exact]
        batch = max(split, default=0) or step
        calls += [experiment.large_calls(model, batch, words, where) for words in (WHOLE, SPLIT)]
    memory = format_bytes(where.device_bytes)
    about = f"  {most}+: no larger one was tried"
    print_title(
        console, f"Largest batches in {memory}, simulated on {where.name} (paper 004)", about
    )
    console.print(batch_table(rows))
    print_title(console, f"\nCalls that need more than half of {memory} by themselves")
    console.print(call_table(calls))
    write_figure(wanted, console, figure(rows))
    return {
        "machine": asdict(where) | {"profile": {}}, "split": SPLIT, "batch_step": step,
        "batches": [asdict(row) for row in rows], "calls": [asdict(row) for row in calls],
    }  # fmt: skip


def batch_table(rows: Sequence[SplitBatch]) -> Table:
    """The largest batch of each method; the paper's figures in brackets."""
    table = plain_table(
        "network", "method", "results", "batch", "times", "images/s", "loss", "peak",
        left=("network", "method", "results"),
    )  # fmt: skip
    for row in rows:
        times = "" if row.printed_times is None else f" ({row.printed_times:.0f})"
        loss = "" if row.printed_loss is None else f" ({row.printed_loss:.1%})"
        table.add_row(
            row.model, row.method, "the same" if row.exact else "another network",
            f"{row.batch}{'+' if row.ends else ''}",
            f"{row.times:.1f}{times}", f"{row.images_per_s:.0f}", f"{row.loss:.1%}{loss}",
            format_bytes(row.peak_bytes),
        )  # fmt: skip
    return table


def call_table(rows: Sequence[LargeCalls]) -> Table:
    """Large calls before the split and after."""
    table = plain_table(
        "network", "batch", "split", "calls", "large", "largest", "needs", "workspace", "least",
        left=("network", "split", "largest"),
    )  # fmt: skip
    for row in rows:
        table.add_row(
            row.model, str(row.batch), row.split or "no", str(row.calls), str(row.large),
            row.largest, format_bytes(row.largest_bytes), format_bytes(row.workspace_bytes),
            format_bytes(row.minimum_bytes),
        )  # fmt: skip
    return table


def figure(rows: Sequence[SplitBatch]) -> str:
    """SVG: the largest batches, as multiples of the baseline's."""
    most = max((row.times for row in rows), default=1.0) + 1
    strips = []
    for row in rows:
        colour = EXACT if row.exact else HERE
        text = f"{row.batch}: {row.times:.1f} times, {-row.loss:+.1%}"
        strips.append((f"{row.model}, {row.method}", [Piece(0, row.times, text, colour)]))
        if row.printed_times is not None:
            text = f"paper {row.printed_times:.0f} times, {-(row.printed_loss or 0):+.1%}"
            strips.append(("", [Piece(0, row.printed_times, text, PAPER)]))
    return strips_svg(
        "Figure 10: largest batch and change of speed", strips, extent=max(most, 7.0),
        axis="times the baseline's batch",
        legend=("split, simulated", "paper 004, measured", "same results, simulated"),
    )  # fmt: skip
