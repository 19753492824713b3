"""`ooctrain reproduce sft`: paper 003's figure 8, and the values computed here.

It shows what the paper's text says of memory, a table of seconds, the largest images, a curve for
each network and GPU, and numbers. Figure 8 prints no numbers, so only three things can be compared:
where each way ends, that time grows with the pixels, and the one figure of the artifact. Read next:
`sft.py`; `report/charts.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table

from ooctrain.experiments.paper_003 import sft as experiment
from ooctrain.experiments.paper_003.sft import Cell
from ooctrain.experiments.reproducing import Wanted, print_title, write_figure
from ooctrain.report.charts import Curve, curves_svg, stacked_svg
from ooctrain.report.tables import plain_table
from ooctrain.units import GIB, format_bytes


def sft(wanted: Wanted, console: Console) -> Mapping[str, Any]:
    """Paper 003, figure 8."""
    sides = experiment.QUICK_SIDES if wanted.quick else experiment.SIDES
    networks = experiment.QUICK_NETWORKS if wanted.quick else experiment.NETWORKS
    memory = {
        network: experiment.activation_bytes(
            experiment.convolutional_step(network, experiment.PRINTED_SIDE)
        )
        for network in experiment.PRINTED_GIB
    }
    print_title(console, f"Activations of an image of {experiment.PRINTED_SIDE} pixels")
    console.print(memory_table(memory))
    rows = [
        row
        for where in experiment.machines() for network in networks for side in sides
        for row in experiment.cells(network, side, where)
    ]  # fmt: skip
    print_title(console, "\nA step on one square image, simulated (paper 003, figure 8)")
    console.print(step_table(rows))
    print_title(console, "\nThe largest of these images that fits")
    console.print(largest_table(rows))
    write_figure(wanted, console, sft_figure(rows))
    return {
        "activation_bytes": memory, "printed_gib": dict(experiment.PRINTED_GIB),
        "cells": [asdict(row) for row in rows],
    }  # fmt: skip


def memory_table(found: Mapping[str, int]) -> Table:
    """Bytes beside the paper's sentence."""
    table = plain_table("network", "here", "paper 003", left=("network",))
    for network, size_bytes in found.items():
        table.add_row(
            network, f"{size_bytes / GIB:.1f} GiB", f"{experiment.PRINTED_GIB[network]} GiB"
        )
    return table


def step_table(rows: Sequence[Cell]) -> Table:
    """Seconds, and how often the computing time of the untiled step that is."""
    table = plain_table(
        "machine", "network", "side", "way", "seconds", "/ untiled", "peak", "tiling",
        left=("machine", "network", "way", "tiling"),
    )  # fmt: skip
    for row in rows:
        head = row.machine, row.network, str(row.side), row.way
        artifact = "" if row.artifact_s is None else f" (artifact {row.artifact_s})"
        if row.seconds is None:
            least = f"> {format_bytes(row.peak_bytes)}" if row.peak_bytes else ""
            table.add_row(*head, "-", "-", least, row.tiling)
            continue
        table.add_row(
            *head, f"{row.seconds:.2f}{artifact}", f"{row.over_untiled:.3f}",
            format_bytes(row.peak_bytes), row.tiling,
        )  # fmt: skip
    return table


def largest_table(rows: Sequence[Cell]) -> Table:
    """Sides of images, a column for each way."""
    ways = tuple(experiment.ways())
    found = experiment.largest(rows)
    table = plain_table("machine", "network", *ways, left=("machine", "network"))
    for machine, network in dict.fromkeys((row.machine, row.network) for row in rows):
        sides = [found.get((machine, network, way), 0) for way in ways]
        table.add_row(machine, network, *(str(side) if side else "-" for side in sides))
    return table


def sft_figure(rows: Sequence[Cell]) -> str:
    """SVG: figure 8, a chart for each network and GPU."""
    charts = []
    for machine, network in dict.fromkeys((row.machine, row.network) for row in rows):
        own = [row for row in rows if (row.machine, row.network) == (machine, network)]
        curves = [
            Curve(way, [(row.side, row.seconds) for row in own if row.way == way and row.seconds])
            for way in experiment.ways()
        ]
        charts.append(
            curves_svg(
                f"Figure 8, {network}, {machine}", [curve for curve in curves if curve.points],
                axes=("side of the image", "seconds"),
            )
        )  # fmt: skip
    return stacked_svg(charts)
