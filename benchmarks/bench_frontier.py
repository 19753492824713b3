"""Time of a step against memory, from what in-core needs down to the least that has a list.

A point is a network, a case and a budget. The cases are what there is beside the device: no host
memory (`none`: the inputs wait there, nothing else does), a disk of a given rate (`disk`), or the
host's memory (`host`). A budget is a share of the way from what the largest call needs (0 %, below
which the verifier accepts no list) to the in-core peak (100 %). Shares fall until `auto` refuses;
then the last interval is halved until it is narrow, and where it ends is the least. Each point is
executed on the cpu device, and parameters, optimizer slots and losses are compared with those of
in-core, bit by bit. Every other planner that keeps the bits is asked for the same point: `auto` is
to be at most 3 % slower than the best of them. Read next: `bench_memory.py`, which measures memory
from outside the process.

    python -m benchmarks frontier [--quick] [--json FILE]
    python -m benchmarks.bench_frontier --networks resnet18:16:32 --rate 500MB --picture f.svg
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

import ooctrain as oc
from benchmarks.common import machine_facts, table, threads_here, verdict
from ooctrain.devices.spill import Spill
from ooctrain.errors import ConfigError, DoesNotFit, Infeasible
from ooctrain.execution.planners import planners
from ooctrain.execution.prepare import PreparedStep, prepare
from ooctrain.execution.settings import Settings
from ooctrain.models import MODELS, stem_for
from ooctrain.units import parse_bytes

#: Name, batch, pixels.
NETWORKS = ("resnet18:16:32", "resnet50:4:64", "vgg16:8:32", "unet:2:64")
QUICK_NETWORKS = ("lenet:8:32",)
CASES = ("none", "disk", "host")
SHARES, QUICK_SHARES = (100, 60, 30, 10, 0), (100, 50, 0)
#: Per cent of the way at which halving ends.
NARROW, QUICK_NARROW = 5.0, 25.0
#: Their weight gradients are sums over bands: equal up to rounding, not bit by bit.
INEXACT = ("banded", "sft")
#: In steps of hundreds of calls these search for minutes.
LONG = ("checkmate", "checkmate-lp")
STEPS = 3
CLASSES = 10
NEAR = 1.03
MACHINE, RATE = "cpu-generic", "1GB"


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
class Ran:
    """Some steps: what is left of them, and the shortest of all but the first."""

    losses: tuple[float, ...]
    state: dict[str, np.ndarray]
    step_us: float


@dataclass(frozen=True, slots=True)
class Point:
    """A point of a frontier.

    Args:
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
class Bench:
    """One network, and how it is run.

    Args:
        settings: of every point; budget, planner and host are each point's own.
        spill: the disk of the case `disk`.
        others: planners that `auto` is compared with.
    """

    network: Network
    settings: Settings
    spill: Spill
    others: Sequence[str]

    def trainer(self, settings: Settings) -> oc.Trainer:
        model = self.network.model()
        optimizer = oc.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
        return oc.Trainer(
            model, optimizer=optimizer, budget=settings.budget, planner=settings.planner,
            threads=settings.threads, machine=settings.machine, spill=settings.spill,
            host_budget=settings.host_budget, evaluations=settings.evaluations,
        )  # fmt: skip

    def beside(self, case: str, budget: str | None, planner: str = "auto") -> Settings:
        """The settings of a point."""
        found = replace(self.settings, budget=budget, planner=planner)
        if case == "none":
            return replace(found, host_budget=0)
        return replace(found, spill=self.spill) if case == "disk" else found

    def run(self, trainer: oc.Trainer) -> Ran:
        images, labels = self.network.data()
        losses, times = [], []
        for _ in range(STEPS):
            began = time.perf_counter()
            losses.append(trainer.step(images, labels))
            times.append((time.perf_counter() - began) * 1e6)
        arrays = trainer.state_arrays()
        state = {key: np.array(value) for key, value in arrays.items()}
        return Ran(tuple(losses), state, min(times[1:]))

    def best_other(self, trace: oc.Trace, case: str, budget: str) -> tuple[str, float]:
        """The best planner but `auto`, and its predicted step."""
        found = [("", float("inf"))]
        for planner in self.others:
            try:
                step = prepare(trace, self.beside(case, budget, planner))
            except (Infeasible, DoesNotFit, ConfigError):  # ConfigError: not for such a step
                continue
            found.append((planner, step.predict().makespan_us))
        return min(found, key=lambda each: each[1])

    def points(self, cases: Sequence[str], shares: Sequence[int], narrow: float) -> Iterator[Point]:
        """All points of some cases, each executed."""
        with self.trainer(self.beside("host", None)) as trainer:
            in_core = trainer.prepare(self.network.shape)
            expected = self.run(trainer)
        for case in cases:
            yield from self._frontier(case, in_core, expected, shares, narrow)

    def _frontier(
        self, case: str, in_core: PreparedStep, expected: Ran, shares: Sequence[int], narrow: float
    ) -> Iterator[Point]:
        """Falling shares, then halves of the interval in which lists end."""
        waiting, possible, refused = list(map(float, shares)), float(shares[0]), None
        while waiting:
            share = waiting.pop(0)
            found = self._point(case, share, in_core, expected)
            if found is None:
                refused, waiting = share, []
            else:
                possible = share
                yield found
            if refused is not None and possible - refused > narrow:
                waiting = [(possible + refused) / 2]

    def _point(self, case: str, share: float, in_core: PreparedStep, expected: Ran) -> Point | None:
        """A point, executed; None where `auto` has no plan."""
        budget = f"{share:g}%"
        with self.trainer(self.beside(case, budget)) as trainer:
            try:
                step = trainer.prepare(self.network.shape)
            except (Infeasible, DoesNotFit):
                return None
            ran = self.run(trainer)
        best, best_us = self.best_other(step.original, case, budget)
        return Point(
            network=self.network.name, case=case, share=share,
            budget_bytes=step.budget_bytes,
            predicted_us=step.predict().makespan_us, in_core_us=in_core.predict().makespan_us,
            measured_us=ran.step_us, measured_in_core_us=expected.step_us,
            chosen=str(step.plan.notes.get("chosen", step.plan.notes["planner"])),
            best=best, best_us=best_us, same_bits=same_bits(ran, expected),
        )  # fmt: skip


