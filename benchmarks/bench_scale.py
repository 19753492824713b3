"""How the host side scales: tracing, planning, verifying, simulating, time to the first step.

The second table is of all planners on a step of 10,000 calls, four of them on one of 50,000, with
the exponents of their time (`planner_scale.py`).

Everything is measured in a fresh process, as a user meets it; memory is the peak that Python
allocated. Measured are seconds and bytes for a ResNet-50 step at batch 1440, the wall time of
commands, and what a cold kernel cache costs. Read next:
`bench_overhead.py`.

    python -m benchmarks scale [--quick] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median

from benchmarks import planner_scale
from benchmarks.common import machine_facts, table, verdict
from ooctrain.sched.planning.question import Question

MIB = 1 << 20
BATCH = 1440
REWRITES = ("fuse", "share_storage")
REPEATS = 3
PLAN = ("plan", "resnet50", "--batch", "256", "--budget", "8GiB", "--machine", "v100-32gb-nvlink")
TRAIN = ("train", "resnet18", "--data", "digits", "--batch", "64", "--steps", "1")
#: What is compiled for a first start; with several hundred images a step the kernels of Winograd.
COLD = (*TRAIN[:4], "--batch", "256", "--budget", "50%", "--steps", "1")


@dataclass(frozen=True, slots=True)
class Row:
    """What was measured against what is promised."""

    what: str
    measured: float
    wanted: float
    unit: str

    @property
    def ok(self) -> bool:
        return self.measured < self.wanted


def host_side() -> list[Row]:
    """Runs in a fresh process (`--child`): trace, window, verify, simulate."""
    import tracemalloc

    import ooctrain as oc
    from ooctrain.rewrite import apply_rewrites
    from ooctrain.sched.budget import resolve_budget
    from ooctrain.sched.planners.registry import get_planner
    from ooctrain.units import Granule

    model = oc.models.build("resnet50", num_classes=1000, stem="imagenet")
    machine, granule = oc.machine("v100-32gb-nvlink"), Granule(1 << 21, ranges=True)

    def make_trace():
        return oc.trace(model, (BATCH, 3, 224, 224))

    whole = make_trace()
    ready = apply_rewrites(whole, REWRITES)
    budget = resolve_budget(ready, "25%", granule)
    plan = get_planner("window").plan(Question(ready, budget, machine, granule=granule))
    # The verifier is given the step as traced, and does the rewrites itself.
    plan = replace(plan, rewrites=(*REWRITES, *plan.rewrites))
    parts: dict[str, tuple[Callable[[], object], float]] = {
        "trace": (make_trace, 1.0),
        "window": (
            lambda: get_planner("window").plan(Question(ready, budget, machine, granule=granule)),
            1.0,
        ),
        "verify": (lambda: oc.verify(plan, whole, budget, machine), 0.2),
        "simulate": (lambda: oc.simulate(plan.schedule, plan.trace, machine), 0.2),
    }
    rows = []
    for name, (part, wanted_s) in parts.items():
        times = []
        for _ in range(REPEATS):
            started = time.perf_counter()
            part()
            times.append(time.perf_counter() - started)
        label = f"{name}, ResNet-50, batch {BATCH}, {len(ready.calls)} calls"
        rows.append(Row(label, median(times), wanted_s, "s"))
        if name in ("trace", "window"):
            tracemalloc.start()
            part()
            rows.append(
                Row(f"{name}: memory", tracemalloc.get_traced_memory()[1] / MIB, 500, "MiB")
            )
            tracemalloc.stop()
    return rows


def command_s(arguments: Sequence[str], environment: dict[str, str]) -> float:
    """Wall time of a command of ours in a fresh process."""
    started = time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "ooctrain", *arguments], check=True, env=environment,
        stdout=subprocess.DEVNULL,
    )  # fmt: skip
    return time.perf_counter() - started


def starts(cold: bool) -> list[Row]:
    """`ooctrain train` with a warm kernel cache, less its step; and what a cold one costs more."""
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "run.json"
        arguments = [*TRAIN, "--json", str(result)]
        environment = dict(os.environ)
        rows = []
        if cold:
            cache = {**environment, "OOCTRAIN_CACHE": str(Path(folder) / "cache")}
            cold_s = command_s(COLD, cache)
            warm_s = min(command_s(COLD, cache) for _ in range(REPEATS))
            more, beside = "a cold start: what it takes more than", "a cold start beside"
            rows.append(Row(f"{more} a warm one", cold_s - warm_s, 19.0, "s"))
            rows.append(Row(f"{beside} a warm one", cold_s / warm_s, 3.0, "x"))
        command_s(arguments, environment)
        times = []
        for _ in range(REPEATS):
            whole_s = command_s(arguments, environment)
            times.append(whole_s - json.loads(result.read_text())["step_us"][0] / 1e6)
        rows.append(
            Row("`train`, warm: all but the step (test set included)", median(times), 3.0, "s")
        )
        return rows


def main(arguments: Sequence[str] = (), *, quick: bool = False) -> dict:
    """Runs; returns what goes into the JSON file."""
    parser = argparse.ArgumentParser(prog="bench_scale", description=__doc__.splitlines()[0])
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.child:
        print(json.dumps([asdict(row) for row in host_side()]))
        return {}
    facts = machine_facts()
    child = [sys.executable, "-m", "benchmarks.bench_scale", "--child"]
    found = subprocess.run(child, check=True, capture_output=True, text=True).stdout
    rows = [Row(**row) for row in json.loads(found)]
    plan_s = median(command_s(PLAN, dict(os.environ)) for _ in range(REPEATS))
    rows.append(Row(f"`ooctrain {' '.join(PLAN)}`", plan_s, 2.0, "s"))
    rows += starts(cold=not quick)
    print(table(
        ["what", "measured", "wanted", ""],
        [[r.what, f"{r.measured:.2f} {r.unit}", f"{r.wanted:g} {r.unit}", verdict(r.ok)]
         for r in rows],
    ))  # fmt: skip
    planning = planner_scale.measure(quick)
    print(planner_scale.shown(planning))
    missed = [row.what for row in rows if not row.ok]
    missed += [f"{row.planner}, {row.calls} calls" for row in planning if not row.ok]
    results = [asdict(row) for row in rows]
    planned = planner_scale.as_data(planning)
    return {"machine": facts, "results": results, "planning": planned, "missed": missed}


if __name__ == "__main__":
    main(sys.argv[1:])
