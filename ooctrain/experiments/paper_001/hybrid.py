"""Paper 001, figures 3 to 6, tables 1 and 2: images too large, swapped, computed again, or both.

Two networks train at a fixed batch on growing images. For each image and method this computes the
megapixels per second and the number of swap-outs, and what the paper's printed parameters do here.
TensorFlow's steps take about twice the memory of ours, so the 32 GB that are too little in the
paper are enough here. A second memory is therefore fitted to one printed figure, the largest image
without any method. Nor does our swapping get slower where the paper's does, so for that memory a
link is fitted to another: the knee, up to which swapping loses nothing. All other printed values
are then predictions.

Source: paper 001, section 4. Departures: docs/papers.md. Read next:
`sched/planners/tflms_hybrid.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from operator import attrgetter
from types import MappingProxyType
from typing import Any

from rich.console import Console
from rich.table import Table

from ooctrain.api import step_trace
from ooctrain.errors import Infeasible
from ooctrain.experiments.bisected import bisected
from ooctrain.experiments.reproducing import Wanted, print_title, write_figure
from ooctrain.experiments.spread import spread
from ooctrain.report.charts import Curve, curves_svg, stacked_svg
from ooctrain.report.text import or_dash, plain_table
from ooctrain.sched.budget import trace_peak_bytes
from ooctrain.sched.planners.auto import Auto
from ooctrain.sched.planners.keep_all import KeepAll
from ooctrain.sched.planners.lms import LevelGraph, Lms, LmsAuto
from ooctrain.sched.planners.tflms_hybrid import TflmsHybrid
from ooctrain.sched.planning.planner import Planner
from ooctrain.sched.planning.question import Question
from ooctrain.sched.planning.unroll import plan_runs
from ooctrain.sched.schedule import BYTES, Plan, SwapOut
from ooctrain.sched.simulate import simulate
from ooctrain.sched.verify import verify
from ooctrain.step.machine import Machine
from ooctrain.step.presets import v100_32gb_nvlink
from ooctrain.step.trace import Trace
from ooctrain.units import format_bytes

# The paper's tables 1 and 2, and what its figures 3 and 4 say in words, all as printed, so that a
# reader who doubts a comparison finds the figure. Numbers of checkpoints are those of TensorFlow's
# graph, whose height in levels is the largest `swapin_groupby` without recomputation.


@dataclass(frozen=True, slots=True)
class Tuned:
    """What TFLMS chose, in levels, and the checkpoints whose segments are computed again."""

    swapout_threshold: int
    swapin_ahead: int
    swapin_groupby: int
    checkpoints: tuple[int, ...] = ()

    def __str__(self) -> str:
        listed = f", list {'+'.join(map(str, self.checkpoints))}" if self.checkpoints else ""
        return f"{self.swapout_threshold}/{self.swapin_ahead}/{self.swapin_groupby}{listed}"


@dataclass(frozen=True, slots=True)
class TunedNetwork:
    """A network and what the paper found; of plain mappings, since it travels to other processes.

    Args:
        model, batch: which.
        levels: height of its graph in TensorFlow.
        image_sizes: those that are computed here.
        sizes_of_fit: the largest image without any method, and the next that the paper tried.
        sizes_of_knee: the largest image at which swapping loses nothing, and the next.
        largest: {method: largest image}.
        recompute_overhead: at the first of `sizes_of_fit`.
        gain: (image size, gain) of hybrid over swapping.
        swap, hybrid: {image size: parameters}: the table.
    """

    model: str
    batch: int
    levels: int
    image_sizes: tuple[int, ...]
    sizes_of_fit: tuple[int, int]
    sizes_of_knee: tuple[int, int]
    largest: Mapping[str, int]
    recompute_overhead: float
    gain: tuple[int, float]
    swap: Mapping[int, Tuned]
    hybrid: Mapping[int, Tuned]


def _table(
    sizes: range, thresholds: tuple[int, ...], ahead: tuple[int, ...], groupby: tuple[int, ...],
    lists: tuple[tuple[int, ...], ...] = (),
) -> Mapping[int, Tuned]:  # fmt: skip
    """{image size: parameters} of the rows of a table."""
    listed = lists or ((),) * len(sizes)
    rows = zip(thresholds, ahead, groupby, listed, strict=True)
    return {size: Tuned(*row) for size, row in zip(sizes, rows, strict=True)}


_TABLE_1, _TABLE_2 = range(3500, 7001, 500), range(500, 1301, 100)
_LATER = (8, 9, 11, 12, 13, 14, 15, 16, 17, 18)

RESNET50 = TunedNetwork(
    "resnet50", 1, 802, (2000, 2500, 3000, *_TABLE_1, 7500, 8000, 9000, 10000), (3000, 3500),
    (4000, 4500),
    {"vanilla": 3000, "recompute": 4500, "swap": 7000, "hybrid": 7000},
    0.158, (6500, 0.375),
    _table(
        _TABLE_1, (743, 639, 593, 529, 501, 463, 429, 399), (217, 74, 49, 30, 28, 23, 17, 9),
        (802,) * 8,
    ),
    _table(
        _TABLE_1, (743, 639, 593, 529, 477, 463, 429, 399), (217, 74, 68, 34, 25, 30, 25, 9),
        (802, 802, 817, 808, 808, 821, 821, 808),
        ((), (), (2, 4, 6), (2,), (2,), (2, 4, 6, 7), (2, 4, 5, 6), (2,)),
    ),
)  # fmt: skip
DEEPLAB = TunedNetwork(
    "deeplabv3plus_xception65", 16, 1501, (300, 400, *_TABLE_2, 1400, 1500, 1700), (400, 500),
    (500, 600),
    {"vanilla": 400, "recompute": 800, "swap": 1300, "hybrid": 1300},
    0.167, (1000, 0.187),
    _table(
        _TABLE_2, (1427, 1236, 650, 456, 217, 174, 161, 121, 111),
        (906, 381, 77, 30, 11, 12, 6, 3, 3), (1501, 1501, 1501, 1501, 0, 22, 1501, 1501, 22),
    ),
    _table(
        _TABLE_2, (1427, 1236, 650, 456, 217, 174, 164, 121, 111),
        (906, 575, 77, 30, 30, 31, 6, 3, 33),
        (1501, 1508, 1501, 1501, 1508, 1525, 1539, 1501, 23),
        ((), (1, 2, 3, 4), (), (), (2, 3, 4), (1, 2, 3, 4, 5, 6), _LATER, (8, 9), _LATER),
    ),
)  # fmt: skip
NETWORKS = (RESNET50, DEEPLAB)


# What is computed here.

DEVICE, FITTED, FITTED_LINK = "32 GiB", "fitted", "fitted, and link"
VANILLA, RECOMPUTE, SWAP, HYBRID = "vanilla", "recompute", "swap", "hybrid"
PRINTED_LIST, OURS = "printed list", "auto"
METHODS = (VANILLA, RECOMPUTE, SWAP, HYBRID, PRINTED_LIST, OURS)
MACHINE = v100_32gb_nvlink()
#: Swapping is flat where it keeps this share of its speed on the stated link.
FLAT = 0.99
QUICK_SIZES = MappingProxyType({"resnet50": (3000, 6500)})


@dataclass(frozen=True, slots=True)
class ImageCell:
    """What a method makes of an image size; what cannot be trained has no speed.

    Args:
        model, image_size, method: which.
        memory: "32 GiB", "fitted", or "fitted, and link" where the link is fitted, too;
            budget_bytes: the same in bytes; link_bytes_per_us: of each way.
        megapixels_per_s: simulated.
        minimum_bytes: what the method needs where it does not fit.
        swap_outs: how many copies to the host the list has; bytes_out: theirs.
        parameters: what the tuner chose, in words.
    """

    model: str
    image_size: int
    method: str
    memory: str
    budget_bytes: int
    link_bytes_per_us: float
    megapixels_per_s: float | None
    minimum_bytes: int | None
    swap_outs: int | None
    bytes_out: int | None
    parameters: str


@dataclass(frozen=True, slots=True)
class TunedReplay:
    """The paper's parameters, used here.

    Args:
        kind: "swap" or "hybrid"; scaled: whether levels are scaled to the height of our graph.
        printed: the parameters; used: those that were set.
        rest: as in `ImageCell`.
    """

    model: str
    image_size: int
    kind: str
    scaled: bool
    printed: Tuned
    used: Tuned
    memory: str
    budget_bytes: int
    megapixels_per_s: float | None
    minimum_bytes: int | None


@dataclass(frozen=True, slots=True)
class _Question:
    """A step, a memory and a machine: what all methods are given."""

    network: TunedNetwork
    image_size: int
    step: Trace
    memory: str
    budget_bytes: int
    machine: Machine


def memories(network: TunedNetwork) -> dict[str, int]:
    """{name: bytes}: the device's, and what the step takes halfway between the paper's largest
    image without any method and the next that it tried."""
    size = (network.sizes_of_fit[0] + network.sizes_of_fit[1]) // 2
    return {DEVICE: MACHINE.device_bytes, FITTED: trace_peak_bytes(_step(network, size), BYTES)}


def fitted_link(network: TunedNetwork) -> float:
    """Bytes per us each way, with which swapping just begins to lose halfway between the largest
    image at which the paper's does not and the next that it tried.

    The plan depends on memory alone, so it is made once.
    """
    flat, slower = network.sizes_of_knee
    plan = LmsAuto().plan(
        Question(_step(network, (flat + slower) // 2), memories(network)[FITTED], MACHINE)
    )

    def time_us(link: float) -> float:
        where = replace(MACHINE, link_bytes_per_us=link)
        return simulate(plan.schedule, plan.trace, where).makespan_us

    stated = MACHINE.link_bytes_per_us
    most_us = time_us(stated) / FLAT
    return bisected(stated / 1000, stated, lambda link: time_us(link) > most_us)


def cells(case: tuple[TunedNetwork, int, float | None]) -> list[ImageCell]:
    """All methods and memories of (network, image size, fitted link; None: without that)."""
    return [
        _cell(asked, method, plan)
        for asked in _questions_in_all_memories(*case)
        for method, plan in _methods(asked)
    ]


def replays(case: tuple[TunedNetwork, int, float | None]) -> list[TunedReplay]:
    """The printed parameters of (network, image size, fitted link), as given and scaled."""
    network, size, _ = case
    return [
        _replay(asked, kind, table[size], scaled)
        for asked in _questions_in_all_memories(*case)
        for kind, table in (("swap", network.swap), ("hybrid", network.hybrid))
        if size in table
        for scaled in (False, True)
    ]


def largest(found: Iterable[ImageCell], model: str, method: str, memory: str) -> int | None:
    """The largest of the image sizes that a method trains."""
    sizes = [
        cell.image_size
        for cell in found
        if (cell.model, cell.method, cell.memory) == (model, method, memory)
        and cell.megapixels_per_s is not None
    ]
    return max(sizes, default=None)


def speed(
    found: Iterable[ImageCell], model: str, method: str, memory: str, size: int
) -> float | None:
    """The speed of one cell."""
    key = (model, method, memory, size)
    return next(
        (
            cell.megapixels_per_s
            for cell in found
            if (cell.model, cell.method, cell.memory, cell.image_size) == key
        ),
        None,
    )


def recompute_overhead(
    found: Sequence[ImageCell], network: TunedNetwork, memory: str
) -> float | None:
    """What computing everything again costs where nothing has to be, of the speed without it."""
    size = network.sizes_of_fit[0]
    plain = speed(found, network.model, VANILLA, memory, size)
    again = speed(found, network.model, RECOMPUTE, memory, size)
    return None if plain is None or again is None else 1 - again / plain


def hybrid_gain(
    found: Sequence[ImageCell], network: TunedNetwork, memory: str, method: str = HYBRID
) -> tuple[int, float] | None:
    """(image size, gain) where a method gains most over swapping alone; None: nowhere compared."""
    gains = []
    for size in sorted({cell.image_size for cell in found if cell.model == network.model}):
        swapped = speed(found, network.model, SWAP, memory, size)
        both = speed(found, network.model, method, memory, size)
        if swapped is not None and both is not None:
            gains.append((both / swapped - 1, size))
    if not gains:
        return None
    gain, size = max(gains, key=lambda pair: pair[0])
    return size, gain


def network_of(model: str) -> TunedNetwork:
    """The network of a cell."""
    return next(network for network in NETWORKS if network.model == model)


def _questions_in_all_memories(
    network: TunedNetwork, size: int, link: float | None
) -> Iterator[_Question]:
    step, found = _step(network, size), memories(network)
    for memory, budget_bytes in found.items():
        yield _Question(network, size, step, memory, budget_bytes, MACHINE)
    if link is not None:
        where = replace(MACHINE, link_bytes_per_us=link)
        yield _Question(network, size, step, FITTED_LINK, found[FITTED], where)


def _methods(asked: _Question) -> Iterator[tuple[str, Callable[[], Plan]]]:
    """(name, what plans), in the order of `METHODS`; auto, which takes longest, on the stated link
    alone."""
    step, budget, printed = asked.step, asked.budget_bytes, asked.network.hybrid
    every = tuple(checkpoint.id for checkpoint in TflmsHybrid().checkpoints(step))
    yield VANILLA, lambda: _plan(asked, (), KeepAll())
    yield RECOMPUTE, lambda: _plan(asked, every, KeepAll())
    yield SWAP, lambda: _plan(asked, (), LmsAuto())
    yield HYBRID, lambda: TflmsHybrid().plan(Question(step, budget, asked.machine))
    listed = printed[asked.image_size].checkpoints if asked.image_size in printed else ()
    if listed:
        yield PRINTED_LIST, lambda: _plan(asked, listed, LmsAuto())
    if asked.memory != FITTED_LINK:
        yield OURS, lambda: Auto().plan(Question(step, budget, asked.machine))


def _cell(asked: _Question, method: str, plan: Callable[[], Plan]) -> ImageCell:
    head = (
        asked.network.model, asked.image_size, method, asked.memory, asked.budget_bytes,
        asked.machine.link_bytes_per_us,
    )  # fmt: skip
    try:
        found = plan()
    except Infeasible as refusal:
        return ImageCell(*head, None, refusal.minimum_bytes, None, None, "")
    verify(found, asked.step, asked.budget_bytes, asked.machine)
    outs = [i for i in found.schedule.instructions if isinstance(i, SwapOut)]
    bytes_out = sum(out.hi - out.lo for out in outs)
    speed = _megapixels_per_s(asked, found)
    notes = ", ".join(f"{name}={value}" for name, value in found.notes.items())
    return ImageCell(*head, speed, None, len(outs), bytes_out, notes)


def _replay(asked: _Question, kind: str, printed: Tuned, scaled: bool) -> TunedReplay:
    used = _scaled(printed, asked) if scaled else printed
    lms = Lms(used.swapout_threshold, used.swapin_ahead, used.swapin_groupby)
    reached, minimum = None, None
    try:
        reached = _megapixels_per_s(asked, _plan(asked, used.checkpoints, lms))
    except Infeasible as refusal:
        minimum = refusal.minimum_bytes
    return TunedReplay(
        asked.network.model, asked.image_size, kind, scaled, printed, used, asked.memory,
        asked.budget_bytes, reached, minimum,
    )  # fmt: skip


def _plan(asked: _Question, checkpoints: Sequence[int], swapper: Planner) -> Plan:
    """Paper 001's order of edits: compute again, then swap."""
    runs = TflmsHybrid().runs(asked.step, checkpoints)
    question = Question(asked.step, asked.budget_bytes, asked.machine)
    return plan_runs("hybrid", question, runs, swapper, {})


