"""The experiment of paper 002 for `ooctrain reproduce`: offload-ratios.

In: what is wanted. Out: tables, a figure, numbers. The one idea: first the paper's own question,
on chains, then the same planners on the steps that the chains were made of. Read next:
`../experiments/offload_ratios.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from rich.console import Console

from ooctrain.cli.reproducing import Wanted, finish
from ooctrain.experiments import offload_ratios as ratios
from ooctrain.experiments.compare import compare
from ooctrain.experiments.said.offload_ratios import offload_ratios_verdict
from ooctrain.experiments.spread import spread
from ooctrain.machines import cache_base, usable_cores
from ooctrain.report.offload_ratios import claim_table, ratio_figure, step_table, worst_table


def offload_ratios(wanted: Wanted, console: Console) -> Mapping[str, Any]:
    """Paper 002, figures 4 to 18: step times over its lower bound."""
    networks = ratios.QUICK_NETWORKS if wanted.quick else ratios.NETWORKS
    batches = ratios.QUICK_BATCHES if wanted.quick else ratios.BATCHES
    shares = ratios.QUICK_SHARES if wanted.quick else ratios.SHARES
    processes = 1 if wanted.quick else None
    console.print("[bold]Largest step / proposition 3 over all shares of memory, on chains[/bold]")
    cells: list[ratios.Cell] = []
    cases = [(group, shares) for group in ratios.groups(networks, batches)]
    for found in spread(ratios.chain_cells, cases, processes):
        console.print(worst_table(found, header=not cells))
        cells += found
    claims = ratios.claims(cells)
    console.print()
    console.print(claim_table(claims))
    steps = ratios.step_cases(
        ratios.QUICK_NETWORKS if wanted.quick else ratios.REPRESENTATIVE,
        ratios.QUICK_STEP_SHARES if wanted.quick else ratios.STEP_SHARES,
    )
    rows = compare(steps, jobs=processes or usable_cores(), keep=cache_base() / "compare")
    console.print("\n[bold]The steps themselves: step / LP bound with recomputation[/bold]")
    console.print(step_table(rows))
    said = offload_ratios_verdict(cells)
    finish(wanted, console, ratio_figure(cells, rows), said)
    return {
        "machine": ratios.MACHINE,
        "cells": [_cell(cell) for cell in cells],
        "claims": [asdict(claim) for claim in claims],
        "steps": [asdict(row) for row in rows],
        **asdict(said),
    }


def _cell(cell: ratios.Cell) -> Mapping[str, Any]:
    own = asdict(cell)
    group = own.pop("group")
    return {**group, **own, "ratio": cell.ratio, "images_per_s": cell.images_per_s}
