"""Static packing: how near each comes to its bound, and how long it takes.

Three parts. (1) MiniMalloc's eleven public instances, each at the capacity that they are known to
fit. (2) A hundred thousand lifetimes, packed by size. (3) Twelve schedules of training steps, those
of docs/allocators.md, packed in list order, by size and by the exact search, beside the most that
lives at one time. Times are processor time of one run; the compiler's is told apart. Read next:
`bench_alloc.py`.

    python -m benchmarks packing [--json FILE]
"""

from __future__ import annotations

import argparse
import csv
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import ooctrain as oc
from benchmarks.common import machine_facts, table, verdict
from ooctrain.alloc import static
from ooctrain.alloc.exact_packing import places_within
from ooctrain.alloc.registry import choose_dry
from ooctrain.alloc.static import Forecast, Lifetime, pack
from ooctrain.api import step_trace
from ooctrain.execution.placement import forecast
from ooctrain.execution.program import make_program
from ooctrain.units import MIB, Granule

INSTANCES = Path(__file__).parents[1] / "tests" / "data" / "minimalloc"
CAPACITY_BYTES, MOST_TRIED = 1 << 20, 3_000_000
MANY, MANY_SECONDS = 100_000, 5.0
#: {network: batch}, each at these shares of its budget.
STEPS, SHARES = {"resnet18": 32, "resnet50": 16, "vgg16": 16}, (80, 60, 40, 20)
IMAGE_SIZE, MACHINE, PLANNER = 224, "v100-pcie", "window"
MOST_OVER = 0.01
SECTOR = Granule(512, ranges=False)
_LIVE = 40  # of the many lifetimes, about so many at a time


def timed(work: Callable[[], Any]) -> tuple[Any, float]:
    """(the result, seconds of processor time)."""
    began = time.process_time()
    result = work()
    return result, time.process_time() - began


def instance(name: str) -> tuple[list[int], list[tuple[tuple[int, int], ...]]]:
    """Sizes and lives of a public instance."""
    path = INSTANCES / f"{name}.{CAPACITY_BYTES}.csv"
    with path.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    lives = [((int(row["lower"]), int(row["upper"])),) for row in rows]
    return [int(row["size"]) for row in rows], lives


def instances(names: Sequence[str]) -> list[dict[str, Any]]:
    """Each instance at its capacity."""
    found = []
    for name in names:
        sizes, lives = instance(name)
        places, seconds = timed(lambda s=sizes, v=lives: places_within(
            s, v, CAPACITY_BYTES, MOST_TRIED))  # fmt: skip
        found.append({
            "instance": name, "blocks": len(sizes), "fits": places.offsets is not None,
            "tried": places.nodes, "seconds": seconds,
        })  # fmt: skip
    return found


def many_lives(count: int, lasting: float) -> Forecast:
    """Lifetimes drawn with a fixed seed: many short ones, few long ones.

    Args:
        count: of them.
        lasting: how many begin while one of them lives, on average.
    """
    rng = np.random.default_rng(5)
    begin = np.sort(rng.integers(0, 2 * count, count))
    length = np.minimum(rng.geometric(1 / (2 * lasting), count), count)
    sizes = rng.integers(1, MIB, count)
    return Forecast(tuple(
        Lifetime(int(size), "", int(lo), int(lo + last))
        for size, lo, last in zip(sizes, begin, length, strict=True)
    ))  # fmt: skip


def step_forecast(network: str, batch: int, share: int) -> Forecast:
    """What a planned step asks an allocator for."""
    trace = step_trace(network, batch, IMAGE_SIZE, threads=2)
    plan = oc.plan(trace, f"{share}%", PLANNER, MACHINE, SECTOR, rewrites=())
    choice = choose_dry("first-fit", 2 * plan.peak_bytes)
    return forecast(make_program(plan.trace, plan.schedule, choice), SECTOR)


