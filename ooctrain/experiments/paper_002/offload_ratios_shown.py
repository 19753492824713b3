"""`ooctrain reproduce offload-ratios`: paper 002's plots, and its claims next to our counts.

The tables, the figure and the numbers come first for the paper's own question, on chains, then for
the same planners on the steps from which the chains were made. As in the paper, 1 is its bound, and
the axis is the share of memory between what a chain needs and what it would use. The dashed curve
is the LP; no list that only offloads gets below it. Read next: `offload_ratios.py`;
`report/charts.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from statistics import mean
from typing import Any

from rich.console import Console
from rich.table import Table

from ooctrain.errors import OoctrainError
from ooctrain.experiments.compare import CompareRow, compare
from ooctrain.experiments.paper_002 import offload_ratios as experiment
from ooctrain.experiments.paper_002.offload_ratios import (
    BATCHES,
    CHAIN_PLANNERS,
    HEURISTICS,
    SLOTS,
    STEP_PLANNERS,
    USUAL_SIZE,
    ChainCell,
    Claim,
    Group,
    SlotCell,
    drawn,
    worst,
)
from ooctrain.experiments.reproducing import Wanted, print_title, write_figure
from ooctrain.experiments.spread import spread
from ooctrain.report.charts import Curve, beside_svg, curves_svg, stacked_svg
from ooctrain.report.tables import or_dash, plain_table
from ooctrain.step.presets import cache_base
from ooctrain.units import GIB

HEAD_WIDTHS = (12, 6, 5)
PLANNER_WIDTH = 14
SHARE_AXIS = "memory, % of the way from what the chain needs to what it would use"


def offload_ratios(wanted: Wanted, console: Console) -> Mapping[str, Any]:
    """Paper 002, figures 4 to 18: step times over its lower bound."""
    networks = experiment.QUICK_NETWORKS if wanted.quick else experiment.NETWORKS
    batches = experiment.QUICK_BATCHES if wanted.quick else experiment.BATCHES
    shares = experiment.QUICK_SHARES if wanted.quick else experiment.SHARES
    processes = 1 if wanted.quick else None
    print_title(console, "Largest step / proposition 3 over all shares of memory, on chains")
    cells: list[ChainCell] = []
    cases = [(group, shares) for group in experiment.groups(networks, batches)]
    for found in spread(experiment.chain_cells, cases, processes, wanted.keep):
        console.print(worst_table(found, header=not cells))
        cells += found
    claims = experiment.claims(cells)
    console.print()
    console.print(claim_table(claims))
    dense = experiment.QUICK_DENSENETS if wanted.quick else experiment.DENSENETS
    counted = spread(
        experiment.slot_cells, [(model, shares) for model in dense], processes, wanted.keep
    )
    slots = [cell for found in counted for cell in found]
    print_title(
        console, "\nDYNPROG in slots: step / proposition 3, mean and largest over all shares"
    )
    console.print(slot_table(slots))
    steps = experiment.step_cases(
        experiment.QUICK_NETWORKS if wanted.quick else experiment.REPRESENTATIVE,
        experiment.QUICK_STEP_SHARES if wanted.quick else experiment.STEP_SHARES,
    )
    rows = compare(steps, jobs=processes, keep=cache_base() / "compare")
    if failed := next((row for row in rows if row.error), None):
        raise OoctrainError(
            f"{failed.planner} fails on {failed.model}: {failed.error}",
            fix=f"ooctrain plan {failed.model} --planner {failed.planner}",
        )
    print_title(console, "\nThe steps themselves: step / LP bound with recomputation")
    console.print(step_table(rows))
    write_figure(wanted, console, ratio_figure(cells, rows))
    return {
        "machine": experiment.MACHINE,
        "cells": [_numbers(cell) for cell in cells],
        "claims": [asdict(claim) for claim in claims],
        "slots": [asdict(cell) for cell in slots],
        "steps": [asdict(row) for row in rows],
    }


def _numbers(cell: ChainCell) -> Mapping[str, Any]:
    own = asdict(cell)
    group = own.pop("group")
    return {**group, **own, "ratio": cell.ratio, "images_per_s": cell.images_per_s}


def worst_table(cells: Sequence[ChainCell], *, header: bool = True) -> Table:
    """A line for each chain: the largest ratio of each planner, and at which share it is."""
    names = map(short_name, CHAIN_PLANNERS)
    table = plain_table("network", "pixels", "batch", *names, left=("network",))
    table.show_header = header
    widths = (*HEAD_WIDTHS, *(PLANNER_WIDTH for _ in CHAIN_PLANNERS))
    for column, width in zip(table.columns, widths, strict=True):
        column.min_width = width
    for group, found in _by_group(cells).items():
        largest = (worst(found, name) for name in CHAIN_PLANNERS)
        texts = (f"{cell.ratio:.3f} at {cell.share:4.0%}" if cell else "-" for cell in largest)
        table.add_row(group.model, str(group.image_size), str(group.batch), *texts)
    return table


def claim_table(claims: Sequence[Claim]) -> Table:
    """The paper's sentences, and what is found."""
    titles = ("paper 002, section 6.2", "here")
    table = plain_table(*titles, left=titles)
    for claim in claims:
        table.add_row(claim.printed, claim.here)
    return table


