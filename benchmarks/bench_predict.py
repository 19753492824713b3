"""Predicted against measured step times on the cpu device, after calibrating with the same network.

In: nothing but this machine. Out: a row for each network, budget and link; the promise is an error
of at most 15 %. In-core and out-of-core steps take turns in one process, so that whatever else the
machine does falls on both; call times are the medians of the in-core steps, link and interference
those of a calibration just before.

    python benchmarks/bench_predict.py [--batch 64] [--steps 9] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import os
from dataclasses import replace
from pathlib import Path
from statistics import median

import numpy as np

import ooctrain as oc
from ooctrain.calibrate import calibrate, profile_of_steps
from ooctrain.machines import with_link
from ooctrain.sched.timeline import Timeline

NETWORKS = ("resnet18", "vgg11")
#: Budgets with links in bytes per microsecond; None: as fast as the cores copy.
CASES = (
    (None, None), ("60%", None), ("60%", 1000.0), ("25%", None), ("25%", 2000.0), ("25%", 1000.0),
)  # fmt: skip
PROMISE = 0.15


def make_trainer(network: str, budget: str | None, threads: int, machine, link) -> oc.Trainer:
    oc.manual_seed(0)
    model = oc.models.build(network)
    optimizer = oc.optim.SGD(model.parameters(), lr=1e-6, momentum=0.9)
    return oc.Trainer(
        model, optimizer=optimizer, budget=budget, threads=threads, machine=machine,
        link_bandwidth=link,
    )  # fmt: skip


def measure(
    in_core: oc.Trainer, trainer: oc.Trainer, images: np.ndarray, labels: np.ndarray, steps: int
) -> tuple[list[Timeline], list[Timeline]]:
    """Time lines of steps that take turns, the first of each left out."""
    lines: tuple[list[Timeline], list[Timeline]] = [], []
    for _ in range(steps + 1):
        for kept, each in zip(lines, (in_core, trainer), strict=True):
            each.step(images, labels)
            kept.append(each.timeline)
    return lines[0][1:], lines[1][1:]


def rows_of(network: str, batch: int, steps: int, threads: int):
    """Rows {network, budget, link, predicted_us, measured_us, error}."""
    images = np.random.default_rng(0).standard_normal((batch, 3, 32, 32), np.float32)
    labels = np.arange(batch) % 10
    with make_trainer(network, None, threads, "cpu-generic", None) as in_core:
        machine = calibrate(in_core, images, labels, "calibrated", steps)
        for budget, link in CASES:
            linked = machine if link is None else with_link(machine, link)
            with make_trainer(network, budget, threads, linked, link) as trainer:
                whole, lines = measure(in_core, trainer, images, labels, steps)
                plan = trainer.plan
            now = replace(linked, profile=profile_of_steps(whole, in_core.plan.trace))
            predicted_us = oc.simulate(plan.schedule, plan.trace, now).makespan_us
            measured_us = median(line.makespan_us for line in lines)
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
