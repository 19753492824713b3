"""Predicted against measured step times on the cpu device, after a calibration.

A row for each network, batch, budget, planner and link gives what `simulate` predicts with the
calibrated machine, the measured time, and the error. The prediction is made before the run and is
not changed. But the speed of a shared machine wanders between the calibration and the run; so
in-core steps take turns with the measured ones, and a second error is given against a prediction
from their call times. The first is the error that a user sees, the second that of the model. The
promise is 15 %. Read next: `bench_planners.py`, which measures every planner in the same way.

    python -m benchmarks prediction [--quick] [--json FILE]
    python -m benchmarks.bench_prediction --networks lenet:64 --steps 15
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from statistics import median

import numpy as np

import ooctrain as oc
from benchmarks.common import machine_facts, table, threads_here, verdict
from ooctrain.machine.calibrate import calibrate, measure_steps
from ooctrain.machine.measured import issue_us_of, profile_of_steps
from ooctrain.step.presets import with_link

NETWORKS, QUICK_NETWORKS = ("lenet:64", "resnet18:64", "resnet18:128"), ("lenet:64",)
BUDGETS = ("50%", "25%")
PLANNERS = ("window", "naive", "auto")
#: Bytes per microsecond; None: as fast as the cores copy.
LINKS = (None, 4000.0, 1000.0)
STEPS, QUICK_STEPS = 7, 3
PROMISE = 0.15


@dataclass(frozen=True, slots=True)
class Row:
    """One configuration.

    Args:
        predicted_us: by the calibration.
        current_us: predicted with the call times of the in-core steps beside.
        measured_us, in_core_us: medians of this step and of the in-core ones beside it.
        bytes_moved: a step, both directions.
    """

    network: str
    batch: int
    budget: str
    planner: str
    link_bytes_per_us: float | None
    predicted_us: float
    current_us: float
    measured_us: float
    in_core_us: float
    bytes_moved: int

    @property
    def error(self) -> float:
        return self.predicted_us / self.measured_us - 1

    @property
    def current_error(self) -> float:
        return self.current_us / self.measured_us - 1

    @property
    def overhead(self) -> float:
        """Over in-core, as measured."""
        return self.measured_us / self.in_core_us - 1


def make_trainer(network: str, threads: int, machine, *, budget=None, planner="auto", link=None):
    """A trainer whose weights hardly move, whatever the images are."""
    oc.manual_seed(0)
    model = oc.models.build(network, stem="cifar")
    optimizer = oc.optim.SGD(model.parameters(), lr=1e-6, momentum=0.9)
    return oc.Trainer(
        model, optimizer=optimizer, budget=budget, planner=planner, threads=threads,
        machine=machine, link_bandwidth=link,
    )  # fmt: skip


def random_batch(network: str, batch: int) -> tuple[np.ndarray, np.ndarray]:
    """Images of 32 x 32 pixels and labels: one for each image, or for each pixel."""
    images = np.random.default_rng(0).standard_normal((batch, 3, 32, 32), np.float32)
    per_pixel = oc.models.MODELS[network].target == "pixels"
    shape = (batch, 32, 32) if per_pixel else (batch,)
    return images, np.resize(np.arange(10), shape)


@dataclass(frozen=True)
class Bench:
    """An in-core trainer that has been calibrated with, for others to be measured beside.

    Args:
        network, batch: what is trained.
        in_core: its trainer.
        machine: as it was calibrated.
        steps: measured of each.
        threads: of the kernels.
    """

    network: str
    batch: int
    in_core: oc.Trainer
    machine: oc.Machine
    steps: int
    threads: int

    def measure(self, budget: str | None, planner: str, link: float | None) -> Row:
        """Predicts one configuration, then runs it.

        Raises:
            Infeasible: the planner has no plan for it.
        """
        linked = self.machine if link is None else with_link(self.machine, link)
        images, labels = random_batch(self.network, self.batch)
        options = {"budget": budget, "planner": planner, "link": link}
        with make_trainer(self.network, self.threads, linked, **options) as trainer:
            prepared = trainer.prepare(images.shape)
            trainers = [self.in_core, trainer]
            beside, lines = measure_steps(trainers, images, labels, self.steps)
        profile = profile_of_steps(beside, self.in_core.plan.trace)
        issue_us = issue_us_of(beside, self.in_core.plan)
        current = prepared.predict(replace(linked, profile=profile, issue_us=issue_us))
        predicted = prepared.predict(linked)
        return Row(
            self.network, self.batch, budget or "in-core", planner, link, predicted.makespan_us,
            current.makespan_us, median(line.makespan_us for line in lines),
            median(line.makespan_us for line in beside), predicted.bytes_out + predicted.bytes_in,
        )  # fmt: skip


@contextmanager
def calibrated(network: str, batch: int, steps: int, threads: int) -> Iterator[Bench]:
    """A bench for one network; calibrates."""
    with make_trainer(network, threads, "cpu-generic") as in_core:
        machine = calibrate(in_core, *random_batch(network, batch), "calibrated", steps)
        yield Bench(network, batch, in_core, machine, steps, threads)


def rows_of(network: str, batch: int, steps: int, threads: int) -> Iterator[tuple[oc.Machine, Row]]:
    """All configurations of one network, each with the calibration."""
    cases = [(None, "auto", None)]
    cases += [(b, p, link) for b in BUDGETS for p in PLANNERS for link in LINKS]
    with calibrated(network, batch, steps, threads) as bench:
        for budget, planner, link in cases:
            yield bench.machine, bench.measure(budget, planner, link)


def cells(row: Row) -> list[str]:
    """A row of the table."""
    link = row.link_bytes_per_us
    return [
        f"{row.network}, batch {row.batch}", row.budget, row.planner,
        f"{link / 1e3:.0f} GB/s" if link else "free", f"{row.bytes_moved / 1e6:.0f}",
        f"{row.predicted_us / 1e3:.1f}", f"{row.measured_us / 1e3:.1f}",
        f"{100 * row.error:+.1f} %", f"{100 * row.current_error:+.1f} %",
        verdict(abs(row.error) <= PROMISE),
    ]  # fmt: skip


def kept_promises(rows: Sequence[Row]) -> str:
    """How many predictions are right: as a user has them, and without the machine's wandering."""
    kept, current = (
        sum(abs(error) <= PROMISE for error in errors)
        for errors in ([row.error for row in rows], [row.current_error for row in rows])
    )
    return (f"within {100 * PROMISE:.0f} %: {kept} of {len(rows)} as calibrated, "
            f"{current} with the call times of the moment")  # fmt: skip


