"""Paper 003, figure 8: three networks on ever larger images, by four ways to train them.

For networks, sides of square images and two GPUs, this simulates the seconds of a step, where it
fits. As images grow, keeping all values fails first, and checkpoints a little later, since a
layer's tensors must fit as a whole. Tiles reach further, and their relative cost does not depend on
the side. The paper's tiles compute their halos again and move nothing; they are compared with bands
that keep their halos, with a planner that may swap.

Source: paper 003, section 6; the 43.8 s are from its artifact (HPCRL/SFT-CC2022-AE). Departures:
docs/papers.md. Read next: `rewrite/tile/sft_planner.py`, `rewrite/tile/banded.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Any

from rich.console import Console
from rich.table import Table

from ooctrain import nn
from ooctrain.errors import Infeasible
from ooctrain.execution.settings import DEFAULT_REWRITES
from ooctrain.experiments.reproducing import Wanted, print_title, write_figure
from ooctrain.models import build, recipe_of
from ooctrain.report.charts import Curve, curves_svg, stacked_svg
from ooctrain.report.text import plain_table
from ooctrain.rewrite import REWRITES, apply_rewrites
from ooctrain.rewrite.tile.banded import Banded
from ooctrain.rewrite.tile.sft_planner import Sft
from ooctrain.sched.planners.chen import ChenSqrt
from ooctrain.sched.planners.keep_all import KeepAll
from ooctrain.sched.planning.planner import Planner
from ooctrain.sched.planning.question import Question
from ooctrain.sched.verify import verify
from ooctrain.step.machine import Machine, call_durations_ns
from ooctrain.step.presets import a100_pcie, rtx2080ti
from ooctrain.step.trace import Trace
from ooctrain.tracing import trace
from ooctrain.units import GIB, format_bytes

SIDES, QUICK_SIDES = (512, 1024, 2048, 4096, 10240, 20480), (512, 2048)
#: DarkNet's batch norm stands still in the second: then it works element by element.
NETWORKS = ("vgg16", "vgg19", "darknet19", "darknet19-frozen")
QUICK_NETWORKS = ("vgg16",)
FROZEN = "-frozen"
BASE, CHECKPOINT, SFT, OURS = "base", "checkpoint", "sft", "ours"
#: What the paper's text says an image of 10240 pixels takes, "all activations and models", in GiB.
PRINTED_GIB: Mapping[str, int] = MappingProxyType({"vgg16": 118, "vgg19": 129, "darknet19": 43})
PRINTED_SIDE = 10240
#: {(machine, network, side): seconds} in the artifact's raw data; the paper prints none.
ARTIFACT_S: Mapping[tuple[str, str, int], float] = MappingProxyType(
    {("rtx2080ti", "vgg16", 10240): 43.8}
)


@dataclass(frozen=True, slots=True)
class Cell:
    """A step by one of the ways.

    Args:
        machine, network, side, way: which.
        seconds: simulated; None where it does not fit.
        over_untiled: that over the computing time of the untiled step.
        peak_bytes: peak of the plan; where it does not fit, the least budget.
        tiling: names of the rewrites, or what stands in the way.
        artifact_s: as measured by the paper's authors.
    """

    machine: str
    network: str
    side: int
    way: str
    seconds: float | None
    over_untiled: float | None
    peak_bytes: int
    tiling: str
    artifact_s: float | None


def ways() -> Mapping[str, Planner]:
    """The planners, by what figure 8 calls them."""
    return {BASE: KeepAll(), CHECKPOINT: ChenSqrt(), SFT: Sft(untiled=False), OURS: Banded()}


def machines() -> tuple[Machine, Machine]:
    """The paper's GPUs: 11 GiB and 40 GiB."""
    return rtx2080ti(), a100_pcie()


@lru_cache(maxsize=2)
def convolutional_step(network: str, side: int) -> Trace:
    """A step of a network's convolutional part on one square image, with a mean squared error."""
    name = network.removesuffix(FROZEN)
    whole = build(name, recipe_of(name).classes)
    part = nn.Sequential(*(child for child in whole.children() if has_convolutions(child)))
    if network.endswith(FROZEN):
        for module in part.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.eval()
    step = trace(part, (1, 3, side, side), "mse", threads=1)
    return apply_rewrites(step, DEFAULT_REWRITES)


def has_convolutions(part: nn.Module) -> bool:
    """Whether a part of a network belongs to its convolutional part."""
    return any(isinstance(module, nn.Conv2d) for module in part.modules())


