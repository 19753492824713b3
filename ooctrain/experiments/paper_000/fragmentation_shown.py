"""`ooctrain reproduce fragmentation`: paper 000's figure 3, largest batches, and chunk sizes.

It shows tables, a figure and numbers; each row is printed as soon as it is known, since the whole
takes minutes. As in the paper, the distance between the line of the largest budget and the line of
the physical memory is the cost of the allocator. Read next: `fragmentation.py`, `chunks.py`;
`report/charts.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from rich.console import Console
from rich.table import Table

from ooctrain.experiments.paper_000 import chunks as chunk_sizes
from ooctrain.experiments.paper_000 import fragmentation as experiment
from ooctrain.experiments.paper_000.chunks import ChunkCost, ChunkTrade
from ooctrain.experiments.paper_000.fragmentation import (
    BASELINE_ALLOCATOR,
    PAPER_LARGEST_BATCH,
    LargestBatch,
    LargestBudget,
)
from ooctrain.experiments.reproducing import Wanted, print_title, write_figure
from ooctrain.experiments.spread import spread
from ooctrain.report.charts import Curve, curves_svg, stacked_svg
from ooctrain.report.tables import or_dash, plain_table
from ooctrain.units import GIB, format_bytes, format_us

COLUMN_WIDTHS = (13, 5, 17, 15, 8, 5, 12)


def fragmentation(wanted: Wanted, console: Console) -> Mapping[str, Any]:
    """Paper 000, figure 3, the memory side of table 1, and the choice of the chunk size."""
    names = experiment.QUICK_ALLOCATORS if wanted.quick else experiment.ALLOCATORS
    allocators = wanted.allocators or names
    batches = experiment.QUICK_BATCHES if wanted.quick else experiment.BATCHES
    physical = wanted.physical_bytes
    print_title(console, f"What a planner can use of {format_bytes(physical)}")
    processes = 1 if wanted.quick else None
    cases = [
        (model, batch, experiment.allocators_for(model, allocators), physical)
        for model, sizes in batches.items()
        for batch in sizes
    ]
    budgets: list[LargestBudget] = []
    for rows in spread(experiment.budget_case, cases, processes, wanted.keep):
        console.print(budget_table(rows, header=not budgets))
        budgets += rows
    print_title(console, "\nThe largest batch that can be trained")
    models = [
        (model, experiment.allocators_for(model, allocators), physical,
         experiment.batch_step(model))
        for model in batches
    ]  # fmt: skip
    found = spread(experiment.batch_case, models, processes, wanted.keep)
    largest = [row for rows in found for row in rows]
    console.print(batch_table(largest))
    chunks = _chunks(wanted.quick, console)
    trades = _trades(wanted, console)
    write_figure(wanted, console, fragmentation_figure(budgets, chunks, physical, allocators))
    return {
        "planner": experiment.PLANNER,
        "machine": experiment.MACHINE,
        "physical_bytes": physical,
        "budgets": [
            {**asdict(row), "ratio": row.ratio, "images_per_s": row.images_per_s} for row in budgets
        ],
        "largest_batches": [asdict(row) for row in largest],
        "chunks": [{**asdict(row), "wasted_bytes": row.wasted_bytes} for row in chunks],
        "chunk_trades": [asdict(row) for row in trades],
    }


def _chunks(quick: bool, console: Console) -> Sequence[ChunkCost]:
    sizes = chunk_sizes.QUICK_CHUNKS if quick else chunk_sizes.CHUNKS
    about = (
        f" ({chunk_sizes.MODEL}, batch {chunk_sizes.BATCH}, "
        f"{format_bytes(chunk_sizes.BUDGET_BYTES)}; real steps: {chunk_sizes.DEVICE_MODEL}, batch "
        f"{chunk_sizes.DEVICE_BATCH}, {chunk_sizes.DEVICE_BUDGET})"
    )
    print_title(console, "\nChunk sizes of va", about)
    steps = chunk_sizes.QUICK_STEPS if quick else chunk_sizes.TIMED_STEPS
    times = chunk_sizes.time_chunks(sizes if quick else sizes[::2], steps=steps)
    replayed = chunk_sizes.replay_chunks(
        sizes, "va", chunk_sizes.MODEL, chunk_sizes.BATCH, chunk_sizes.BUDGET_BYTES
    )
    rows = [replace(row, step_us=times.get(row.chunk_bytes)) for row in replayed]
    console.print(chunk_table(rows))
    return rows


def _trades(wanted: Wanted, console: Console) -> Sequence[ChunkTrade]:
    quick = wanted.quick
    batches = chunk_sizes.QUICK_TRADED_BATCHES if quick else chunk_sizes.TRADED_BATCHES
    sizes = chunk_sizes.QUICK_TRADED if quick else chunk_sizes.TRADED_CHUNKS
    print_title(
        console,
        "\nChunks that the planner counts in",
        f" ({chunk_sizes.MODEL}, {format_bytes(wanted.physical_bytes)}, mapped as printed)",
    )
    trades = chunk_sizes.chunk_trades(batches, sizes, chunk_sizes.MODEL, wanted.physical_bytes)
    console.print(trade_table(trades))
    return trades


def trade_table(rows: Sequence[ChunkTrade]) -> Table:
    """A line for each batch and chunk size."""
    table = plain_table(
        "batch", "chunk", "N_max", "rounding", "bound N c", "maps a step", "images/s"
    )
    for row in rows:
        table.add_row(
            str(row.batch), format_bytes(row.chunk_bytes), str(row.live_blocks),
            format_bytes(row.wasted_bytes), format_bytes(row.live_blocks * row.chunk_bytes),
            str(row.maps), f"{row.images_per_s:.0f}",
        )  # fmt: skip
    return table


def budget_table(rows: Sequence[LargestBudget], *, header: bool = True) -> Table:
    """A line for each batch and allocator; columns have fixed widths, so that tables can be printed
    below each other."""
    table = plain_table(
        "model", "batch", "allocator", "usable", "reserved", "ratio", "images/s",
        left=("model", "allocator"),
    )  # fmt: skip
    table.show_header = header
    for column, width in zip(table.columns, COLUMN_WIDTHS, strict=True):
        column.min_width = width
    last = ("", 0)
    for row in rows:
        head = (row.model, row.batch)
        shown = [row.model, str(row.batch)] if head != last else ["", ""]
        last = head
        table.add_row(
            *shown, row.allocator, _size(row.budget_bytes), _size(row.reserved_bytes),
            or_dash(row.ratio, ".2f"),
            "does not fit" if row.images_per_s is None else f"{row.images_per_s:.0f}",
        )  # fmt: skip
    return table


def batch_table(rows: Sequence[LargestBatch]) -> Table:
    """The largest batch of each model and allocator, beside the paper's."""
    table = plain_table(
        "model", "allocator", "largest batch", "of the baseline's", "paper",
        left=("model", "allocator"),
    )  # fmt: skip
    base = {row.model: row.batch for row in rows if row.allocator == BASELINE_ALLOCATOR}
    for row in rows:
        paper = PAPER_LARGEST_BATCH.get(row.allocator) if row.model == "resnet50" else None
        share = row.batch / base[row.model] if base.get(row.model) else None
        table.add_row(
            row.model, row.allocator, str(row.batch), "-" if share is None else f"{share:.2f} x",
            or_dash(paper),
        )  # fmt: skip
    return table


