"""What the executor itself costs: microseconds an instruction, and the share of a real step.

When no kernel works and no byte moves, what is left is the walk through the list: claims, releases,
waits, hand-over to the copy threads. Measured are (1) a list of trivial calls, (2) the list of a
real network whose kernels and copies are switched off, on each allocator, (3) the same where each
call leaves the caches as a large kernel does, (4) what its copies alone add, (5) the time between
calls of a real step. With Python in the caches the walk looks half as dear as in a real step, so
the target is 50 us an instruction, cold. Read next: `bench_launches.py`.

    python -m benchmarks overhead [--json FILE]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from statistics import median

import numpy as np

import ooctrain as oc
from benchmarks.common import machine_facts, table, threads_here, verdict
from ooctrain.execution.sessions import input_values

TARGET_US = 50.0
ALLOCATORS = ("va", "best-fit")
CHAIN_LAYERS, ROUNDS, QUICK_ROUNDS, COLD_ROUNDS = 300, 21, 5, 3
#: What a stand-in for a kernel goes through: the size of the last cache here.
EVICTING_BYTES = 32 << 20


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


@dataclass(frozen=True, slots=True)
class Walk:
    """A step without its kernels.

    Args:
        walk_us: of a step whose copies move nothing either.
        cold_walk_us: of such a step whose calls push everything else out of the caches, less the
            time that they take for that.
        copying_walk_us: of a step whose copies do move.
        copies_us: the time of these copies, one after the other.
        copied_bytes: what they moved.
        changes: mappings changed meanwhile.
    """

    walk_us: float
    cold_walk_us: float
    copying_walk_us: float
    copies_us: float
    copied_bytes: int
    changes: int


class TimedCopies:
    """Stands before one of a device's copies and adds up what it takes.

    Args:
        copy: (address, host offset, bytes); the last argument is the size.
    """

    def __init__(self, copy: Callable[[int, int, int], None]):
        self.copy, self.seconds, self.size_bytes = copy, 0.0, 0

    def __call__(self, address: int, host_offset: int, size_bytes: int) -> None:
        started = time.perf_counter()
        self.copy(address, host_offset, size_bytes)
        self.seconds += time.perf_counter() - started
        self.size_bytes += size_bytes


class ColdKernel:
    """Stands in for the kernels: leaves nothing in the caches, and adds up what that takes."""

    def __init__(self):
        self.memory, self.seconds = np.zeros(EVICTING_BYTES, np.uint8), 0.0

    def __call__(self, *_):
        started = time.perf_counter()
        np.add(self.memory, 1, out=self.memory)
        self.seconds += time.perf_counter() - started


def cold_step_us(step: Callable[[], object], kernel: ColdKernel) -> float:
    """Median wall time of a step less its kernels'."""
    times = []
    for _ in range(COLD_ROUNDS):
        kernel.seconds, started = 0.0, time.perf_counter()
        step()
        times.append((time.perf_counter() - started - kernel.seconds) * 1e6)
    return median(times)


def replace_launches(session, launch: Callable[..., None]) -> None:
    """From now on each call of the session's list is this."""
    session._launches[:] = [launch] * len(session._launches)


def walk_of(trainer: oc.Trainer, x: np.ndarray, y: np.ndarray, rounds: int) -> Walk:
    """Everything but launches, with copies and without."""
    trainer.step(x, y)
    prepared = trainer.prepared
    session = trainer._residence.session(  # the executor's own door is not meant for users
        prepared, trainer.settings, (prepared.plan.trace.outputs["loss"],)
    )
    inputs = input_values(prepared.plan.trace, x, y)
    scalars = {"lr": 1e-6, "step": 0, "seed": 0}
    device = session.device
    replace_launches(session, lambda *_: None)

    def step() -> None:
        session.run_step(inputs, scalars)

    copying_us = step_us(step, rounds)
    device.copy_in, device.copy_out = TimedCopies(device.copy_in), TimedCopies(device.copy_out)
    step()
    copies = device.copy_in, device.copy_out
    device.copy_in = device.copy_out = lambda *_: None
    before = session.allocator.stats()
    walk_us = step_us(step, rounds)
    after = session.allocator.stats()
    kernel = ColdKernel()
    replace_launches(session, kernel)
    cold_us = cold_step_us(step, kernel)
    return Walk(
        walk_us, cold_us, copying_us, sum(c.seconds for c in copies) * 1e6,
        sum(c.size_bytes for c in copies),
        after.maps + after.unmaps - before.maps - before.unmaps,
    )  # fmt: skip


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
    cases.append(("resnet18", lambda: oc.models.build("resnet18", stem="cifar"), images))
    for name, build, x in cases:
        for budget in (None, "25%"):
            for allocator in ALLOCATORS:
                with make_trainer(build(), budget, allocator, options.threads) as trainer:
                    real_us = step_us(lambda t=trainer, x=x: t.step(x, labels), options.rounds)
                    line = trainer.timeline
                    walk = walk_of(trainer, x, labels, options.rounds)
                    instructions = len(trainer.plan.schedule)
                    results.append({
                        "list": name, "budget": budget or "in-core", "allocator": allocator,
                        "instructions": instructions, "step_us": real_us,
                        "instruction_us": walk.walk_us / instructions,
                        "cold_instruction_us": walk.cold_walk_us / instructions, **asdict(walk),
                        "idle_share": line.stall_us / line.makespan_us,
                    })  # fmt: skip
    rows = [
        [
            f"{r['list']}, {r['budget']}", r["allocator"], str(r["instructions"]),
            f"{r['instruction_us']:.1f}", f"{r['cold_instruction_us']:.1f}", f"{TARGET_US:.0f}",
            f"{r['walk_us'] / 1e3:.1f}",
            f"{r['copying_walk_us'] / 1e3:.1f}", f"{r['copied_bytes'] / 2**20:.0f}",
            f"{r['copies_us'] / 1e3:.1f}", f"{r['step_us'] / 1e3:.1f}",
            f"{100 * r['idle_share']:.0f} %", str(r["changes"]),
            verdict(r["cold_instruction_us"] < TARGET_US),
        ]
        for r in results
    ]  # fmt: skip
    header = ["list", "allocator", "instructions", "us each", "cold", "wanted", "walk ms",
              "with copies", "of MiB", "they take", "step ms", "no call runs", "mappings changed",
              ""]  # fmt: skip
    print(table(header, rows))
    missed = [f"{r['list']} {r['budget']} {r['allocator']}" for r in results
              if r["cold_instruction_us"] >= TARGET_US]  # fmt: skip
    return {"machine": facts, "results": results, "missed": missed}


if __name__ == "__main__":
    import sys

    main(sys.argv[1:])
