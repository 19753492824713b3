"""The experiment of paper 001 for `ooctrain reproduce`: hybrid.

In: what is wanted. Out: tables, a figure, numbers. The one idea: every image size is a case of its
own, with all methods and both memories, so that cases go to any process. Read next:
`hybrid.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from rich.console import Console

from ooctrain.experiments.paper_001 import hybrid as experiment
from ooctrain.experiments.paper_001.hybrid_printed import NETWORKS
from ooctrain.experiments.paper_001.hybrid_shown import (
    claim_table,
    hybrid_figure,
    largest_table,
    replay_table,
    speed_table,
)
from ooctrain.experiments.reproducing import Wanted, finish, print_title
from ooctrain.experiments.spread import spread
from ooctrain.experiments.verdicts import hybrid as hybrid_verdict
from ooctrain.experiments.verdicts.sentences import fill


def hybrid(wanted: Wanted, console: Console) -> Mapping[str, Any]:
    """Paper 001, figures 3 to 6, tables 1 and 2."""
    sizes = {each.model: each.image_sizes for each in NETWORKS}
    asked = experiment.QUICK_SIZES if wanted.quick else sizes
    networks = [experiment.network_of(model) for model in asked]
    cases = [(network, size) for network in networks for size in asked[network.model]]
    processes = 1 if wanted.quick else None
    cells = [cell for rows in spread(experiment.cells, cases, processes) for cell in rows]
    replays = [row for rows in spread(experiment.replays, cases, processes) for row in rows]
    print_title(console, "The largest of the images that were tried, pixels of a side")
    console.print(largest_table(cells, networks))
    console.print()
    console.print(claim_table(cells, networks))
    for memory in (experiment.DEVICE, experiment.FITTED):
        print_title(console, f"\nMegapixels per second, simulated, {memory} memory")
        console.print(speed_table(cells, memory))
        print_title(console, f"\nThe printed parameters, {memory} memory")
        console.print(replay_table(replays, memory))
    verdict = fill(hybrid_verdict.SENTENCES, hybrid_verdict.facts(cells, replays))
    finish(wanted, console, hybrid_figure(cells), verdict)
    return {
        "machine": experiment.MACHINE.name,
        "memories": {network.model: experiment.memories(network) for network in networks},
        "cells": [asdict(cell) for cell in cells],
        "replays": [asdict(replay) for replay in replays],
        **asdict(verdict),
    }
