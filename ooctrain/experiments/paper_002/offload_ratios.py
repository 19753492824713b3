"""Paper 002, figures 4 to 18: how far its heuristics are from its bound.

The cells range over networks, image sizes, batches and shares of the memory between what a chain
needs and what it would use. Each cell has a planner's step time and the paper's bound (proposition
3). The paper's experiment is about chains, so a network is turned into its chain once and
everything is planned on that, in milliseconds. How the same planners do on the step itself, where
values may be computed again, is another question; `compare` answers it, for the networks of figure
4 alone.

Source: paper 002, section 6, figures 4 to 18. Departures: docs/papers.md. Read next:
`sched/planning/chain_view.py`, `sched/bounds/closed.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import mean
from types import MappingProxyType
from typing import Any

from rich.console import Console
from rich.table import Table

from ooctrain.api import step_trace
from ooctrain.errors import OoctrainError
from ooctrain.experiments.compare import CompareCase, CompareRow, compare
from ooctrain.experiments.reproducing import Wanted, print_title, write_figure
from ooctrain.experiments.spread import spread
from ooctrain.report.charts import Curve, curves_svg, side_by_side_svg, stacked_svg
from ooctrain.report.text import or_dash, plain_table
from ooctrain.sched.bounds.closed import compute_us, proposition_3_us
from ooctrain.sched.bounds.lp_bound import fluid_bound
from ooctrain.sched.planners.registry import get_planner
from ooctrain.sched.planning.chain_view import ChainView, chain_view
from ooctrain.sched.planning.question import Question
from ooctrain.sched.verify import verify
from ooctrain.step.presets import cache_base, machine
from ooctrain.step.trace import Trace
from ooctrain.units import GIB, format_bytes, per_second

MACHINE = "v100-pcie"
GREEDY, VDNN, BELADY = "greedy", "vdnn", "belady"
#: As in the paper in 500 slots, however short the chain.
DYNPROG = "dynprog:slots=500,exact_stages=0"
#: The same with the amounts that move rounded otherwise, which the paper leaves open.
DYNPROG_NEAREST, DYNPROG_UP = f"{DYNPROG},transfers=nearest", f"{DYNPROG},transfers=up"
#: The paper's three, and what is optimal once parts of an activation may move.
HEURISTICS = (GREEDY, DYNPROG, VDNN)
CHAIN_PLANNERS = (*HEURISTICS, BELADY)
#: Those that are drawn, and those of which only wins are counted.
CHAIN_CASE_PLANNERS = (*CHAIN_PLANNERS, DYNPROG_NEAREST, DYNPROG_UP)
#: On the step itself, compared with the LP bound.
STEP_PLANNERS = (*CHAIN_PLANNERS, "combined")
RESNETS = ("resnet18", "resnet34", "resnet50", "resnet101", "resnet152")
DENSENETS = ("densenet121", "densenet161", "densenet169", "densenet201")
INCEPTION = "inception_v3"
NETWORKS = (*RESNETS, *DENSENETS, INCEPTION)
#: {image size: batches}, powers of two; the first of each is the one that the ratios are drawn of.
BATCHES = MappingProxyType({224: (32, 64), 500: (8, 16), 1000: (2, 4)})
SHARES = (0.0, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
#: Figure 4: its networks, their image size and batch; and the shares at which their steps are
#: planned.
REPRESENTATIVE = ("resnet18", "resnet50", "densenet121")
USUAL_SIZE, USUAL_BATCH = 224, 32
STEP_SHARES = (0.1, 0.25, 0.5, 0.75)
#: How finely DYNPROG counts memory on long chains, the paper's 500, coarser and finer; and how many
#: states it follows (None: as usual), since finer slots have more of them.
SLOTS: tuple[tuple[int, int | None], ...] = ((100, None), (500, None), (2000, None), (2000, 100000))
#: Up to it memory counts as low.
LOW_SHARE = 0.3
QUICK_NETWORKS, QUICK_BATCHES = ("resnet18",), MappingProxyType({224: (32, 64)})
QUICK_SHARES, QUICK_STEP_SHARES = (0.1, 0.3, 0.5, 0.9), (0.25, 0.5)
QUICK_DENSENETS = ("densenet121",)


@dataclass(frozen=True, slots=True)
class Group:
    """A chain: everything that cells have in common."""

    model: str
    image_size: int
    batch: int


@dataclass(frozen=True, slots=True)
class ChainCell:
    """A planner on a chain under a share of its memory.

    Args:
        group: the chain.
        planner: by name.
        share: 0: what the chain needs, 1: what it would use.
        budget_bytes: for the chain, without parameters.
        makespan_us: makespan of its plan.
        proposition_3_us: the paper's bound; lp_us: that of the LP over all lists that only offload.
        compute_us: time of the calls alone.
    """

    group: Group
    planner: str
    share: float
    budget_bytes: int
    makespan_us: float
    proposition_3_us: float
    lp_us: float
    compute_us: float

    @property
    def ratio(self) -> float:
        """As the paper plots it."""
        return self.makespan_us / self.proposition_3_us

    @property
    def lp_ratio(self) -> float:
        """Of the LP's bound to the paper's: no list that only offloads gets below this."""
        return self.lp_us / self.proposition_3_us

    @property
    def images_per_s(self) -> float:
        """Speed, simulated."""
        return per_second(self.group.batch, self.makespan_us)


@dataclass(frozen=True, slots=True)
class Wins:
    """In how many of the cells asked a planner is faster and slower than VDNN."""

    faster: int
    slower: int
    asked: int


@dataclass(frozen=True, slots=True)
class SlotCell:
    """DYNPROG on a DenseNet's chain with its memory in some number of slots.

    Args:
        model: the network, at figure 4's image size and batch.
        slots: the paper's S.
        most_states: that are followed from each stage; None: as usual.
        share: share of the memory; ratio: step over proposition 3.
    """

    model: str
    slots: int
    most_states: int | None
    share: float
    ratio: float


@dataclass(frozen=True, slots=True)
class Claim:
    """A sentence of the paper, with what is found here."""

    printed: str
    here: str


def groups(networks: Sequence[str], batches: Mapping[int, Sequence[int]]) -> list[Group]:
    """All chains of some networks; Inception's smallest image is its own."""
    return [
        Group(model, _smallest(model) if size == USUAL_SIZE else size, batch)
        for size, sizes in batches.items()
        for model in networks
        for batch in sizes
    ]


