"""The experiment of paper 004 for `ooctrain reproduce`: hmms.

In: what is wanted. Out: tables, a figure, numbers. The one idea: all of it twice, on the preset
machine and on the one that is fitted to a printed figure; pictures show the second. Read next:
`hmms.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from rich.console import Console

from ooctrain.api import step_trace
from ooctrain.experiments.paper_004 import hmms as experiment
from ooctrain.experiments.paper_004.hmms_shown import hmms_figure, share_table, speed_table
from ooctrain.experiments.reproducing import Wanted, finish, print_title
from ooctrain.experiments.verdicts import hmms as hmms_verdict
from ooctrain.experiments.verdicts.sentences import fill


def hmms(wanted: Wanted, console: Console) -> Mapping[str, Any]:
    """Paper 004, figures 1, 8 and 9."""
    batch = experiment.QUICK_BATCH if wanted.quick else experiment.BATCH
    preset, fitted = experiment.machines(batch)
    shares = [row for where in (preset, fitted) for row in experiment.shares(batch, where)]
    print_title(console, "What can be offloaded without loss")
    console.print(share_table(shares))
    plans = {
        (where.name, model): experiment.plans(model, batch, where)
        for where in (preset, fitted)
        for model in experiment.FIGURE_8
    }
    speeds = [
        row
        for where in (preset, fitted)
        for model in experiment.FIGURE_8
        for row in experiment.speeds(model, batch, where, plans[where.name, model])
    ]
    print_title(console, f"\nThree memory plans at batch {batch}, simulated (paper 004)")
    console.print(speed_table(speeds))
    calls = {
        model: experiment.call_bytes(step_trace(model, batch, experiment.IMAGE_SIZE), fitted)
        for model in experiment.FIGURE_1
    }
    profiled = experiment.FIGURE_9
    step = step_trace(profiled, batch, experiment.IMAGE_SIZE)
    figure = hmms_figure(
        calls, [row for row in speeds if row.machine == fitted.name],
        experiment.timelines(plans[fitted.name, profiled], fitted),
        {call.name: call.phase for call in step.calls}, profiled,
    )  # fmt: skip
    facts = hmms_verdict.facts(preset, fitted, shares, speeds)
    verdict = fill(hmms_verdict.SENTENCES, facts)
    finish(wanted, console, figure, verdict)
    return {
        "batch": batch,
        "machines": [asdict(where) | {"profile": {}} for where in (preset, fitted)],
        "shares": [asdict(row) for row in shares],
        "speeds": [asdict(row) for row in speeds],
        "calls": {model: [asdict(row) for row in rows] for model, rows in calls.items()},
        **asdict(verdict),
    }
