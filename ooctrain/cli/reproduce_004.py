"""The experiment of paper 004 for `ooctrain reproduce`: hmms.

In: what is wanted. Out: tables, a figure, numbers. The one idea: all of it twice, on the preset
machine and on the one that is fitted to a printed figure; pictures show the second. Read next:
`../experiments/hmms.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from rich.console import Console

from ooctrain.cli.reproducing import Wanted, finish
from ooctrain.experiments import hmms as plans_of
from ooctrain.experiments.compare import step_trace
from ooctrain.experiments.said.hmms import hmms_verdict
from ooctrain.report.hmms import hmms_figure, share_table, speed_table


def hmms(wanted: Wanted, console: Console) -> Mapping[str, Any]:
    """Paper 004, figures 1, 8 and 9."""
    batch = plans_of.QUICK_BATCH if wanted.quick else plans_of.BATCH
    preset, fitted = plans_of.machines(batch)
    shares = [row for where in (preset, fitted) for row in plans_of.shares(batch, where)]
    console.print("[bold]What can be offloaded without loss[/bold]")
    console.print(share_table(shares))
    plans = {
        (where.name, model): plans_of.plans(model, batch, where)
        for where in (preset, fitted)
        for model in plans_of.FIGURE_8
    }
    speeds = [
        row
        for where in (preset, fitted)
        for model in plans_of.FIGURE_8
        for row in plans_of.speeds(model, batch, where, plans[where.name, model])
    ]
    console.print(f"\n[bold]Three memory plans at batch {batch}, simulated (paper 004)[/bold]")
    console.print(speed_table(speeds))
    calls = {
        model: plans_of.call_bytes(step_trace(model, batch, plans_of.IMAGE_SIZE), fitted)
        for model in plans_of.FIGURE_1
    }
    profiled = plans_of.FIGURE_9
    step = step_trace(profiled, batch, plans_of.IMAGE_SIZE)
    figure = hmms_figure(
        calls, [row for row in speeds if row.machine == fitted.name],
        plans_of.timelines(plans[fitted.name, profiled], fitted),
        {call.name: call.phase for call in step.calls}, profiled,
    )  # fmt: skip
    said = hmms_verdict(preset, fitted, shares, speeds)
    finish(wanted, console, figure, said)
    return {
        "batch": batch,
        "machines": [asdict(where) | {"profile": {}} for where in (preset, fitted)],
        "shares": [asdict(row) for row in shares],
        "speeds": [asdict(row) for row in speeds],
        "calls": {model: [asdict(row) for row in rows] for model, rows in calls.items()},
        **asdict(said),
    }