def slot_table(cells: Sequence[SlotCell]) -> Table:
    """A line for each network, a column for each number of slots and of states."""
    titles = [f"{slots} slots" + (f", {most} states" if most else "") for slots, most in SLOTS]
    table = plain_table("network", *titles, left=("network",))
    for model in dict.fromkeys(cell.model for cell in cells):
        ratios = [
            [c.ratio for c in cells if (c.model, c.slots, c.most_states) == (model, *counted)]
            for counted in SLOTS
        ]
        table.add_row(model, *(f"{mean(found):.3f}, {max(found):.3f}" for found in ratios))
    return table


def step_table(rows: Sequence[CompareRow]) -> Table:
    """A line for each network and memory: the bound over the calls' time, steps over the bound."""
    names = map(short_name, STEP_PLANNERS)
    table = plain_table("network", "memory", "LP / calls", *names, left=("network",))
    found = {(row.model, row.budget_bytes, row.planner): row for row in rows}
    for model, budget in dict.fromkeys((row.model, row.budget_bytes) for row in rows):
        across = [found[model, budget, planner] for planner in STEP_PLANNERS]
        bound = across[0].lower_bound_us
        table.add_row(
            model,
            f"{budget / GIB:.2f} GiB",
            "-" if bound is None else f"{bound / across[0].compute_us:.3f}",
            *(or_dash(row.ratio, ".3f") for row in across),
        )
    return table


def ratio_figure(cells: Sequence[ChainCell], rows: Sequence[CompareRow]) -> str:
    """SVG: the ratios of figures 4 to 11, the throughput of figures 12 to 18, the steps.

    A row for each network, a column for each image size.
    """
    by_group = _by_group(cells)
    ratios = [(group.image_size, _ratios(group, by_group[group])) for group in drawn(by_group)]
    kinds = dict.fromkeys((group.model, group.image_size) for group in by_group)
    speeds = [(size, _speeds(model, size, by_group)) for model, size in kinds]
    steps = [_steps(model, rows) for model in dict.fromkeys(row.model for row in rows)]
    return stacked_svg([_grid(ratios), _grid(speeds), beside_svg(steps)])


def _grid(pictures: Iterable[tuple[int, str]]) -> str:
    """(image size, picture) in columns; what begins at another size stands in the first."""
    columns: dict[int, list[str]] = {}
    for size, picture in pictures:
        columns.setdefault(size if size in BATCHES else USUAL_SIZE, []).append(picture)
    return beside_svg([stacked_svg(column) for column in columns.values()])


def short_name(planner: str) -> str:
    """Without parameters."""
    return planner.partition(":")[0]


def _ratios(group: Group, cells: Sequence[ChainCell]) -> str:
    curves = [
        Curve(short_name(name), [(100 * c.share, c.ratio) for c in cells if c.planner == name])
        for name in CHAIN_PLANNERS
    ]
    one_each = [cell for cell in cells if cell.planner == CHAIN_PLANNERS[0]]
    lp = Curve("LP, offloading only", [(100 * c.share, c.lp_ratio) for c in one_each], dashed=True)
    return curves_svg(
        f"{group.model}, {group.image_size} pixels, batch {group.batch}", [*curves, lp],
        axes=(SHARE_AXIS, "step / proposition 3"), y_low=1.0,
    )  # fmt: skip


def _speeds(model: str, size: int, by_group: dict[Group, list[ChainCell]]) -> str:
    """The best of the paper's three for each batch."""
    found = {g: cells for g, cells in by_group.items() if (g.model, g.image_size) == (model, size)}
    curves = [Curve(f"batch {g.batch}", _best_speeds(cells)) for g, cells in found.items()]
    return curves_svg(
        f"{model}, {size} pixels: best of GREEDY, DYNPROG, VDNN", curves,
        axes=("memory for the chain, GiB", "images/s, simulated"),
    )  # fmt: skip


def _best_speeds(cells: Sequence[ChainCell]) -> list[tuple[float, float | None]]:
    best: dict[float, float | None] = {}
    for cell in cells:
        if cell.planner in HEURISTICS:
            memory = cell.budget_bytes / GIB
            best[memory] = max(best.get(memory) or 0.0, cell.images_per_s)
    return sorted(best.items())


def _steps(model: str, rows: Sequence[CompareRow]) -> str:
    return curves_svg(
        f"{model}, {rows[0].image_size} pixels, batch {rows[0].batch}: the step itself, where "
        "values may be computed again",
        [_step_curve(name, [r for r in rows if r.model == model]) for name in STEP_PLANNERS],
        axes=("memory, GiB", "step / LP bound with recomputation"), y_low=1.0,
    )  # fmt: skip


def _step_curve(planner: str, rows: Sequence[CompareRow]) -> Curve:
    own = [row for row in rows if row.planner == planner]
    return Curve(short_name(planner), [(row.budget_bytes / GIB, row.ratio) for row in own])


def _by_group(cells: Sequence[ChainCell]) -> dict[Group, list[ChainCell]]:
    groups: dict[Group, list[ChainCell]] = {}
    for cell in cells:
        groups.setdefault(cell.group, []).append(cell)
    return groups
