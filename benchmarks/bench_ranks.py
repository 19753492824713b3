"""Two ranks of one thread on two cores against one rank, and how much of the sending is hidden.

Both runs are processes that mpiexec starts in turn, and medians over rounds are compared. Measured
are (1) step times of one rank and of two at equal global batch, whose losses are the same to the
bit; (2) the share of the messages that nothing waits for, at an imposed 1 GB/s, measured and
simulated. Targets: 1.6 times, and 70 % hidden. It needs mpi4py and mpiexec. Read next: `common.py`.

    python -m benchmarks ranks [--quick] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from statistics import median
from typing import Any

import numpy as np

from benchmarks.common import machine_facts, table, verdict
from ooctrain.errors import ConfigError

MODEL, BATCH = "resnet18", 32
ROUNDS, QUICK_ROUNDS = 3, 1
STEPS, QUICK_STEPS, WARM_UP = 6, 2, 2
WANTED_SPEEDUP, WANTED_HIDDEN = 1.6, 0.70
#: 1 GB/s.
IMPOSED_BYTES_PER_US = 1000.0


def steps_of_a_rank(parts: int, steps: int, imposed: float) -> dict[str, Any]:
    """What one process does: steps on its part of a batch, on one thread.

    Args:
        parts: of the batch, where this rank is alone.
        imposed: bytes per us of the network; 0: as fast as it goes.
    """
    import ooctrain as oc
    from ooctrain.distributed import Network, world
    from ooctrain.sched.timeline import hidden_us

    ranks = world(network=Network(imposed) if imposed else None)
    oc.manual_seed(0)
    model = oc.models.build(MODEL, num_classes=10, stem="cifar")
    machine = oc.machine("cpu-generic")
    machine = replace(machine, network_bytes_per_us=imposed or machine.network_bytes_per_us)
    draw = np.random.default_rng(0)
    images = draw.standard_normal((BATCH, 3, 32, 32)).astype(np.float32)
    labels = draw.integers(0, 10, BATCH)
    part, losses, ms, hidden, waits = ranks.part_of(BATCH), [], [], [], []
    alone = parts if ranks.count == 1 else 1
    with oc.Trainer(model, accumulate=alone, threads=1, machine=machine, ranks=ranks) as trainer:
        for _ in range(WARM_UP + steps):
            started = time.perf_counter()
            losses.append(trainer.step(images[part], labels[part]))
            ms.append((time.perf_counter() - started) * 1e3)
            if ranks.count > 1:
                spans = ranks.exchange.spans
                under_way_ns = sum(span.end_ns - span.start_ns for span in spans)
                hidden.append(1 - sum(span.waited_ns for span in spans) / under_way_ns)
                waits.append(under_way_ns / 1e6)
        predicted = trainer.prepared.predict()
    found = {"losses": losses, "step_ms": median(ms[WARM_UP:])}
    if ranks.count > 1:
        share = hidden_us(predicted) / predicted.busy_us("N")
        found |= {"hidden": median(hidden[WARM_UP:]), "network_ms": median(waits[WARM_UP:])}
        found |= {"hidden_predicted": share}
    return found if ranks.is_first else {}


def on_ranks(mpiexec: str, count: int, parts: int, steps: int, imposed: float) -> dict[str, Any]:
    """The same on so many ranks; what the first one prints."""
    words = ["-m", "benchmarks.bench_ranks", "--child", *map(str, (parts, steps, imposed))]
    command = [mpiexec, "-n", str(count), sys.executable, *words]
    shown = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return json.loads(shown)


def main(arguments: Sequence[str] = (), *, quick: bool = False) -> dict:
    """Runs; returns what goes into the JSON file."""
    parser = argparse.ArgumentParser(prog="bench_ranks", description=__doc__.splitlines()[0])
    parser.add_argument("--child", nargs=3, type=float, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.child:
        parts, steps, imposed = options.child
        found = steps_of_a_rank(int(parts), int(steps), imposed)
        if found:
            print(json.dumps(found))
        return {}
    from ooctrain.distributed.mpi import find_mpiexec

    try:
        mpiexec = find_mpiexec()
    except ConfigError as error:
        print(f"left out: {error.what}; {error.fix}")
        return {"missed": []}
    facts, steps = machine_facts(), QUICK_STEPS if quick else STEPS
    cases = {"one": (1, 0.0), "two": (2, 0.0), "two at 1 GB/s": (2, IMPOSED_BYTES_PER_US)}
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in cases}
    for _ in range(QUICK_ROUNDS if quick else ROUNDS):
        for name, (count, imposed) in cases.items():
            found[name].append(on_ranks(mpiexec, count, 2, steps, imposed))
    if any(run["losses"] != found["one"][0]["losses"] for runs in found.values() for run in runs):
        raise SystemExit("two ranks do not have the losses of one")
    speedup = median(
        one["step_ms"] / two["step_ms"] for one, two in zip(found["one"], found["two"], strict=True)
    )
    slow = found["two at 1 GB/s"]
    hidden, predicted = (median(run[key] for run in slow) for key in ("hidden", "hidden_predicted"))
    rows = [[name, f"{median(r['step_ms'] for r in runs):.0f} ms"] for name, runs in found.items()]
    print(table([f"{MODEL}, batch {BATCH}, ranks of one thread", "step"], rows))
    network = f"{median(run['network_ms'] for run in slow):.1f} ms of messages at 1 GB/s"
    print(f"two ranks / one: {speedup:.2f} times as fast  {verdict(speedup >= WANTED_SPEEDUP)}")
    print(
        f"{network}, {hidden:.0%} of it hidden (simulated {predicted:.0%})  "
        f"{verdict(hidden >= WANTED_HIDDEN)}"
    )
    missed = [] if speedup >= WANTED_SPEEDUP else [f"two ranks {speedup:.2f} times as fast"]
    missed += [] if hidden >= WANTED_HIDDEN else [f"{hidden:.0%} hidden"]
    return {"machine": facts, "runs": found, "speedup": speedup, "hidden": hidden, "missed": missed}


if __name__ == "__main__":
    main(sys.argv[1:])
