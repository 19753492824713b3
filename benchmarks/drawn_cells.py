"""`auto` and `combined` on cells that a seed draws, so that two versions can be compared.

A cell is a training step, a link, a budget and a host budget; none of them was chosen by somebody
who knew how it would come out. Both planners are limited by evaluations, never by a clock, so a
cell's plan is the same on every machine. A result file holds, for each cell and planner, the
claimed makespan, or the least budget of the refusal. A comparison names each cell that has become
slower than `WORST`, each new refusal, and the mean. Read next: `same_as_before.py`, where plans
have to be equal.

    python -m benchmarks.drawn_cells OUT.json [--seed N] [--cells N] [--jobs N] [--from N]
    python -m benchmarks.drawn_cells --compare BEFORE.json AFTER.json
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import random
import sys
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import ooctrain as oc
from ooctrain.errors import OoctrainError
from ooctrain.models import MODELS, stem_for
from ooctrain.sched.budget import input_bytes, trace_peak_bytes
from ooctrain.step.machine import call_durations_ns
from ooctrain.step.presets import with_link
from ooctrain.units import BYTES, Granule

PLANNERS = ("auto", "combined")
#: {network: samples of a batch, heights of an image}.
NETWORKS = {
    "lenet": ((16, 256), (32,)),
    "alexnet": ((8, 128), (224,)),
    "darknet19": ((4, 32), (64, 224)),
    "vgg11": ((4, 32), (64, 224)),
    "vgg16_bn": ((4, 32), (64, 224)),
    "resnet18": ((4, 64), (64, 224)),
    "resnet34": ((4, 64), (64, 224)),
    "resnet50": ((4, 32), (64, 224)),
    "densenet121": ((2, 16), (64, 224)),
    "inception_v3": ((2, 16), (299,)),
    "unet": ((1, 8), (128, 256)),
}
MACHINES = ("v100-pcie", "v100-nvlink", "cpu-generic", "h200-pcie")
OPTIMIZERS = ("sgd", "adam")
GRANULES = {"bytes": BYTES, "64KiB": Granule(65536, True), "512B whole": Granule(512, False)}
EVALUATIONS = (200, 500, 2000)
#: The copies of all that leaves a full device last between these times as long as the calls.
LINKS = (0.2, 5.0)
#: A cell may become slower by this share.
WORST = 0.02


@dataclass(frozen=True)
class Cell:
    """What both planners plan.

    Args:
        link: how many times as long as all calls copying the in-core peak once takes.
        share: of the way from the least memory to the peak.
        host: share of the in-core peak on the host beyond the inputs; None: no limit.
    """

    network: str
    batch: int
    height: int
    optimizer: str
    machine: str
    link: float | None
    share: float
    host: float | None
    granule: str
    evaluations: int
    seed: int


def drawn(seed: int, number: int) -> Cell:
    """The cell of this number; others do not change it."""
    rng = random.Random(f"{seed}/{number}")
    network = rng.choice([*NETWORKS])
    (least, most), heights = NETWORKS[network]
    low, high = map(math.log, LINKS)
    return Cell(
        network, rng.randint(least, most), rng.choice(heights), rng.choice(OPTIMIZERS),
        rng.choice(MACHINES), rng.choice((None, math.exp(rng.uniform(low, high)))),
        round(rng.choice((rng.uniform(0, 0.3), rng.uniform(0, 1))), 3),
        rng.choice((None, None, 0.0, round(rng.uniform(0, 0.8), 3))), rng.choice([*GRANULES]),
        rng.choice(EVALUATIONS), rng.randrange(1000),
    )  # fmt: skip


def planned(cell: Cell) -> dict[str, Any]:
    """What each planner makes of a cell, and the seconds that took here."""
    recipe, height = MODELS[cell.network], cell.height
    width = height * recipe.width // recipe.height
    shape = (cell.batch, recipe.channels, height, width)
    model = oc.models.build(cell.network, recipe.classes, stem_for(height, width), recipe.channels)
    trace = oc.trace(model, shape, optimizer=cell.optimizer, threads=2)
    machine = oc.machine(cell.machine)
    ready = oc.plan(trace, "100%", planner="keep-all", machine=machine).trace
    peak_bytes = trace_peak_bytes(ready)
    if cell.link is not None:
        calls_us = sum(call_durations_ns(ready, machine)) / 1000
        machine = with_link(machine, peak_bytes / (cell.link * calls_us))
    host = None if cell.host is None else input_bytes(ready) + int(cell.host * peak_bytes)
    found: dict[str, Any] = {"cell": asdict(cell), "calls": len(ready.calls)}
    for planner in PLANNERS:
        began = time.perf_counter()
        try:
            plan = oc.plan(
                trace, f"{100 * cell.share}%", planner, machine, GRANULES[cell.granule],
                evaluations=cell.evaluations, host_budget=host, seed=cell.seed,
            )  # fmt: skip
        except OoctrainError as refusal:
            least = getattr(refusal, "minimum_bytes", None)
            found[planner] = {"refused": refusal.code, "least_bytes": least}
        else:
            found[planner] = {"makespan_us": plan.makespan_us, "rewrites": list(plan.rewrites)}
        found[planner]["took_s"] = round(time.perf_counter() - began, 3)
    return found


def compare(before: dict[str, Any], after: dict[str, Any]) -> int:
    """Prints what differs. Returns 1 where a cell, the mean or refusals are worse."""
    worse = 0
    numbers = sorted(before.keys() & after.keys(), key=int)
    for planner in PLANNERS:
        ratios, seconds, refusals = list[float](), [0.0, 0.0], [0, 0]
        for number in numbers:
            old, new = before[number][planner], after[number][planner]
            seconds = [seconds[0] + old["took_s"], seconds[1] + new["took_s"]]
            refusals = [refusals[0] + ("refused" in old), refusals[1] + ("refused" in new)]
            if "refused" in new and "refused" not in old:
                worse += 1
                print(f"{planner} {number}: refused now, {before[number]['cell']}")
            if "refused" in old or "refused" in new:
                continue
            ratios.append(new["makespan_us"] / old["makespan_us"])
            if ratios[-1] > 1 + WORST:
                worse += 1
                print(f"{planner} {number}: {ratios[-1]:.4f} times, {before[number]['cell']}")
        mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
        worse += mean > 1 + 1e-9
        print(
            f"{planner}: {len(ratios)} cells, mean {mean:.5f}, {min(ratios):.4f} to "
            f"{max(ratios):.4f}; refusals {refusals[0]} -> {refusals[1]}; "
            f"seconds {seconds[0]:.0f} -> {seconds[1]:.0f}"
        )
    return int(worse > 0)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, nargs="?")
    parser.add_argument("--compare", type=Path, nargs=2, metavar="FILE")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--cells", type=int, default=200)
    parser.add_argument("--from", dest="first", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1)
    options = parser.parse_args(arguments)
    if options.compare:
        return compare(*(json.loads(path.read_text()) for path in options.compare))
    if options.out is None:
        parser.error("a file for the results, or --compare")
    found: dict[str, Any] = json.loads(options.out.read_text()) if options.out.exists() else {}
    missing = [n for n in range(options.first, options.cells) if str(n) not in found]
    with ProcessPoolExecutor(options.jobs, multiprocessing.get_context("spawn")) as pool:
        waiting = {pool.submit(planned, drawn(options.seed, number)): number for number in missing}
        for done in as_completed(waiting):
            found[str(waiting[done])] = done.result()
            options.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
            print(waiting[done], done.result(), file=sys.stderr, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
