"""Predicted against measured step times on the cpu device, after calibrating with the same network.

In: nothing but this machine. Out: a row for each network, budget and link; the promise is an error
of at most 15 %. Each budget is planned on the calibration, trained for some steps, and the median
counts.

    python benchmarks/bench_predict.py [--batch 64] [--steps 9] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from statistics import median

import numpy as np

import ooctrain as oc
from ooctrain.calibrate import calibrate
from ooctrain.machines import with_link

NETWORKS = ("lenet", "resnet18", "vgg11")
BUDGETS = (None, "60%", "25%")
#: Bytes per microsecond; None: as fast as the cores copy.
LINKS = (None, 1000.0)
PROMISE = 0.15


def make_trainer(network: str, budget: str | None, threads: int, machine, link) -> oc.Trainer:
    oc.manual_seed(0)
    model = oc.models.build(network)
    optimizer = oc.optim.SGD(model.parameters(), lr=1e-6, momentum=0.9)
    return oc.Trainer(
        model, optimizer=optimizer, budget=budget, threads=threads, machine=machine,
        link_bandwidth=link,
    )  # fmt: skip


def measure(trainer: oc.Trainer, images: np.ndarray, labels: np.ndarray, steps: int) -> float:
    """Median length of a step in us, the first one left out."""
    lengths = []
    for _ in range(steps + 1):
        trainer.step(images, labels)
        lengths.append(trainer.timeline.makespan_us)
    return median(lengths[1:])


def rows_of(network: str, batch: int, steps: int, threads: int):
    """Rows {network, budget, link, predicted_us, measured_us, error}."""
    images = np.random.default_rng(0).standard_normal((batch, 3, 32, 32), np.float32)
    labels = np.arange(batch) % 10
    with make_trainer(network, None, threads, "cpu-generic", None) as trainer:
        machine = calibrate(trainer, images, labels, "calibrated", steps)
    for budget in BUDGETS:
        for link in LINKS if budget else (None,):
            planned_on = machine if link is None else with_link(machine, link)
            with make_trainer(network, budget, threads, planned_on, link) as trainer:
                measured_us = measure(trainer, images, labels, steps)
                predicted_us = trainer.plan.makespan_us
            yield {
                "network": network,
                "budget": budget or "in-core",
                "link_bytes_per_us": link,
                "predicted_us": predicted_us,
                "measured_us": measured_us,
                "error": predicted_us / measured_us - 1,
            }


def show(row: dict) -> None:
    link = row["link_bytes_per_us"]
    speed = f"{link / 1e3:.1f} GB/s" if link else "free"
    times = [f"{word} {row[f'{word}_us'] / 1e3:9.1f} ms" for word in ("predicted", "measured")]
    where = f"{row['network']:10}{row['budget']:>8}  link {speed:>9}"
    print(where, *times, f"{100 * row['error']:+6.1f} %", sep="  ", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--steps", type=int, default=9)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--networks", default=",".join(NETWORKS))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows = []
    for network in options.networks.split(","):
        for row in rows_of(network, options.batch, options.steps, options.threads):
            rows.append(row)
            show(row)
    kept = sum(abs(row["error"]) <= PROMISE for row in rows)
    print(f"{kept} of {len(rows)} within {100 * PROMISE:.0f} %")
    if options.json:
        options.json.write_text(json.dumps({"version": 1, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