def _step(network: TunedNetwork, size: int) -> Trace:
    return step_trace(network.model, network.batch, size)


def _megapixels_per_s(asked: _Question, plan: Plan) -> float:
    return asked.network.batch * asked.image_size**2 / plan.makespan_us


def _scaled(tuned: Tuned, asked: _Question) -> Tuned:
    """Levels of the paper's graph as levels of ours."""
    height = LevelGraph(asked.step).height
    threshold, ahead, groupby = (
        round(number * height / asked.network.levels)
        for number in (tuned.swapout_threshold, tuned.swapin_ahead, tuned.swapin_groupby)
    )
    return Tuned(threshold, ahead, groupby, tuned.checkpoints)


# `ooctrain reproduce hybrid`: tables, a figure, numbers, all of them three times: for the memory of
# the device, for the memory in which the step without any method reaches the paper's largest image,
# and for that with the link with which swapping begins to lose where the paper's does.

MEMORIES = (DEVICE, FITTED, FITTED_LINK)


def hybrid(wanted: Wanted, console: Console) -> Mapping[str, Any]:
    """Paper 001, figures 3 to 6, tables 1 and 2."""
    sizes = {each.model: each.image_sizes for each in NETWORKS}
    asked = QUICK_SIZES if wanted.quick else sizes
    networks = [network_of(model) for model in asked]
    links = {network.model: fitted_link(network) for network in networks}
    cases = [
        (network, size, links[network.model])
        for network in networks
        for size in asked[network.model]
    ]
    processes = 1 if wanted.quick else None
    found = spread(cells, cases, processes, wanted.keep)
    found_cells = [cell for rows in found for cell in rows]
    replayed = spread(replays, cases, processes, wanted.keep)
    found_replays = [row for rows in replayed for row in rows]
    print_title(console, "The largest of the images that were tried, pixels of a side")
    console.print(largest_table(found_cells, networks))
    console.print()
    console.print(claim_table(found_cells, networks))
    for model, link in links.items():
        console.print(f"\n{model}: the fitted link carries {link / 1e3:.1f} GB/s each way")
    for memory in MEMORIES:
        print_title(console, f"\nMegapixels per second, simulated, {memory} memory")
        console.print(speed_table(found_cells, memory))
        print_title(console, f"\nThe printed parameters, {memory} memory")
        console.print(replay_table(found_replays, memory))
    write_figure(wanted, console, hybrid_figure(found_cells))
    return {
        "machine": MACHINE.name,
        "memories": {network.model: memories(network) for network in networks},
        "links_bytes_per_us": links,
        "cells": [asdict(cell) for cell in found_cells],
        "replays": [asdict(replay) for replay in found_replays],
    }