def main(arguments: Sequence[str] = (), *, quick: bool = False) -> dict:
    """Runs; returns what goes into the JSON file."""
    parser = argparse.ArgumentParser(prog="bench_prediction", description=__doc__.splitlines()[0])
    networks = QUICK_NETWORKS if quick else NETWORKS
    parser.add_argument("--networks", nargs="+", default=networks, metavar="NAME:BATCH")
    parser.add_argument("--steps", type=int, default=QUICK_STEPS if quick else STEPS)
    parser.add_argument("--threads", type=int, default=threads_here())
    options = parser.parse_args(arguments)
    facts, rows, machines = machine_facts(), [], {}
    for text in options.networks:
        network, batch = text.split(":")
        for machine, row in rows_of(network, int(batch), options.steps, options.threads):
            rows.append(row)
            machines[text] = {**asdict(machine), "profile": len(machine.profile)}
    header = ["network", "budget", "planner", "link", "MB moved", "predicted ms", "measured ms",
              "error", "error, calls as now", ""]  # fmt: skip
    print(table(header, [cells(row) for row in rows]))
    print(kept_promises(rows))
    missed = [" ".join(cells(row)[:4]) for row in rows if abs(row.error) > PROMISE]
    results = [asdict(row) | {"error": row.error, "current_error": row.current_error}
               for row in rows]  # fmt: skip
    return {"machine": facts, "calibrations": machines, "results": results, "missed": missed}


if __name__ == "__main__":
    import sys

    main(sys.argv[1:])