def chain_cells(case: tuple[Group, Sequence[float]]) -> list[ChainCell]:
    """The cells of (chain, shares), planner by planner under each share."""
    group, shares = case
    where = machine(MACHINE)
    chain = _view(group).as_chain()
    view = chain_view(chain, where)
    least, most = view.minimum()[0], view.peak()[0]
    total = compute_us(chain, where)
    cells = []
    for share in shares:
        budget = least + round(share * (most - least))
        printed, lp = proposition_3_us(chain, budget, where), _lp_us(chain, budget)
        cells += [
            ChainCell(
                group, name, share, budget, _makespan_us(name, chain, budget), printed, lp, total
            )
            for name in CHAIN_CASE_PLANNERS
        ]
    return cells


def slot_cells(case: tuple[str, Sequence[float]]) -> list[SlotCell]:
    """The cells of (network, shares): does counting more finely mend what rounding costs?"""
    model, shares = case
    chain = _view(Group(model, USUAL_SIZE, USUAL_BATCH)).as_chain()
    view, cells = chain_view(chain, machine(MACHINE)), []
    least, most = view.minimum()[0], view.peak()[0]
    for share in shares:
        budget = least + round(share * (most - least))
        bound = proposition_3_us(chain, budget, machine(MACHINE))
        for slots, most_states in SLOTS:
            name = f"dynprog:slots={slots},exact_stages=0"
            name += f",most_states={most_states}" if most_states else ""
            ratio = _makespan_us(name, chain, budget) / bound
            cells.append(SlotCell(model, slots, most_states, share, ratio))
    return cells


def step_cases(networks: Sequence[str], shares: Sequence[float]) -> list[CompareCase]:
    """The cases for `compare`: the steps of some networks, in the memory of their chains."""
    cases = []
    for model in networks:
        view = _view(Group(model, USUAL_SIZE, USUAL_BATCH))
        least, most = view.minimum()[0], view.peak()[0]
        cases += [
            CompareCase(
                model, USUAL_BATCH, USUAL_SIZE, MACHINE,
                str(least + round(share * (most - least))), planner,
            )
            for share in shares
            for planner in STEP_PLANNERS
        ]  # fmt: skip
    return cases


def drawn(found: Iterable[Group]) -> list[Group]:
    """Of each network and image size the chain that the ratios are drawn of."""
    wanted = {size: batches[0] for size, batches in BATCHES.items()}
    return [g for g in found if g.batch == wanted.get(g.image_size, USUAL_BATCH)]


def worst(cells: Iterable[ChainCell], planner: str) -> ChainCell | None:
    """A planner's cell with the largest ratio."""
    found = (cell for cell in cells if cell.planner == planner)
    return max(found, key=lambda cell: cell.ratio, default=None)


def claims(cells: Sequence[ChainCell]) -> list[Claim]:
    """The paper's sentences about its plots, counted."""
    dense = [cell for cell in cells if cell.group.model in DENSENETS]
    return [
        Claim("GREEDY outperforms VDNN in most cases", _counted(wins(cells, GREEDY))),
        Claim("DYNPROG outperforms VDNN in most cases", _counted(wins(cells, DYNPROG))),
        Claim("the same, transfers rounded to the nearest", _counted(wins(cells, DYNPROG_NEAREST))),
        Claim("the same, transfers rounded up", _counted(wins(cells, DYNPROG_UP))),
        Claim("GREEDY: especially in low memory", _counted_low(cells, GREEDY)),
        Claim("DYNPROG: especially in low memory", _counted_low(cells, DYNPROG)),
        Claim("the ratio of DYNPROG remains below 1.3 on DenseNets", _place(worst(dense, DYNPROG))),
        Claim("DYNPROG is much more stable than VDNN", _place(worst(cells, DYNPROG))),
        Claim("VDNN, in the same plots", _place(worst(cells, VDNN))),
        Claim("GREEDY, in the same plots", _place(worst(cells, GREEDY))),
    ]