def chunk_table(rows: Sequence[ChunkCost]) -> Table:
    """A line for each chunk size."""
    table = plain_table(
        "chunk", "rounding", "bound N c", "maps, 1st step", "maps, later", "step on cpu"
    )
    for row in rows:
        table.add_row(
            format_bytes(row.chunk_bytes), format_bytes(row.wasted_bytes),
            format_bytes(row.live_blocks * row.chunk_bytes), str(row.first_maps),
            str(row.later_maps), "-" if row.step_us is None else format_us(row.step_us),
        )  # fmt: skip
    return table


def fragmentation_figure(
    rows: Sequence[LargestBudget], chunks: Sequence[ChunkCost], physical_bytes: int,
    allocators: Sequence[str],
) -> str:  # fmt: skip
    """SVG: for each model what a planner can use, and below it chunk sizes."""
    pictures = []
    for model in dict.fromkeys(row.model for row in rows):
        found = [row for row in rows if row.model == model]
        batches = sorted({row.batch for row in found})
        asked = [name for name in allocators if any(row.allocator == name for row in found)]
        curves = [_promised(name, found, allocators.index(name)) for name in asked]
        limit = [(batch, physical_bytes / GIB) for batch in batches]
        pictures.append(
            curves_svg(
                f"{model}: what a planner can use of {format_bytes(physical_bytes)}",
                [*curves, Curve("there is", limit, dashed=True, kind=len(allocators))],
                axes=("batch (no point: it cannot be trained)", "GiB"),
            )
        )
    if chunks:
        pictures.append(_chunk_figure(chunks))
    return stacked_svg(pictures)


def _promised(allocator: str, rows: Sequence[LargestBudget], kind: int) -> Curve:
    """The curve of one allocator, in one colour for all networks."""
    points = [
        (row.batch, None if row.budget_bytes is None else row.budget_bytes / GIB)
        for row in rows
        if row.allocator == allocator
    ]
    return Curve(allocator, points, kind=kind)


def _chunk_figure(chunks: Sequence[ChunkCost]) -> str:
    waste = [(row.chunk_bytes, row.wasted_bytes / GIB) for row in chunks]
    maps = [(row.chunk_bytes, row.first_maps / 100) for row in chunks]
    return curves_svg(
        "Chunk size: memory that rounding wastes, and mapping changes of the first step",
        [Curve("rounding, GiB", waste), Curve("mapping changes, hundreds", maps)],
        axes=("chunk", "GiB; hundreds"), doubling=True,
        x_number=lambda size: format_bytes(int(size)),
    )  # fmt: skip


def _size(size_bytes: int | None) -> str:
    return "-" if size_bytes is None else format_bytes(size_bytes)
