"""Paper 002's plots: ratios to its bound, throughput, and its claims beside what is counted here.

In: the cells of `offload_ratios.py`, and rows of `compare` for steps. Out: tables for
a terminal, one SVG. The one idea: as in the paper 1 is its bound, and the axis is the share of
memory between what a chain needs and what it would use; the dashed curve is the LP, below which
nobody gets who only offloads. Read next: `report/charts.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.table import Table

from ooctrain.experiments.compare import Row
from ooctrain.experiments.paper_002.offload_ratios import (
    BATCHES,
    CHAIN_PLANNERS,
    HEURISTICS,
    STEP_PLANNERS,
    USUAL_SIZE,
    Cell,
    Claim,
    Group,
    drawn,
    worst,
)
from ooctrain.report.charts import Curve, beside_svg, curves_svg, stacked_svg
from ooctrain.report.tables import or_dash, plain_table
from ooctrain.units import GIB

HEAD_WIDTHS = (12, 6, 5)
PLANNER_WIDTH = 14
SHARE_AXIS = "memory, % of the way from what the chain needs to what it would use"


def worst_table(cells: Sequence[Cell], *, header: bool = True) -> Table:
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


def step_table(rows: Sequence[Row]) -> Table:
    """A line for each network and memory: the bound over the calls' time, steps over the bound."""
    names = map(short_name, STEP_PLANNERS)
    table = plain_table("network", "memory", "LP / calls", *names, left=("network",))
    found = {(row.model, row.budget_bytes, row.planner): row for row in rows}
    for model, budget in dict.fromkeys((row.model, row.budget_bytes) for row in rows):
        across = [found[model, budget, planner] for planner in STEP_PLANNERS]
        bound = across[0].lower_bound_us
        table.add_row(
            model, f"{budget / GIB:.2f} GiB",
            "-" if bound is None else f"{bound / across[0].compute_us:.3f}",
            *(or_dash(row.ratio, ".3f") for row in across),
        )  # fmt: skip
    return table


def ratio_figure(cells: Sequence[Cell], rows: Sequence[Row]) -> str:
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


def _ratios(group: Group, cells: Sequence[Cell]) -> str:
    curves = [
        Curve(short_name(name), [(100 * c.share, c.ratio) for c in cells if c.planner == name])
        for name in CHAIN_PLANNERS
    ]
    one_each = [cell for cell in cells if cell.planner == CHAIN_PLANNERS[0]]
    lp = Curve("LP, offloading only", [(100 * c.share, c.lp_ratio) for c in one_each], dashed=True)
    return curves_svg(
        f"{group.model}, {group.image_size} pixels, batch {group.batch}", [*curves, lp],
        x_axis=SHARE_AXIS, y_axis="step / proposition 3", y_low=1.0,
    )  # fmt: skip


def _speeds(model: str, size: int, by_group: dict[Group, list[Cell]]) -> str:
    """The best of the paper's three for each batch."""
    found = {g: cells for g, cells in by_group.items() if (g.model, g.image_size) == (model, size)}
    curves = [Curve(f"batch {g.batch}", _best_speeds(cells)) for g, cells in found.items()]
    return curves_svg(
        f"{model}, {size} pixels: best of GREEDY, DYNPROG, VDNN", curves,
        x_axis="memory for the chain, GiB", y_axis="images/s, simulated",
    )  # fmt: skip


def _best_speeds(cells: Sequence[Cell]) -> list[tuple[float, float | None]]:
    best: dict[float, float | None] = {}
    for cell in cells:
        if cell.planner in HEURISTICS:
            memory = cell.budget_bytes / GIB
            best[memory] = max(best.get(memory) or 0.0, cell.images_per_s)
    return sorted(best.items())


def _steps(model: str, rows: Sequence[Row]) -> str:
    return curves_svg(
        f"{model}, {rows[0].image_size} pixels, batch {rows[0].batch}: the step itself, where "
        "values may be computed again",
        [_step_curve(name, [r for r in rows if r.model == model]) for name in STEP_PLANNERS],
        x_axis="memory, GiB", y_axis="step / LP bound with recomputation", y_low=1.0,
    )  # fmt: skip


def _step_curve(planner: str, rows: Sequence[Row]) -> Curve:
    own = [row for row in rows if row.planner == planner]
    return Curve(short_name(planner), [(row.budget_bytes / GIB, row.ratio) for row in own])


def _by_group(cells: Sequence[Cell]) -> dict[Group, list[Cell]]:
    groups: dict[Group, list[Cell]] = {}
    for cell in cells:
        groups.setdefault(cell.group, []).append(cell)
    return groups