def largest_table(found_cells: Sequence[ImageCell], networks: Sequence[TunedNetwork]) -> Table:
    """The largest image of each method."""
    table = plain_table(
        "network", "method", *(f"{memory} memory" for memory in MEMORIES), "paper 001",
        left=("network", "method"),
    )  # fmt: skip
    for network in networks:
        for method in METHODS:
            here = [largest(found_cells, network.model, method, memory) for memory in MEMORIES]
            printed = network.largest.get(method)
            if any(here):
                table.add_row(network.model, method, *map(or_dash, here), or_dash(printed))
    return table


def claim_table(found_cells: Sequence[ImageCell], networks: Sequence[TunedNetwork]) -> Table:
    """What computing again costs, and what it gains over swapping alone."""
    table = plain_table(
        "network", "claim", *(f"{memory} memory" for memory in MEMORIES), "paper 001",
        left=("network", "claim"),
    )  # fmt: skip
    for network in networks:
        size = network.sizes_of_fit[0]
        overheads = [
            or_dash(recompute_overhead(found_cells, network, memory), ".1%") for memory in MEMORIES
        ]
        table.add_row(
            network.model, f"recompute at {size} loses", *overheads,
            f"{network.recompute_overhead:.1%}",
        )  # fmt: skip
        for method in (HYBRID, PRINTED_LIST, OURS):
            gains = [
                _gain(hybrid_gain(found_cells, network, memory, method)) for memory in MEMORIES
            ]
            printed = _gain(network.gain) if method == HYBRID else ""
            table.add_row(network.model, f"{method} gains over swap", *gains, printed)
    return table


