"""The experiment of paper 002 for `ooctrain reproduce`: offload-ratios.

In: what is wanted. Out: tables, a figure, numbers. The one idea: first the paper's own question,
on chains, then the same planners on the steps that the chains were made of. Read next:
`offload_ratios.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from rich.console import Console

from ooctrain.experiments.compare import compare
from ooctrain.experiments.paper_002 import offload_ratios as experiment
from ooctrain.experiments.paper_002.offload_ratios_shown import (
    claim_table,
    ratio_figure,
    step_table,
    worst_table,
)
from ooctrain.experiments.reproducing import Wanted, finish, print_title
from ooctrain.experiments.spread import spread
from ooctrain.experiments.verdicts import offload_ratios as offload_ratios_verdict
from ooctrain.experiments.verdicts.sentences import fill
from ooctrain.step.presets import cache_base, usable_cores


def offload_ratios(wanted: Wanted, console: Console) -> Mapping[str, Any]:
    """Paper 002, figures 4 to 18: step times over its lower bound."""
    networks = experiment.QUICK_NETWORKS if wanted.quick else experiment.NETWORKS
    batches = experiment.QUICK_BATCHES if wanted.quick else experiment.BATCHES
    shares = experiment.QUICK_SHARES if wanted.quick else experiment.SHARES
    processes = 1 if wanted.quick else None
    print_title(console, "Largest step / proposition 3 over all shares of memory, on chains")
    cells: list[experiment.Cell] = []
    cases = [(group, shares) for group in experiment.groups(networks, batches)]
    for found in spread(experiment.chain_cells, cases, processes):
        console.print(worst_table(found, header=not cells))
        cells += found
    claims = experiment.claims(cells)
    console.print()
    console.print(claim_table(claims))
    steps = experiment.step_cases(
        experiment.QUICK_NETWORKS if wanted.quick else experiment.REPRESENTATIVE,
        experiment.QUICK_STEP_SHARES if wanted.quick else experiment.STEP_SHARES,
    )
    rows = compare(steps, jobs=processes or usable_cores(), keep=cache_base() / "compare")
    print_title(console, "\nThe steps themselves: step / LP bound with recomputation")
    console.print(step_table(rows))
    verdict = fill(offload_ratios_verdict.SENTENCES, offload_ratios_verdict.facts(cells))
    finish(wanted, console, ratio_figure(cells, rows), verdict)
    return {
        "machine": experiment.MACHINE,
        "cells": [_cell(cell) for cell in cells],
        "claims": [asdict(claim) for claim in claims],
        "steps": [asdict(row) for row in rows],
        **asdict(verdict),
    }


def _cell(cell: experiment.Cell) -> Mapping[str, Any]:
    own = asdict(cell)
    group = own.pop("group")
    return {**group, **own, "ratio": cell.ratio, "images_per_s": cell.images_per_s}
