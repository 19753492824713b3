"""`ooctrain reproduce split-accuracy`: paper 004's figures 4 to 6 and table 1, trained here.

The settings are "epochs=350", "seeds=5", "data=cifar10:DIR" and "images=1437". It shows a table of
accuracies, with mean and spread over seeds and the paper's values; curves; and numbers. Read next:
`split_accuracy.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from rich.console import Console
from rich.table import Table

from ooctrain.errors import ConfigError
from ooctrain.experiments.paper_004 import split_accuracy as experiment
from ooctrain.experiments.paper_004.split_accuracy import (
    BASELINE,
    HALF,
    PRINTED_IMAGENET,
    QUARTER,
    STOCHASTIC,
    Recipe004,
    Trained,
)
from ooctrain.experiments.reproducing import Wanted, print_title, write_figure
from ooctrain.experiments.spread import spread
from ooctrain.report.charts import Curve, curves_svg, stacked_svg
from ooctrain.report.tables import plain_table


def split_accuracy(wanted: Wanted, console: Console) -> Mapping[str, Any]:
    """Paper 004, figures 4 to 6 and table 1."""
    recipe = recipe_of(wanted.settings, experiment.QUICK if wanted.quick else Recipe004())
    about = f"  {recipe.data}, {recipe.epochs} epochs, {recipe.seeds} seeds"
    cases = [(recipe, *each) for each in experiment.configurations(wanted.quick)]
    processes, rows = 1 if wanted.quick else None, list[Trained]()
    with console.status("") as status:
        for found in spread(experiment.trained_case, cases, processes, wanted.keep):
            rows += found
            status.update(f"{len(rows)} of {len(cases)} configurations")
    print_title(
        console,
        "Test accuracy after training in patches, of the whole network and in patches",
        about,
    )
    console.print(accuracy_table(rows))
    print_title(console, "\nImageNet, top-1 in % (paper 004, table 1): not run here")
    console.print(imagenet_table())
    write_figure(wanted, console, figure(rows))
    return {
        "recipe": asdict(recipe),
        "rows": [asdict(row) | {"mean": row.mean, "spread": row.spread} for row in rows],
    }


def recipe_of(settings: Sequence[str], base: Recipe004) -> Recipe004:
    """The recipe with what was set. Raises ConfigError: no such setting, or no number."""
    found: dict[str, Any] = {}
    for word in filter(None, ",".join(settings).split(",")):
        name, _, value = word.partition("=")
        if name == "data" and value:
            found["data"] = value
        elif name in ("epochs", "seeds", "batch", "images") and value.isdecimal() and int(value):
            found[name] = int(value)
        else:
            raise ConfigError(
                f"--set {word!r} is not a known setting", code="OOC-106",
                fix="epochs=350, seeds=5, batch=128, images=1437 or data=cifar10:DIR",
            )  # fmt: skip
    if "data" in found and "images" not in found:
        found["images"] = None
    return replace(base, **found)


def accuracy_table(rows: Sequence[Trained]) -> Table:
    """Mean and spread of each configuration, tested whole and in patches, beside the paper's."""
    table = plain_table(
        "network", "for", "trained", "depth", "patches", "tested whole", "spread", "seeds",
        "in patches", "paper", left=("network", "for", "trained"),
    )  # fmt: skip
    for row in rows:
        paper = "" if row.printed is None else f"{row.printed:.2f} %"
        table.add_row(
            row.model, row.paper, row.kind, f"{row.share:.0%}", str(row.patches),
            f"{row.mean:.2f} %", f"{row.spread:.2f}", str(len(row.accuracies)),
            f"{row.mean_in_patches:.2f} %", paper,
        )  # fmt: skip
    return table


def imagenet_table() -> Table:
    """The columns of table 1 that nobody computes here."""
    table = plain_table("network", "depth", "whole", "split", "stochastic", left=("network",))
    for model, (depth, *accuracies) in PRINTED_IMAGENET.items():
        table.add_row(model, f"{depth:.1%}", *map(str, accuracies))
    return table


def figure(rows: Sequence[Trained]) -> str:
    """SVG: error over depth (figure 4), over patches (figure 5)."""
    deep, many = list[Curve](), list[Curve]()
    for name in dict.fromkeys(row.model for row in rows):
        own = [row for row in rows if row.model == name and row.kind != STOCHASTIC]
        four = sorted((row for row in own if row.patches in (1, 4)), key=lambda row: row.share)
        deep.append(Curve(name, [(100 * row.share, 100 - row.mean_in_patches) for row in four]))
        at = sorted(
            (row for row in own if row.depth == QUARTER or row.kind == BASELINE),
            key=lambda row: row.patches,
        )
        many.append(Curve(name, [(row.patches, 100 - row.mean_in_patches) for row in at]))
        drawn = [row for row in rows if row.model == name and row.kind == STOCHASTIC]
        if drawn:
            points = [(0.0, 100 - drawn[0].mean), (100 * HALF, 100 - drawn[0].mean)]
            deep.append(Curve(f"{name}, stochastic at 50 %", points))
    return stacked_svg(
        [
            curves_svg("Figure 4: test error over depth, 2 x 2 patches", deep,
                       axes=("% of the convolutions in patches", "test error, %")),
            curves_svg("Figure 5: test error over patches, a quarter of the convolutions", many,
                       axes=("patches", "test error, %")),
        ]
    )  # fmt: skip