def schedules(steps: dict[str, int], shares: Sequence[int], work: int) -> list[dict[str, Any]]:
    """How far each order is above the most that lives at one time."""
    found = []
    for network, batch in steps.items():
        for share in shares:
            lives = step_forecast(network, batch, share)
            row: dict[str, Any] = {"network": network, "batch": batch, "share": share}
            for order in ("list", "size", "exact"):
                packing, seconds = timed(lambda f=lives, o=order: pack(f, SECTOR, o, 1, work))
                over = packing.extent_bytes / packing.least_bytes - 1
                row |= {"least_bytes": packing.least_bytes, order: over, f"{order}_s": seconds}
            found.append(row)
    return found


def main(arguments: Sequence[str] = (), *, quick: bool = False) -> dict:
    """Runs; returns what goes into the JSON file."""
    parser = argparse.ArgumentParser(prog="bench_packing", description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=int, default=static.EXACT_WORK)
    options = parser.parse_args(arguments)
    missed: list[str] = []
    _, compiler_s = timed(lambda: places_within([1, 1], [((0, 2),), ((1, 3),)], 2, 10))
    print(f"the search's compiler, or its cache: {compiler_s:.1f} s of processor time\n")
    packed = instances("BCD" if quick else "ABCDEFGHIJK")
    print(table(["instance", "blocks", "fits 1 MiB", "blocks tried", "CPU s"], [
        [row["instance"], str(row["blocks"]), verdict(row["fits"]), f"{row['tried']:,}",
         f"{row['seconds']:.2f}"] for row in packed
    ]))  # fmt: skip
    print(f"all together {sum(row['seconds'] for row in packed):.1f} s\n")
    missed += [f"instance {row['instance']}" for row in packed if not row["fits"]]
    many = _many(10_000 if quick else MANY, missed)
    steps, shares = ({"resnet18": 32}, (60, 40)) if quick else (STEPS, SHARES)
    found = schedules(steps, shares, options.work)
    rows = []
    for row in found:
        name, near = f"{row['network']}, {row['batch']}", row["exact"] <= MOST_OVER
        missed += [] if near else [f"{row['network']} at {row['share']} %"]
        rows.append([name, f"{row['share']} %", f"{row['least_bytes'] / MIB:.0f}",
                     *(f"{100 * row[order]:.2f}" for order in ("list", "size", "exact")),
                     f"{row['exact_s']:.1f}", verdict(near)])  # fmt: skip
    header = ["network, batch", "budget", "least MiB", "list %", "size %", "exact %",
              "exact CPU s", f"<= {MOST_OVER:.0%}"]  # fmt: skip
    print(f"\nSchedules, in percent above the least, work {options.work:,}")
    print(table(header, rows))
    return {
        "machine": machine_facts(), "work": options.work, "instances": packed, "many": many,
        "schedules": found, "missed": missed,
    }  # fmt: skip


def _many(count: int, missed: list[str]) -> list[dict[str, Any]]:
    found, rows = [], []
    for what, lasting in (("short lives", _LIVE), ("long lives", 3 * _LIVE)):
        lives = many_lives(count, lasting)
        pack(many_lives(static.MANY, 4), SECTOR, "size", 1)  # compiles, or loads what it compiled
        packing, seconds = timed(lambda f=lives: pack(f, SECTOR, "size", 1))
        over, quick = packing.extent_bytes / packing.least_bytes - 1, seconds <= MANY_SECONDS
        missed += [] if quick else [f"{count} lifetimes, {what}"]
        found.append({"lives": what, "count": count, "over": over, "seconds": seconds})
        rows.append([f"{count:,}, {what}", f"{100 * over:.2f}", f"{seconds:.2f}", verdict(quick)])
    print(table(["lifetimes", "size %", "CPU s", f"<= {MANY_SECONDS:.0f} s"], rows))
    return found


if __name__ == "__main__":
    import sys

    main(sys.argv[1:])
