"""`ooctrain reproduce hybrid`: paper 001's figures 3 to 6 and tables 1 and 2, and ours.

It shows tables, a figure and numbers, all of them three times: for the memory of the device, for
the memory in which the step without any method reaches the paper's largest image, and for that with
the link with which swapping begins to lose where the paper's does. Read next: `hybrid.py`;
`report/charts.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from operator import attrgetter
from typing import Any

from rich.console import Console
from rich.table import Table

from ooctrain.experiments.paper_001 import hybrid as experiment
from ooctrain.experiments.paper_001.hybrid import (
    DEVICE,
    FITTED,
    FITTED_LINK,
    HYBRID,
    METHODS,
    OURS,
    PRINTED_LIST,
    SWAP,
    ImageCell,
    TunedReplay,
    hybrid_gain,
    largest,
    network_of,
    recompute_overhead,
)
from ooctrain.experiments.paper_001.hybrid_printed import NETWORKS, TunedNetwork
from ooctrain.experiments.reproducing import Wanted, print_title, write_figure
from ooctrain.experiments.spread import spread
from ooctrain.report.charts import Curve, curves_svg, stacked_svg
from ooctrain.report.tables import or_dash, plain_table
from ooctrain.units import format_bytes

MEMORIES = (DEVICE, FITTED, FITTED_LINK)


def hybrid(wanted: Wanted, console: Console) -> Mapping[str, Any]:
    """Paper 001, figures 3 to 6, tables 1 and 2."""
    sizes = {each.model: each.image_sizes for each in NETWORKS}
    asked = experiment.QUICK_SIZES if wanted.quick else sizes
    networks = [network_of(model) for model in asked]
    links = {network.model: experiment.fitted_link(network) for network in networks}
    cases = [
        (network, size, links[network.model])
        for network in networks
        for size in asked[network.model]
    ]
    processes = 1 if wanted.quick else None
    found = spread(experiment.cells, cases, processes, wanted.keep)
    cells = [cell for rows in found for cell in rows]
    replayed = spread(experiment.replays, cases, processes, wanted.keep)
    replays = [row for rows in replayed for row in rows]
    print_title(console, "The largest of the images that were tried, pixels of a side")
    console.print(largest_table(cells, networks))
    console.print()
    console.print(claim_table(cells, networks))
    for model, link in links.items():
        console.print(f"\n{model}: the fitted link carries {link / 1e3:.1f} GB/s each way")
    for memory in MEMORIES:
        print_title(console, f"\nMegapixels per second, simulated, {memory} memory")
        console.print(speed_table(cells, memory))
        print_title(console, f"\nThe printed parameters, {memory} memory")
        console.print(replay_table(replays, memory))
    write_figure(wanted, console, hybrid_figure(cells))
    return {
        "machine": experiment.MACHINE.name,
        "memories": {network.model: experiment.memories(network) for network in networks},
        "links_bytes_per_us": links,
        "cells": [asdict(cell) for cell in cells],
        "replays": [asdict(replay) for replay in replays],
    }


def largest_table(cells: Sequence[ImageCell], networks: Sequence[TunedNetwork]) -> Table:
    """The largest image of each method."""
    table = plain_table(
        "network", "method", *(f"{memory} memory" for memory in MEMORIES), "paper 001",
        left=("network", "method"),
    )  # fmt: skip
    for network in networks:
        for method in METHODS:
            here = [largest(cells, network.model, method, memory) for memory in MEMORIES]
            printed = network.largest.get(method)
            if any(here):
                table.add_row(network.model, method, *map(or_dash, here), or_dash(printed))
    return table


def claim_table(cells: Sequence[ImageCell], networks: Sequence[TunedNetwork]) -> Table:
    """What computing again costs, and what it gains over swapping alone."""
    table = plain_table(
        "network", "claim", *(f"{memory} memory" for memory in MEMORIES), "paper 001",
        left=("network", "claim"),
    )  # fmt: skip
    for network in networks:
        size = network.sizes_of_fit[0]
        overheads = [
            or_dash(recompute_overhead(cells, network, memory), ".1%") for memory in MEMORIES
        ]
        table.add_row(
            network.model, f"recompute at {size} loses", *overheads,
            f"{network.recompute_overhead:.1%}",
        )  # fmt: skip
        for method in (HYBRID, PRINTED_LIST, OURS):
            gains = [_gain(hybrid_gain(cells, network, memory, method)) for memory in MEMORIES]
            printed = _gain(network.gain) if method == HYBRID else ""
            table.add_row(network.model, f"{method} gains over swap", *gains, printed)
    return table


def speed_table(cells: Sequence[ImageCell], memory: str) -> Table:
    """Megapixels per second, a line for each image size; x: it cannot be trained."""
    table = plain_table("network", "pixels", *METHODS, left=("network",))
    found = {(c.model, c.image_size, c.method): c for c in cells if c.memory == memory}
    for model, size in dict.fromkeys((c.model, c.image_size) for c in cells):
        row = (found.get((model, size, method)) for method in METHODS)
        table.add_row(model, str(size), *("" if cell is None else _speed(cell) for cell in row))
    return table


def replay_table(replays: Sequence[TunedReplay], memory: str) -> Table:
    """The paper's parameters (threshold/ahead/groupby) as given and scaled to our levels."""
    table = plain_table(
        "network", "pixels", "method", "printed", "as given", "scaled", "here",
        left=("network", "method"),
    )  # fmt: skip
    found = {(r.model, r.image_size, r.kind, r.scaled): r for r in replays if r.memory == memory}
    for (model, size, kind, scaled), scaled_one in found.items():
        if scaled:
            table.add_row(
                model, str(size), kind, str(scaled_one.printed),
                _reached(found[model, size, kind, False]), str(scaled_one.used),
                _reached(scaled_one),
            )  # fmt: skip
    return table


def hybrid_figure(cells: Sequence[ImageCell]) -> str:
    """SVG: for each network and memory speeds (figures 3, 4) and swap-outs (figures 5, 6)."""
    pictures = []
    for model in dict.fromkeys(cell.model for cell in cells):
        for memory in MEMORIES:
            found = [cell for cell in cells if (cell.model, cell.memory) == (model, memory)]
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
    cells: Sequence[ImageCell], methods: Sequence[str], y: Callable[[ImageCell], float | None]
) -> list[Curve]:
    return [
        Curve(method, points)
        for method in methods
        if (points := [(c.image_size, y(c)) for c in cells if c.method == method])
    ]


def _speed(cell: ImageCell) -> str:
    return "x" if cell.megapixels_per_s is None else f"{cell.megapixels_per_s:.2f}"


def _reached(replay: TunedReplay) -> str:
    if replay.megapixels_per_s is not None:
        return f"{replay.megapixels_per_s:.2f}"
    return f"needs {format_bytes(replay.minimum_bytes or 0)}"


def _gain(found: tuple[int, float] | None) -> str:
    return "-" if found is None else f"{found[1]:.1%} at {found[0]}"