def wins(cells: Sequence[ChainCell], planner: str, highest_share: float = 1.0) -> Wins:
    """How a planner does against VDNN, up to a share of the memory."""
    pairs = [
        (cell.makespan_us, vdnn.makespan_us)
        for cell, vdnn in zip(_of(cells, planner), _of(cells, VDNN), strict=True)
        if cell.share <= highest_share
    ]
    faster = sum(own < vdnn for own, vdnn in pairs)
    return Wins(faster, sum(own > vdnn for own, vdnn in pairs), len(pairs))


def _counted(found: Wins) -> str:
    return f"faster in {found.faster}, slower in {found.slower} of {found.asked}"


def _counted_low(cells: Sequence[ChainCell], planner: str) -> str:
    return f"{_counted(wins(cells, planner, LOW_SHARE))} up to a share of {LOW_SHARE:.0%}"


def _place(cell: ChainCell | None) -> str:
    if cell is None:
        return "not asked"
    group = cell.group
    return (
        f"at most {cell.ratio:.2f}: {group.model}, {group.image_size} pixels, batch {group.batch}, "
        f"{cell.share:.0%} ({format_bytes(cell.budget_bytes)})"
    )


def _of(cells: Iterable[ChainCell], planner: str) -> list[ChainCell]:
    return [cell for cell in cells if cell.planner == planner]


def _smallest(model: str) -> int:
    return 299 if model == INCEPTION else USUAL_SIZE


def _view(group: Group) -> ChainView:
    step = step_trace(group.model, group.batch, group.image_size)
    return chain_view(step, machine(MACHINE))


def _makespan_us(name: str, chain: Trace, budget_bytes: int) -> float:
    """Of a planner's verified plan."""
    where = machine(MACHINE)
    plan = get_planner(name).plan(Question(chain, budget_bytes, where))
    verify(plan, chain, budget_bytes, where)
    return plan.makespan_us


def _lp_us(chain: Trace, budget_bytes: int) -> float:
    found = fluid_bound(chain, budget_bytes, machine(MACHINE), recompute=False)
    return 0.0 if found is None else found.lower_bound().makespan_us


# `ooctrain reproduce offload-ratios`: tables, a figure, numbers; first for the paper's own
# question, on chains, then for the same planners on the steps from which the chains were made. As
# in the paper, 1 is its bound, and the axis is the share of memory between what a chain needs and
# what it would use. The dashed curve is the LP; no list that only offloads gets below it.

HEAD_WIDTHS = (12, 6, 5)
PLANNER_WIDTH = 14
SHARE_AXIS = "memory, % of the way from what the chain needs to what it would use"


def offload_ratios(wanted: Wanted, console: Console) -> Mapping[str, Any]:
    """Paper 002, figures 4 to 18: step times over its lower bound."""
    networks = QUICK_NETWORKS if wanted.quick else NETWORKS
    batches = QUICK_BATCHES if wanted.quick else BATCHES
    shares = QUICK_SHARES if wanted.quick else SHARES
    processes = 1 if wanted.quick else None
    print_title(console, "Largest step / proposition 3 over all shares of memory, on chains")
    cells: list[ChainCell] = []
    cases = [(group, shares) for group in groups(networks, batches)]
    for found in spread(chain_cells, cases, processes, wanted.keep):
        console.print(worst_table(found, header=not cells))
        cells += found
    checked = claims(cells)
    console.print()
    console.print(claim_table(checked))
    dense = QUICK_DENSENETS if wanted.quick else DENSENETS
    counted = spread(slot_cells, [(model, shares) for model in dense], processes, wanted.keep)
    slots = [cell for found in counted for cell in found]
    print_title(
        console, "\nDYNPROG in slots: step / proposition 3, mean and largest over all shares"
    )
    console.print(slot_table(slots))
    steps = step_cases(
        QUICK_NETWORKS if wanted.quick else REPRESENTATIVE,
        QUICK_STEP_SHARES if wanted.quick else STEP_SHARES,
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
        "machine": MACHINE,
        "cells": [_numbers(cell) for cell in cells],
        "claims": [asdict(claim) for claim in checked],
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


def claim_table(checked: Sequence[Claim]) -> Table:
    """The paper's sentences, and what is found."""
    titles = ("paper 002, section 6.2", "here")
    table = plain_table(*titles, left=titles)
    for claim in checked:
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
    return stacked_svg([_grid(ratios), _grid(speeds), side_by_side_svg(steps)])


def _grid(pictures: Iterable[tuple[int, str]]) -> str:
    """(image size, picture) in columns; what begins at another size stands in the first."""
    columns: dict[int, list[str]] = {}
    for size, picture in pictures:
        columns.setdefault(size if size in BATCHES else USUAL_SIZE, []).append(picture)
    return side_by_side_svg([stacked_svg(column) for column in columns.values()])


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
    by_group: dict[Group, list[ChainCell]] = {}
    for cell in cells:
        by_group.setdefault(cell.group, []).append(cell)
    return by_group
