"""The experiment of paper 001 for `ooctrain reproduce`: hybrid.

In: what is wanted. Out: tables, a figure, numbers. The one idea: every image size is a case of its
own, with all methods and both memories, so that cases go to any process. Read next:
`../experiments/hybrid.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from rich.console import Console

from ooctrain.cli.reproducing import Wanted, finish
from ooctrain.experiments import hybrid as images
from ooctrain.experiments.hybrid_printed import NETWORKS
from ooctrain.experiments.said.hybrid import hybrid_verdict
from ooctrain.experiments.spread import spread
from ooctrain.report.hybrid import (
    claim_table,
    hybrid_figure,
    largest_table,
    replay_table,
    speed_table,
)


def hybrid(wanted: Wanted, console: Console) -> Mapping[str, Any]:
    """Paper 001, figures 3 to 6, tables 1 and 2."""
    sizes = {each.model: each.image_sizes for each in NETWORKS}
    asked = images.QUICK_SIZES if wanted.quick else sizes
    cases = [(images.network_of(model), size) for model, sizes in asked.items() for size in sizes]
    processes = 1 if wanted.quick else None
    cells = [cell for rows in spread(images.cells, cases, processes) for cell in rows]
    replays = [row for rows in spread(images.replays, cases, processes) for row in rows]
    networks = [images.network_of(model) for model in asked]
    console.print("[bold]The largest of the images that were tried, pixels of a side[/bold]")
    console.print(largest_table(cells, networks))
    console.print()
    console.print(claim_table(cells, networks))
    for memory in (images.DEVICE, images.FITTED):
        console.print(f"\n[bold]Megapixels per second, simulated, {memory} memory[/bold]")
        console.print(speed_table(cells, memory))
        console.print(f"\n[bold]The printed parameters, {memory} memory[/bold]")
        console.print(replay_table(replays, memory))
    said = hybrid_verdict(cells, replays)
    finish(wanted, console, hybrid_figure(cells), said)
    return {
        "machine": images.MACHINE.name,
        "memories": {network.model: images.memories(network) for network in networks},
        "cells": [asdict(cell) for cell in cells],
        "replays": [asdict(replay) for replay in replays],
        **asdict(said),
    }