def speed_table(found_cells: Sequence[ImageCell], memory: str) -> Table:
    """Megapixels per second, a line for each image size; x: it cannot be trained."""
    table = plain_table("network", "pixels", *METHODS, left=("network",))
    found = {(c.model, c.image_size, c.method): c for c in found_cells if c.memory == memory}
    for model, size in dict.fromkeys((c.model, c.image_size) for c in found_cells):
        row = (found.get((model, size, method)) for method in METHODS)
        table.add_row(model, str(size), *("" if cell is None else _speed(cell) for cell in row))
    return table


def replay_table(found_replays: Sequence[TunedReplay], memory: str) -> Table:
    """The paper's parameters (threshold/ahead/groupby) as given and scaled to our levels."""
    table = plain_table(
        "network", "pixels", "method", "printed", "as given", "scaled", "here",
        left=("network", "method"),
    )  # fmt: skip
    found = {
        (r.model, r.image_size, r.kind, r.scaled): r for r in found_replays if r.memory == memory
    }
    for (model, size, kind, scaled), scaled_one in found.items():
        if scaled:
            table.add_row(
                model, str(size), kind, str(scaled_one.printed),
                _reached(found[model, size, kind, False]), str(scaled_one.used),
                _reached(scaled_one),
            )  # fmt: skip
    return table