def same_bits(ours: Ran, expected: Ran) -> bool:
    """Whether nothing differs."""
    same = ours.losses == expected.losses and ours.state.keys() == expected.state.keys()
    return same and all(
        ours.state[key].tobytes() == value.tobytes() for key, value in expected.state.items()
    )


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
        drawn.append(oc.pictures.curves_svg(network, curves, axes=axes, y_low=1.0))
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


HEADER = ["network", "beside", "budget", "MiB", "step / in-core", "measured", "chosen",
          "best other", "auto / best", "bits", ""]  # fmt: skip


def main(arguments: Sequence[str] = (), *, quick: bool = False) -> dict:
    """Runs; returns what goes into the JSON file."""
    parser = argparse.ArgumentParser(prog="bench_frontier", description=__doc__.splitlines()[0])
    networks = QUICK_NETWORKS if quick else NETWORKS
    exact = [name for name in planners() if name not in (*INEXACT, *LONG, "auto")]
    parser.add_argument("--networks", nargs="+", default=networks, metavar="NAME:BATCH:PIXELS")
    parser.add_argument("--machine", default=MACHINE, help="a preset, or a calibration")
    parser.add_argument("--rate", default=RATE, help="of the disk, each direction, a second")
    parser.add_argument("--spill", default=tempfile.gettempdir(), metavar="FOLDER")
    parser.add_argument("--planners", nargs="*", default=exact, metavar="NAME")
    shares, narrow = (QUICK_SHARES, QUICK_NARROW) if quick else (SHARES, NARROW)
    parser.add_argument("--cases", nargs="+", default=CASES, choices=CASES)
    parser.add_argument("--shares", nargs="+", type=int, default=shares, metavar="PERCENT")
    parser.add_argument("--narrow", type=float, default=narrow, metavar="PERCENT")
    parser.add_argument("--threads", type=int, default=threads_here())
    parser.add_argument("--picture", type=Path, metavar="FILE")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args(arguments)
    facts, points = machine_facts(), list[Point]()
    spill = Spill(options.spill, parse_bytes(options.rate) / 1e6)
    settings = Settings(machine=options.machine, threads=options.threads)
    for text in options.networks:
        bench = Bench(Network.of(text), settings, spill, options.planners)
        for point in bench.points(options.cases, options.shares, options.narrow):
            print("  ".join(cells(point)), flush=True)
            points.append(point)
    print(table(HEADER, [cells(point) for point in points]))
    if options.picture:
        options.picture.write_text(picture(points), encoding="utf-8")
    results = [asdict(point) | {"behind": point.behind} for point in points]
    missed = [" ".join(cells(point)[:3]) for point in points if not is_ok(point)]
    found = {"machine": facts, "planned_for": options.machine, "rate": options.rate,
             "networks": list(options.networks), "results": results, "missed": missed}  # fmt: skip
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return found


if __name__ == "__main__":
    import sys

    main(sys.argv[1:])
