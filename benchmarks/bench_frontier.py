"""Time of a step against memory, from what in-core needs down to the least that has a list.

A point is a network, a case and a budget. The cases are what there is beside the device: no host
memory (`none`: the inputs wait there, nothing else does), a disk of a given rate (`disk`), or the
host's memory (`host`). A budget is a share of the way from what the largest call needs (0 %, below
which the verifier accepts no list) to the in-core peak (100 %). Shares fall until `auto` refuses;
then the last interval is halved until it is narrow, and where it ends is the least. Each point is
executed on the cpu device, and parameters, optimizer slots and losses are compared with those of
in-core, bit by bit. Every other planner that keeps the bits is asked for the same point: `auto` is
to be at most 3 % slower than the best of them. Read next: `frontier_points.py`; `bench_memory.py`,
which measures memory from outside the process.

    python -m benchmarks frontier [--quick] [--json FILE]
    python -m benchmarks.bench_frontier --networks resnet18:16:32 --rate 500MB --picture f.svg
    python -m benchmarks.bench_frontier --json FILE --resume    # goes on where it was interrupted
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

import numpy as np

import ooctrain as oc
from benchmarks.common import table, threads_here
from benchmarks.frontier_points import CASES, HEADER, File, Network, Point, cells, earlier, picture
from ooctrain.devices.spill import Spill
from ooctrain.errors import ConfigError, DoesNotFit, Infeasible
from ooctrain.execution.fit import prepare
from ooctrain.execution.planners import planners
from ooctrain.execution.prepared_step import PreparedStep
from ooctrain.execution.settings import Settings
from ooctrain.units import parse_bytes

#: Name, batch, pixels.
NETWORKS = ("resnet18:16:32", "resnet50:4:64", "vgg16:8:32", "unet:2:64")
QUICK_NETWORKS = ("lenet:8:32",)
SHARES, QUICK_SHARES = (100, 60, 30, 10, 0), (100, 50, 0)
#: Per cent of the way at which halving ends.
NARROW, QUICK_NARROW = 5.0, 25.0
#: Their weight gradients are sums over bands: equal up to rounding, not bit by bit.
INEXACT = ("banded", "sft")
#: In steps of hundreds of calls these search for minutes.
LONG = ("checkmate", "checkmate-lp")
STEPS = 3
MACHINE, RATE = "cpu-generic", "1GB"


@dataclass(frozen=True, slots=True)
class Ran:
    """Some steps: what is left of them, and the shortest of all but the first."""

    losses: tuple[float, ...]
    state: dict[str, np.ndarray]
    step_us: float


#: The step that needs no plan, and what it left; run once, and only if a point asks for it.
InCore = Callable[[], tuple[PreparedStep, Ran]]


@dataclass(frozen=True)
class Bench:
    """One network, and how it is run.

    Args:
        settings: of every point; budget, planner and host are each point's own.
        spill: the disk of the case `disk`.
        others: planners that `auto` is compared with.
        known: points of an earlier run; None where `auto` had no plan.
    """

    network: Network
    settings: Settings
    spill: Spill
    others: Sequence[str]
    known: dict[tuple[str, float], Point | None] = field(default_factory=dict)

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

    def points(
        self, cases: Sequence[str], shares: Sequence[int], narrow: float
    ) -> Iterator[tuple[str, float, Point | None]]:
        """Case, share and point of some cases, each executed; None where `auto` has no plan."""
        run_in_core = cache(self._run_in_core)
        for case in cases:
            yield from self._frontier(case, run_in_core, shares, narrow)

    def _run_in_core(self) -> tuple[PreparedStep, Ran]:
        with self.trainer(self.beside("host", None)) as trainer:
            return trainer.prepare(self.network.shape), self.run(trainer)

    def _frontier(
        self, case: str, run_in_core: InCore, shares: Sequence[int], narrow: float
    ) -> Iterator[tuple[str, float, Point | None]]:
        """Falling shares, then halves of the interval in which lists end."""
        waiting, possible, refused = list(map(float, shares)), float(shares[0]), None
        while waiting:
            share = waiting.pop(0)
            if (case, share) in self.known:
                found = self.known[case, share]
            else:
                found = self._point(case, share, *run_in_core())
            yield case, share, found
            if found is None:
                refused, waiting = share, []
            else:
                possible = share
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
            network=str(self.network), case=case, share=share,
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
    parser.add_argument("--resume", action="store_true", help="keep the points in that file")
    options = parser.parse_args(arguments)
    if options.resume and not options.json:
        parser.error("--resume goes on from the points in --json FILE")
    asked = {"planned_for": options.machine, "rate": options.rate, "threads": options.threads,
             "planners": list(options.planners)}  # fmt: skip
    file = File(options.json, asked, *earlier(options.json, asked) if options.resume else ([], []))
    spill = Spill(options.spill, parse_bytes(options.rate) / 1e6)
    settings = Settings(machine=options.machine, threads=options.threads)
    for network in map(Network.of, options.networks):
        bench = Bench(network, settings, spill, options.planners, file.known(network))
        for case, share, point in bench.points(options.cases, options.shares, options.narrow):
            if (case, share) not in bench.known:
                file.add(network, case, share, point)
            row = cells(point) if point else [str(network), case, f"{share:.4g} %", "no plan"]
            print("  ".join(row), flush=True)
    print(table(HEADER, [cells(point) for point in file.points]))
    if options.picture:
        options.picture.write_text(picture(file.points), encoding="utf-8")
    return file.content()


if __name__ == "__main__":
    import sys

    main(sys.argv[1:])
