"""Points of a frontier: what one is, the file that keeps them, their table and their picture.

`bench_frontier.py` finds them; an interrupted run goes on from the file. Read next:
`bench_frontier.py`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

import ooctrain as oc
from benchmarks.common import machine_facts, verdict
from ooctrain.models import MODELS, stem_for

#: What stands beside the device.
CASES = ("none", "disk", "host")
CLASSES = 10
NEAR = 1.03
HEADER = ["network", "beside", "budget", "MiB", "step / in-core", "measured", "chosen",
          "best other", "auto / best", "bits", ""]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Network:
    """What is trained: batch images of `image` pixels a side."""

    name: str
    batch: int
    image: int

    @staticmethod
    def of(text: str) -> Network:
        name, batch, image = text.split(":")
        return Network(name, int(batch), int(image))

    def __str__(self) -> str:
        return f"{self.name}:{self.batch}:{self.image}"

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.batch, MODELS[self.name].channels, self.image, self.image)

    def model(self) -> oc.nn.Module:
        oc.manual_seed(0)
        stem = stem_for(self.image, self.image)
        return oc.models.build(self.name, CLASSES, stem, MODELS[self.name].channels)

    def data(self) -> tuple[np.ndarray, np.ndarray]:
        """Images of noise; a class for each image, or for each pixel."""
        images = np.random.default_rng(0).standard_normal(self.shape, np.float32)
        per_pixel = MODELS[self.name].target == "pixels"
        labels = (self.batch, self.image, self.image) if per_pixel else (self.batch,)
        return images, np.resize(np.arange(CLASSES), labels)


@dataclass(frozen=True, slots=True)
class Point:
    """A point of a frontier.

    Args:
        network: as `--networks` names it.
        share: per cent of the way from the least call to in-core.
        budget_bytes: that share in bytes.
        predicted_us, in_core_us: a step of `auto`'s plan, and the in-core step, simulated.
        measured_us, measured_in_core_us: the same, executed.
        chosen: whose plan `auto` took.
        best, best_us: the best of all other planners.
        same_bits: losses and all that persists, after `STEPS` steps.
    """

    network: str
    case: str
    share: float
    budget_bytes: int
    predicted_us: float
    in_core_us: float
    measured_us: float
    measured_in_core_us: float
    chosen: str
    best: str
    best_us: float
    same_bits: bool

    @property
    def behind(self) -> float:
        """`auto` over the best."""
        return self.predicted_us / self.best_us


@dataclass(frozen=True)
class File:
    """What a run has found, written after each point.

    Args:
        path: None: it is kept in memory alone.
        asked: what all points have in common, in the file's form.
        points: found so far.
        refused: network, case and share for which `auto` had no plan.
    """

    path: Path | None
    asked: dict[str, Any]
    points: list[Point]
    refused: list[tuple[str, str, float]]

    def known(self, network: Network) -> dict[tuple[str, float], Point | None]:
        """Points and refusals of a network."""
        own = [point for point in self.points if point.network == str(network)]
        ended = [(case, share) for name, case, share in self.refused if name == str(network)]
        return {(point.case, point.share): point for point in own} | dict.fromkeys(ended)

    def add(self, network: Network, case: str, share: float, point: Point | None) -> None:
        if point is None:
            self.refused.append((str(network), case, share))
        else:
            self.points.append(point)
        if self.path is not None:
            self.path.write_text(json.dumps(self.content(), indent=1) + "\n", encoding="utf-8")

    def content(self) -> dict[str, Any]:
        return {
            "machine": machine_facts(), **self.asked,
            "results": [asdict(point) | {"behind": point.behind} for point in self.points],
            "refused": self.refused,
            "missed": [" ".join(cells(point)[:3]) for point in self.points if not is_ok(point)],
        }  # fmt: skip


def earlier(path: Path, asked: dict[str, Any]) -> tuple[list[Point], list[tuple[str, str, float]]]:
    """Points and refusals in a file, if the same was asked then; else none."""
    if not path.exists():
        return [], []
    found = json.loads(path.read_text(encoding="utf-8"))
    if any(found[key] != value for key, value in asked.items()):
        raise SystemExit(f"{path} has points of another question: {sorted(asked)} differ")
    names = {each.name for each in fields(Point)}
    points = [Point(**{key: row[key] for key in names}) for row in found["results"]]
    return points, [tuple(row) for row in found["refused"]]


def picture(points: Sequence[Point]) -> str:
    """For each network the predicted steps of the cases over in-core's, memory to the right."""
    drawn = []
    for network in dict.fromkeys(point.network for point in points):
        curves = []
        for case in CASES:
            own = [p for p in points if (p.network, p.case) == (network, case)]
            rows = sorted((p.share, p.predicted_us / p.in_core_us) for p in own)
            name = {"none": "no host memory", "disk": "disk", "host": "host memory"}[case]
            if rows:
                curves.append(oc.pictures.Curve(name, rows))
        axes = ("budget, % of the way from the largest call to in-core", "step / in-core step")
        title = "{}, batch {}, {} px".format(*network.split(":"))
        drawn.append(oc.pictures.curves_svg(title, curves, axes=axes, y_low=1.0))
    return oc.pictures.stacked_svg(drawn)


def cells(point: Point) -> list[str]:
    """A row of the table."""
    return [
        point.network, point.case, f"{point.share:.4g} %", f"{point.budget_bytes / 2**20:.1f}",
        f"{point.predicted_us / point.in_core_us:.3f}",
        f"{point.measured_us / point.measured_in_core_us:.2f}", point.chosen, point.best,
        f"{point.behind:.3f}", "same" if point.same_bits else "DIFFER", verdict(is_ok(point)),
    ]  # fmt: skip


def is_ok(point: Point) -> bool:
    return point.same_bits and point.behind <= NEAR
