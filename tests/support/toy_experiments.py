"""The papers' experiments on a network of a few layers, at the papers' batches and image sizes.

A step is never computed for its trace, so a small network of the papers' sizes asks the same
questions of planners, allocators and tables within a second. Only what is measured, and not
computed, is made up. What was shown once, and looked at, is in `tests/data/toy_experiments/`;
`python -m support.toy_experiments` writes it anew. Read next:
`../unit/test_experiments_on_a_toy.py`.
"""

from __future__ import annotations

import io
import json
import re
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from rich.console import Console

from ooctrain import api, nn
from ooctrain.cli.reproduce import EXPERIMENTS
from ooctrain.experiments import compare
from ooctrain.experiments.paper_000 import fragmentation, table1
from ooctrain.experiments.paper_001 import hybrid
from ooctrain.experiments.paper_002 import offload_ratios
from ooctrain.experiments.paper_003 import sft
from ooctrain.experiments.paper_004 import distributed, hmms, split_accuracy, split_hmms
from ooctrain.experiments.reproducing import Wanted
from ooctrain.rewrite import apply_rewrites
from ooctrain.sched.planners.belady import Belady
from ooctrain.step.trace import Trace
from ooctrain.tracing import trace
from ooctrain.units import GIB

NETWORK, DEEP = (f"{Path(__file__).with_name('toy_net.py')}:{name}" for name in ("toy", "deep"))
#: What the experiments show on the toy.
KNOWN = Path(__file__).parents[1] / "data" / "toy_experiments"
#: Modules that ask for the step of a network by its name.
BY_NAME = (compare, fragmentation, table1, offload_ratios, distributed, hmms, split_hmms)
#: Attributes of a figure that hold names and colours.
WORDS = ("class", "fill", "font-family", "id", "stroke", "style")
#: {experiment: bytes of the device}, where that is asked for; some fit, and some do not.
PHYSICAL_BYTES = {"architectures": GIB, "fragmentation": 12 * GIB, "table1": 12 * GIB}


@dataclass(frozen=True)
class Shown:
    """What an experiment shows.

    Args:
        printed: lines of the console.
        numbers: for the JSON file.
        figure: SVG.
    """

    printed: list[str]
    numbers: Mapping[str, Any]
    figure: str

    @property
    def cells(self) -> list[list[str]]:
        """Of each printed line that has any: its numbers, with what follows at once (`%`, `x`); of
        all but the last, which names the figure's file.
        """
        found = (re.findall(r"(?<![\w.])[-+]?\d[\d.,]*[%x]?", line) for line in self.printed[:-1])
        return [numbers for numbers in found if numbers]

    @property
    def shapes(self) -> dict[str, list[float]]:
        """{kind of element: how many numbers its attributes have, and their sum, the n-th n times
        modulo 7}: what is drawn where, without a word that is drawn.
        """
        found: dict[str, list[float]] = {}
        for element in ElementTree.fromstring(self.figure).iter():
            kind = found.setdefault(element.tag.rpartition("}")[2], [0, 0.0])
            for name, value in sorted(element.attrib.items()):
                for number in re.findall(r"-?\d+\.?\d*", value if name not in WORDS else ""):
                    kind[0] += 1
                    kind[1] = round(kind[1] + float(number) * (kind[0] % 7 + 1), 3)
        return found


@lru_cache(maxsize=64)
def toy_step(
    model: str, batch: int, image_size: int | None = None, *rest: Any, **also: Any
) -> Trace:
    """In the place of `step_trace`: of whatever network, the toy's."""
    return api.step_trace(NETWORK, batch, image_size or 224, *rest, **also)


@lru_cache(maxsize=64)
def deep_step(model: str, batch: int, image_size: int) -> Trace:
    """The same of one with as many checkpoints as paper 001 numbers."""
    return api.step_trace(DEEP, batch, image_size)


def made_up(recipe: split_accuracy.Recipe004, *case: Any) -> split_accuracy.Trained:
    """In the place of a training."""
    model, depth, patches, kind = case
    found = tuple(50 + 10 * depth + patches + seed for seed in range(recipe.seeds))
    printed = split_accuracy.PRINTED.get((model, kind)) if depth in (0.0, 0.5) else None
    return split_accuracy.Trained(
        f"small {model}", model, kind, depth, patches, depth / 2, found, (*found[1:], 40.0), printed
    )


def made_up_times(chunks: Sequence[int], **_: Any) -> dict[int, float]:
    """In the place of a measurement: {chunk: us of a step}; the first does not fit."""
    return {chunk: chunk / 9 for chunk in chunks[1:]}


def shown_of(name: str, folder: Path) -> Shown:
    """Runs an experiment on the toy."""
    figure, said = folder / f"{name}.svg", io.StringIO()
    console = Console(file=said, width=400, color_system=None)
    wanted = Wanted(True, PHYSICAL_BYTES.get(name, GIB), None, str(figure))
    with pytest.MonkeyPatch.context() as patch:
        for module in BY_NAME:
            patch.setattr(module, "step_trace", toy_step)
        patch.setattr(hybrid, "step_trace", deep_step)
        patch.setattr(hybrid, "Auto", Belady)  # which does not search
        patch.setattr(sft, "convolutional_step", _without_a_head)
        patch.setattr(
            fragmentation, "time_chunks", lambda sizes, **_: {s: s / 9 for s in sizes[1:]}
        )
        patch.setattr(split_accuracy, "trained", made_up)
        patch.setattr(offload_ratios, "cache_base", lambda: folder)
        numbers = EXPERIMENTS[name](wanted, console)
    return Shown(said.getvalue().splitlines(), numbers, figure.read_text(encoding="utf-8"))


@lru_cache(maxsize=16)
def _without_a_head(network: str, side: int) -> Trace:
    part = nn.Sequential(
        nn.Conv2d(3, 240, 3, padding=1), nn.ReLU(), nn.Conv2d(240, 240, 3, padding=1), nn.ReLU(),
        nn.MaxPool2d(2),
    )  # fmt: skip
    step = trace(part, (1, 3, side, side), "mse", threads=1)
    return apply_rewrites(step, sft.DEFAULT_REWRITES)


def known_of(shown: Shown) -> dict[str, Any]:
    """What is kept of an experiment, as plain data."""
    return json.loads(
        json.dumps({"numbers": shown.numbers, "cells": shown.cells, "shapes": shown.shapes})
    )


def main() -> None:
    """Writes what is shown now: after a change that was meant to change it, and a look at it."""
    with tempfile.TemporaryDirectory() as folder:
        for name in sys.argv[1:] or EXPERIMENTS:
            shown = shown_of(name, Path(folder))
            print(*shown.printed, sep="\n")
            KNOWN.mkdir(exist_ok=True)
            text = json.dumps(known_of(shown), indent=None, separators=(",", ":"))
            (KNOWN / f"{name}.json").write_text(f"{text}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
