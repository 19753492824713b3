"""How planning grows with the step: processor time, memory and exponent of each planner.

The step is a chain of small convolutions with their ReLUs, eight calls a layer, traced as any other
network. Each planner runs in a process of its own; its time is processor time, its memory the
growth of the process's peak. The exponent is that of the time between a quarter of the calls and
all of them. Planners that search are not here: they stop at their number of evaluations. Read next:
`bench_scale.py`, which prints the table.

    python -m benchmarks scale [--quick] [--json FILE]
"""

from __future__ import annotations

import json
import math
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass

from benchmarks.common import table, verdict
from ooctrain.sched.planning.question import Question

#: Planners whose work the step alone decides.
PLANNERS = (
    "naive", "window", "window-cyclic", "belady", "lru", "prefix", "vdnn", "vdnn-all", "vdnn-conv",
    "superneurons", "chen-sqrt", "revolve", "rotor", "pofo", "dtr", "hmms", "lms", "lms-auto",
    "lms-grid", "bn-recompute", "capuchin", "greedy", "dynprog", "tflms-hybrid",
)  # fmt: skip
LINEAR = ("window", "belady", "lru", "prefix")
CALLS, MANY_CALLS, QUICK_CALLS = 10_000, 50_000, 1_600
CALLS_A_LAYER = 8
MOST_S, MOST_MIB, MOST_OF_MANY_S = 10.0, 500.0, 60.0
BUDGET = "50%"
MIB_IN_KIB = 1024


@dataclass(frozen=True, slots=True)
class Planning:
    """One planner on one step.

    Args:
        growth_mib: of the process's largest resident size, from the trace to the plan.
        exponent: e of time ~ calls^e; None where one size was measured.
    """

    planner: str
    calls: int
    processor_s: float
    growth_mib: float
    exponent: float | None

    @property
    def ok(self) -> bool:
        if self.calls > CALLS * 2:
            return self.processor_s < MOST_OF_MANY_S
        return self.processor_s < MOST_S and self.growth_mib < MOST_MIB


def measure(quick: bool) -> list[Planning]:
    """All rows; the larger steps only where it is not quick."""
    calls = QUICK_CALLS if quick else CALLS
    rows = [_row(planner, calls, calls // 4) for planner in PLANNERS]
    return rows if quick else [*rows, *(_row(planner, MANY_CALLS) for planner in LINEAR)]


def shown(rows: list[Planning]) -> str:
    """The table."""
    return table(
        ["planner", "calls", "processor time", "memory", "exponent", ""],
        [[r.planner, f"{r.calls:,}", f"{r.processor_s:.2f} s", f"{r.growth_mib:.0f} MiB",
          "" if r.exponent is None else f"{r.exponent:.2f}", verdict(r.ok)] for r in rows],
    )  # fmt: skip


def as_data(rows: list[Planning]) -> list[dict]:
    return [asdict(row) for row in rows]


def _row(planner: str, calls: int, fewer: int | None = None) -> Planning:
    found = _in_child(planner, calls)
    exponent = None
    if fewer:
        less = _in_child(planner, fewer)
        seconds = (max(less["processor_s"], 1e-3), max(found["processor_s"], 1e-3))
        exponent = math.log(seconds[1] / seconds[0]) / math.log(found["calls"] / less["calls"])
    return Planning(planner, found["calls"], found["processor_s"], found["growth_mib"], exponent)


def _in_child(planner: str, calls: int) -> dict:
    child = [sys.executable, "-m", "benchmarks.planner_scale", planner, str(calls)]
    return json.loads(subprocess.run(child, check=True, capture_output=True, text=True).stdout)


def plan_once(planner: str, calls: int) -> dict:
    """Traces, plans, and says what planning took."""
    import ooctrain as oc
    from ooctrain.sched.budget import resolve_budget
    from ooctrain.sched.planners.registry import get_planner

    model = oc.nn.Sequential(
        *_layers(calls // CALLS_A_LAYER),
        oc.nn.AdaptiveAvgPool2d(1), oc.nn.Flatten(), oc.nn.Linear(8, 10),
    )  # fmt: skip
    trace, machine = oc.trace(model, (4, 8, 16, 16)), oc.machine("v100-pcie")
    budget = resolve_budget(trace, BUDGET)
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started = time.process_time()
    get_planner(planner).plan(Question(trace, budget, machine))
    processor_s = time.process_time() - started
    growth_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib
    return {
        "calls": len(trace.calls), "processor_s": processor_s, "growth_mib": growth_kib / MIB_IN_KIB
    }  # fmt: skip


def _layers(count: int) -> Iterator:
    import ooctrain as oc

    for _ in range(count):
        yield oc.nn.Conv2d(8, 8, 3, padding=1)
        yield oc.nn.ReLU()


if __name__ == "__main__":
    print(json.dumps(plan_once(sys.argv[1], int(sys.argv[2]))))
