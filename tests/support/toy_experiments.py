"""The papers' experiments on a network of a few layers, at the papers' batches and image sizes.

A step is never computed for its trace, so a small network of the papers' sizes asks the same
questions of planners, allocators and tables within a second. Only what is measured, and not
computed, is made up. Read next: `known_numbers.py`.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from support.known_numbers import numbers_in, shapes_of

from ooctrain import api, nn
from ooctrain.cli.reproduce_command import EXPERIMENTS
from ooctrain.experiments import compare
from ooctrain.experiments.paper_000 import fragmentation, table1
from ooctrain.experiments.paper_001 import hybrid
from ooctrain.experiments.paper_002 import offload_ratios
from ooctrain.experiments.paper_003 import sft_images
from ooctrain.experiments.paper_004 import distributed, hmms_speeds, split_accuracy, split_hmms
from ooctrain.experiments.reproducing import Wanted
from ooctrain.rewrite import apply_rewrites
from ooctrain.sched.planners.belady import Belady
from ooctrain.step.trace import Trace
from ooctrain.tracing import trace
from ooctrain.units import GIB

NETWORK, DEEP = (f"{Path(__file__).with_name('toy_net.py')}:{name}" for name in ("toy", "deep"))
#: Modules that ask for the step of a network by its name.
BY_NAME = (compare, fragmentation, table1, offload_ratios, distributed, hmms_speeds, split_hmms)
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
        patch.setattr(sft_images, "convolutional_step", _without_a_head)
        patch.setattr(
            fragmentation, "time_chunks", lambda sizes, **_: {s: s / 9 for s in sizes[1:]}
        )
        patch.setattr(split_accuracy, "trained", made_up)
        patch.setattr(offload_ratios, "cache_base", lambda: folder)
        patch.setattr(offload_ratios, "QUICK_BATCHES", {224: (32,)})
        patch.setattr(offload_ratios, "QUICK_SHARES", (0.1, 0.9))
        patch.setattr(offload_ratios, "QUICK_STEP_SHARES", (0.25,))
        numbers = EXPERIMENTS[name](wanted, console)
    return Shown(said.getvalue().splitlines(), numbers, figure.read_text(encoding="utf-8"))


@lru_cache(maxsize=16)
def _without_a_head(network: str, side: int) -> Trace:
    part = nn.Sequential(
        nn.Conv2d(3, 240, 3, padding=1), nn.ReLU(), nn.Conv2d(240, 240, 3, padding=1), nn.ReLU(),
        nn.MaxPool2d(2),
    )  # fmt: skip
    step = trace(part, (1, 3, side, side), "mse", threads=1)
    return apply_rewrites(step, sft_images.DEFAULT_REWRITES)


def known_of(name: str, folder: Path) -> Any:
    """The numbers of what an experiment returns, prints and draws."""
    shown = shown_of(name, folder)
    # The last line names the figure's file.
    return [shown.numbers, numbers_in(shown.printed[:-1]), shapes_of(shown.figure)]


CASES = {f"reproduce {name}": partial(known_of, name) for name in EXPERIMENTS}
