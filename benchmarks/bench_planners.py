"""Every planner in real steps: predicted time, measured time, and overhead over in-core.

Which planner is good depends on the link, so each is measured on two: at the balance the bytes that
`belady` moves in a step, the fewest among the planners that only swap, take as long as the calls;
the links are half and twice as fast. A row gives the step as `simulate` predicts it with the
calibrated machine, the measured step, the error, and the overhead over in-core steps run in turn
with it. The promise is an error of 15 %. Read next: `bench_prediction.py`, whose way of measuring
this uses.

    python -m benchmarks planners [--quick] [--json FILE]
    python -m benchmarks.bench_planners --networks unet:64 --planners belady lms-auto
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict

import ooctrain as oc
from benchmarks.bench_prediction import PROMISE, Bench, Row, calibrated, kept_promises
from benchmarks.common import machine_facts, table, threads_here, verdict
from ooctrain.errors import Infeasible
from ooctrain.execution.fit import prepare
from ooctrain.execution.settings import Settings
from ooctrain.units import format_bytes

NETWORKS, QUICK_NETWORKS = ("resnet18:64", "unet:32"), ("lenet:64",)
BUDGET = "25%"
#: Of the balance.
LINK_SHARES = (0.5, 2.0)
STEPS, QUICK_STEPS = 6, 3


def balance_bytes_per_us(bench: Bench) -> float:
    """The link on which the copies of one direction last as long as the in-core step."""
    in_core = bench.in_core.prepared
    settings = Settings(
        budget=BUDGET, planner="belady", threads=bench.threads, machine=bench.machine
    )
    plan = prepare(in_core.original, settings).plan
    moved = oc.simulate(plan.schedule, plan.trace, bench.machine)
    kept = oc.simulate(in_core.plan.schedule, in_core.plan.trace, bench.machine)
    return max(moved.bytes_out, moved.bytes_in) / kept.makespan_us


def rows_of(bench: Bench, planners: Sequence[str]) -> Iterator[Row | tuple[str, float, Infeasible]]:
    """Each planner on each link, or why it cannot."""
    balance = balance_bytes_per_us(bench)
    for share in LINK_SHARES:
        for planner in planners:
            try:
                yield bench.measure(BUDGET, planner, balance * share)
            except Infeasible as refused:
                yield planner, balance * share, refused


def cells(found: Row | tuple[str, float, Infeasible]) -> list[str]:
    """A row of the table."""
    if not isinstance(found, Row):
        planner, link, refused = found
        needs = f"needs {format_bytes(refused.minimum_bytes)}"
        return [planner, f"{link / 1e3:.2f} GB/s", *["-"] * 6, needs]
    return [
        found.planner, f"{found.link_bytes_per_us / 1e3:.2f} GB/s",
        f"{found.bytes_moved / 1e6:.0f}", f"{found.predicted_us / 1e3:.1f}",
        f"{found.measured_us / 1e3:.1f}", f"{100 * found.error:+.1f} %",
        f"{100 * found.current_error:+.1f} %", f"{100 * found.overhead:+.0f} %",
        verdict(abs(found.error) <= PROMISE),
    ]  # fmt: skip


def as_it_comes(found: Row | tuple[str, float, Infeasible]) -> Row | tuple[str, float, Infeasible]:
    """The row itself, once shown: the table comes minutes later."""
    print("  ".join(cells(found)), file=sys.stderr, flush=True)
    return found


HEADER = ["planner", "link", "MB moved", "predicted ms", "measured ms", "error",
          "error, calls as now", "over in-core", ""]  # fmt: skip


def main(arguments: Sequence[str] = (), *, quick: bool = False) -> dict:
    """Runs; returns what goes into the JSON file."""
    parser = argparse.ArgumentParser(prog="bench_planners", description=__doc__.splitlines()[0])
    networks = QUICK_NETWORKS if quick else NETWORKS
    parser.add_argument("--networks", nargs="+", default=networks, metavar="NAME:BATCH")
    parser.add_argument("--planners", nargs="+", default=oc.planners(), metavar="NAME")
    parser.add_argument("--steps", type=int, default=QUICK_STEPS if quick else STEPS)
    parser.add_argument("--threads", type=int, default=threads_here())
    options = parser.parse_args(arguments)
    facts, rows = machine_facts(), []
    for text in options.networks:
        network, batch = text.split(":")
        with calibrated(network, int(batch), options.steps, options.threads) as bench:
            found = [as_it_comes(row) for row in rows_of(bench, options.planners)]
        print(f"{network}, batch {batch}, within {BUDGET}")
        print(table(HEADER, [cells(row) for row in found]), flush=True)
        rows += [row for row in found if isinstance(row, Row)]
    print(kept_promises(rows))
    missed = [f"{row.network} {' '.join(cells(row)[:2])}" for row in rows
              if abs(row.error) > PROMISE]  # fmt: skip
    results = [asdict(row) | {"error": row.error, "current_error": row.current_error,
               "overhead": row.overhead} for row in rows]  # fmt: skip
    return {"machine": facts, "results": results, "missed": missed}


if __name__ == "__main__":
    main(sys.argv[1:])