def activation_bytes(step: Trace) -> int:
    """What the paper counts: the image, and the outputs of convolutions and poolings."""
    images = [v.nbytes for v in step.variables if v.name == "input"]
    outs = (c.outs[0] for c in step.calls if c.op.name in ("conv2d", "max_pool2d"))
    return sum(images) + sum(step.variables[v].nbytes for v in outs)


def cells(network: str, side: int, where: Machine) -> list[Cell]:
    """The four ways to train a network on images of one size."""
    step = convolutional_step(network, side)
    computing_us = sum(call_durations_ns(step, where)) / 1000
    found = []
    for way, planner in ways().items():
        head = where.name, network, side, way
        printed = ARTIFACT_S.get((where.name, network, side)) if way == SFT else None
        budget, host = where.device_bytes, where.host_bytes
        try:
            plan = planner.plan(Question(step, budget, where, host_budget_bytes=host))
        except Infeasible as refusal:
            why = refusal.witness_call or "host memory"
            found.append(Cell(*head, None, None, refusal.minimum_bytes or 0, why, printed))
            continue
        verify(plan, step, budget, where, host_budget_bytes=host, rewrites=REWRITES)
        seconds, over = plan.makespan_us / 1e6, plan.makespan_us / computing_us
        tiling = ", ".join(plan.rewrites)
        found.append(Cell(*head, seconds, over, plan.peak_bytes, tiling, printed))
    return found


def largest(rows: Sequence[Cell]) -> dict[tuple[str, str, str], int]:
    """{(machine, network, way): the largest side that fits; 0 if none}."""
    found: dict[tuple[str, str, str], int] = {}
    for row in rows:
        key = row.machine, row.network, row.way
        found[key] = max(found.get(key, 0), 0 if row.seconds is None else row.side)
    return found


# `ooctrain reproduce sft`: what the paper's text says of memory, a table of seconds, the largest
# images, a curve for each network and GPU, numbers. Figure 8 prints no numbers, so only three
# things can be compared: where each way ends, that time grows with the pixels, and the artifact's
# one figure.


def sft(wanted: Wanted, console: Console) -> Mapping[str, Any]:
    """Paper 003, figure 8."""
    sides = QUICK_SIDES if wanted.quick else SIDES
    networks = QUICK_NETWORKS if wanted.quick else NETWORKS
    memory = {
        network: activation_bytes(convolutional_step(network, PRINTED_SIDE))
        for network in PRINTED_GIB
    }
    print_title(console, f"Activations of an image of {PRINTED_SIDE} pixels")
    console.print(memory_table(memory))
    rows = [
        row
        for where in machines() for network in networks for side in sides
        for row in cells(network, side, where)
    ]  # fmt: skip
    print_title(console, "\nA step on one square image, simulated (paper 003, figure 8)")
    console.print(step_table(rows))
    print_title(console, "\nThe largest of these images that fits")
    console.print(largest_table(rows))
    write_figure(wanted, console, sft_figure(rows))
    return {
        "activation_bytes": memory, "printed_gib": dict(PRINTED_GIB),
        "cells": [asdict(row) for row in rows],
    }  # fmt: skip


def memory_table(found: Mapping[str, int]) -> Table:
    """Bytes next to the paper's sentence."""
    table = plain_table("network", "here", "paper 003", left=("network",))
    for network, size_bytes in found.items():
        table.add_row(network, f"{size_bytes / GIB:.1f} GiB", f"{PRINTED_GIB[network]} GiB")
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
    names = tuple(ways())
    found = largest(rows)
    table = plain_table("machine", "network", *names, left=("machine", "network"))
    for machine, network in dict.fromkeys((row.machine, row.network) for row in rows):
        sides = [found.get((machine, network, way), 0) for way in names]
        table.add_row(machine, network, *(str(side) if side else "-" for side in sides))
    return table


def sft_figure(rows: Sequence[Cell]) -> str:
    """SVG: figure 8, a chart for each network and GPU."""
    charts = []
    for machine, network in dict.fromkeys((row.machine, row.network) for row in rows):
        own = [row for row in rows if (row.machine, row.network) == (machine, network)]
        curves = [
            Curve(way, [(row.side, row.seconds) for row in own if row.way == way and row.seconds])
            for way in ways()
        ]
        charts.append(
            curves_svg(
                f"Figure 8, {network}, {machine}", [curve for curve in curves if curve.points],
                axes=("side of the image", "seconds"),
            )
        )  # fmt: skip
    return stacked_svg(charts)
