"""What the executor itself costs: microseconds an instruction, and the share of a real step.

In: nothing but this machine. Out: (1) a list of trivial calls, (2) the list of a real network whose
kernels are switched off, on each allocator, (3) the time between calls of a real step. The one
idea: what is left when no kernel works is the walk: claims, releases, waits, hand-over. The target
is 50 us an instruction.

    python -m benchmarks overhead [--json FILE]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from statistics import median

import numpy as np

import ooctrain as oc
from benchmarks.common import machine_facts, table, threads_here, verdict

TARGET_US = 50.0
ALLOCATORS = ("va", "best-fit")
CHAIN_LAYERS, ROUNDS, QUICK_ROUNDS = 300, 21, 5


class Chain(oc.nn.Module):
    """Layers that do next to nothing, each a call forward and a call backward."""

    def __init__(self, layers: int):
        super().__init__()
        self.first = oc.nn.Linear(16, 16)
        self.rest = oc.nn.Sequential(*(oc.nn.Tanh() for _ in range(layers)))

    def forward(self, x):
        return self.rest(self.first(x))


def make_trainer(model: oc.nn.Module, budget: str | None, allocator: str, threads: int):
    optimizer = oc.optim.SGD(model.parameters(), lr=1e-6, momentum=0.9)
    return oc.Trainer(
        model, optimizer=optimizer, budget=budget, planner="auto" if budget is None else "window",
        allocator=allocator, threads=threads, machine="cpu-generic",
    )  # fmt: skip


def step_us(step: Callable[[], object], rounds: int) -> float:
    """Median wall time, two steps for warming up left out."""
    times = []
    for _ in range(rounds + 2):
        started = time.perf_counter()
        step()
        times.append((time.perf_counter() - started) * 1e6)
    return median(times[2:])


def walk_us(
    trainer: oc.Trainer, x: np.ndarray, y: np.ndarray, rounds: int
) -> tuple[float, float, int]:
    """Everything but `launch`: (us of a step, us an instruction, mappings changed meanwhile)."""
    trainer.step(x, y)
    prepared = trainer.prepared
    session = trainer._residence.session(  # the executor's own door is not meant for users
        prepared, trainer.settings, (prepared.plan.trace.outputs["loss"],)
    )
    session.device.launch = lambda *_: None
    inputs = oc.prepare.input_values(prepared.plan.trace, x, y)
    scalars = {"lr": 1e-6, "step": 0, "seed": 0}
    before = session.allocator.stats()
    whole_us = step_us(lambda: session.run_step(inputs, scalars), rounds)
    after = session.allocator.stats()
    changes = after.maps + after.unmaps - before.maps - before.unmaps
    return whole_us, whole_us / len(prepared.plan.schedule), changes


def main(arguments: Sequence[str] = (), *, quick: bool = False) -> dict:
    """Runs; returns what goes into the JSON file."""
    parser = argparse.ArgumentParser(prog="bench_overhead", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=QUICK_ROUNDS if quick else ROUNDS)
    parser.add_argument("--threads", type=int, default=threads_here())
    options = parser.parse_args(arguments)
    facts, results = machine_facts(), []
    random = np.random.default_rng(0)
    labels = np.arange(64) % 10
    cases = [
        ("trivial calls", lambda: Chain(CHAIN_LAYERS), random.standard_normal((64, 16), np.float32))
    ]
    images = random.standard_normal((64, 3, 32, 32), np.float32)
    cases.append(("resnet18", lambda: oc.models.build("resnet18"), images))
    for name, build, x in cases:
        for budget in (None, "25%"):
            for allocator in ALLOCATORS:
                with make_trainer(build(), budget, allocator, options.threads) as trainer:
                    real_us = step_us(lambda t=trainer, x=x: t.step(x, labels), options.rounds)
                    line = trainer.timeline
                    whole_us, each_us, changes = walk_us(trainer, x, labels, options.rounds)
                    results.append({
                        "list": name, "budget": budget or "in-core", "allocator": allocator,
                        "instructions": len(trainer.plan.schedule), "step_us": real_us,
                        "walk_us": whole_us, "instruction_us": each_us, "changes": changes,
                        "idle_share": line.stall_us / line.makespan_us,
                    })  # fmt: skip
    rows = [
        [
            f"{r['list']}, {r['budget']}", r["allocator"], str(r["instructions"]),
            f"{r['instruction_us']:.1f}", f"{TARGET_US:.0f}", f"{r['walk_us'] / 1e3:.1f}",
            f"{r['step_us'] / 1e3:.1f}", f"{100 * r['idle_share']:.0f} %", str(r["changes"]),
            verdict(r["instruction_us"] < TARGET_US),
        ]
        for r in results
    ]  # fmt: skip
    header = ["list", "allocator", "instructions", "us each", "wanted", "walk ms", "step ms",
              "no call runs", "mappings changed", ""]  # fmt: skip
    print(table(header, rows))
    missed = [f"{r['list']} {r['budget']} {r['allocator']}" for r in results
              if r["instruction_us"] >= TARGET_US]  # fmt: skip
    return {"machine": facts, "results": results, "missed": missed}


if __name__ == "__main__":
    import sys

    main(sys.argv[1:])
