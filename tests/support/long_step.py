"""A step of many instructions: a chain that swaps every activation out, and in again.

Pictures and pages are asked for steps of 50,000 instructions, which no network of a test has. The
chain is as deep as it must be, and its list is legal. Read next: `../unit/test_page.py`.
"""

from __future__ import annotations

import json
from pathlib import Path

from ooctrain.report.record import Record, drawing, read_record
from ooctrain.sched.schedule import (
    Free,
    Instruction,
    Plan,
    Run,
    Schedule,
    SwapIn,
    SwapOut,
    default_start,
)
from ooctrain.sched.simulate import simulate
from ooctrain.step.builder import TraceBuilder
from ooctrain.step.presets import v100_pcie
from ooctrain.testing.random_traces import FakeOp

SIZE = 3 << 20


def long_plan(layers: int) -> Plan:
    """A chain of so many layers; the list has 7 instructions a layer."""
    builder = TraceBuilder()
    x = [builder.variable("input", (SIZE,), "uint8", "input")]
    g = []
    for i in range(layers):
        x.append(builder.variable(f"layer{i}.conv.out", (SIZE,), "uint8"))
        g.append(builder.variable(f"layer{i}.conv.out.grad", (SIZE,), "uint8", "grad"))
    steps: list[Instruction] = [SwapIn(x[0], 0, SIZE)]
    for i in range(layers):
        call = builder.call(
            f"layer{i}.conv.fwd", FakeOp("f"), (x[i],), (x[i + 1],), phase="forward",
            workspace_bytes=1000 + i, duration_ns=300_000 + 1000 * (i % 7),
        )  # fmt: skip
        steps += [Run(call), SwapOut(x[i], 0, SIZE), Free(x[i], 0, SIZE)][: 3 if i else 1]
        steps += [] if i else [Free(x[0], 0, SIZE)]
    top = builder.call("loss", FakeOp("l"), (x[-1],), (g[-1],), phase="loss", duration_ns=9000)
    steps += [Run(top), Free(x[-1], 0, SIZE)]
    for i in reversed(range(1, layers)):
        call = builder.call(
            f"layer{i}.conv.grad_input", FakeOp("b"), (x[i], g[i]), (g[i - 1],), phase="backward",
            workspace_bytes=5000, duration_ns=500_000,
        )  # fmt: skip
        steps += [SwapIn(x[i], 0, SIZE), Run(call), Free(g[i], 0, SIZE), Free(x[i], 0, SIZE)]
    steps.append(Free(g[0], 0, SIZE))
    trace = builder.build()
    schedule = Schedule(tuple(steps), *default_start(trace))
    return Plan(trace, (), schedule, 0.0, 0, 0, notes={"planner": "by hand"})


def long_record(layers: int, folder: Path) -> Record:
    """The record of that chain, written and read again."""
    plan = long_plan(layers)
    timeline = simulate(plan.schedule, plan.trace, v100_pcie())
    path = folder / "long.json"
    numbers = {"model": "chain", "budget_bytes": 8 * SIZE, **drawing(plan, timeline)}
    path.write_text(json.dumps(numbers))
    return read_record(str(path))