def hybrid_figure(found_cells: Sequence[ImageCell]) -> str:
    """SVG: for each network and memory speeds (figures 3, 4) and swap-outs (figures 5, 6)."""
    pictures = []
    for model in dict.fromkeys(cell.model for cell in found_cells):
        for memory in MEMORIES:
            found = [cell for cell in found_cells if (cell.model, cell.memory) == (model, memory)]
            title = f"{model}, batch {network_of(model).batch}, {_memory(found[0])}"
            pictures.append(
                curves_svg(
                    f"Figures 3, 4: {title}",
                    _curves(found, METHODS, attrgetter("megapixels_per_s")),
                    axes=(
                        "pixels of a side (no point: it cannot be trained)",
                        "megapixels/s, simulated",
                    ),
                )
            )
            pictures.append(
                curves_svg(
                    f"Figures 5, 6: {title}",
                    _curves(found, (SWAP, HYBRID), attrgetter("swap_outs")),
                    axes=("pixels of a side", "swap-outs in a step"),
                )
            )  # fmt: skip
    return stacked_svg(pictures)


def _memory(cell: ImageCell) -> str:
    """The memory, and the link, in words."""
    fitted = "" if cell.memory == DEVICE else ", fitted to the paper's largest image without swap"
    link = ""
    if cell.memory == FITTED_LINK:
        link = f", link of {cell.link_bytes_per_us / 1e3:.1f} GB/s, fitted to where swapping loses"
    return f"{format_bytes(cell.budget_bytes)}{fitted}{link}"


def _curves(
    found_cells: Sequence[ImageCell], methods: Sequence[str], y: Callable[[ImageCell], float | None]
) -> list[Curve]:
    return [
        Curve(method, points)
        for method in methods
        if (points := [(c.image_size, y(c)) for c in found_cells if c.method == method])
    ]


def _speed(cell: ImageCell) -> str:
    return "x" if cell.megapixels_per_s is None else f"{cell.megapixels_per_s:.2f}"


def _reached(replay: TunedReplay) -> str:
    if replay.megapixels_per_s is not None:
        return f"{replay.megapixels_per_s:.2f}"
    return f"needs {format_bytes(replay.minimum_bytes or 0)}"


def _gain(found: tuple[int, float] | None) -> str:
    return "-" if found is None else f"{found[1]:.1%} at {found[0]}"
