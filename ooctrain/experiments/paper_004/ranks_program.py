"""What each rank does for `distributed.py`: steps over networks of several bandwidths, in turns.

Batches, bandwidths and a number of rounds are given as JSON on the command line; rank 0 prints the
measured steps as a line of JSON. There is one trainer for each bandwidth, and every round runs one
step of each, so any other load on the machine affects all of them alike. Read next:
`distributed.py`, which starts this; `../../distributed/mpi.py`.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Mapping
from statistics import median
from typing import Any

import numpy as np

from ooctrain.distributed import Network, world
from ooctrain.models import build
from ooctrain.sched.schedule import Run
from ooctrain.train import Trainer

CLASSES, SIDE, SEED = 10, 32, 1
WARM_UP = 1


def main(asked: str) -> None:
    """Runs on every rank."""
    wanted = json.loads(asked)
    rows = [row for batch in wanted["batches"] for row in steps_of(batch, wanted)]
    if world().is_first:
        print(json.dumps(rows), flush=True)


def steps_of(batch: int, wanted: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One row for each bandwidth, the first for a network as fast as the machine itself."""
    rates = [None, *wanted["bytes_per_us"]]
    runs = [world(network=None if rate is None else Network(rate)) for rate in rates]
    trainers = [
        Trainer(build(wanted["model"], CLASSES, stem="cifar"), threads=1, seed=SEED, ranks=ranks)
        for ranks in runs
    ]
    x, y = _images(batch, runs[0].rank)
    steps_us: list[list[float]] = [[] for _ in rates]
    forward_us: list[float] = []
    for _ in range(WARM_UP + wanted["rounds"]):
        for times, trainer in zip(steps_us, trainers, strict=True):
            begin = time.perf_counter()
            trainer.step(x, y)
            times.append((time.perf_counter() - begin) * 1e6)
        forward_us.append(_forward_us(trainers[0]))
    size_bytes = sum(4 * math.prod(p.shape) for p in trainers[0].model.parameters())
    for trainer in trainers:
        trainer.close()
    return [
        {
            "batch": batch, "bytes_per_us": rate, "gradient_bytes": size_bytes,
            "forward_us": median(forward_us[WARM_UP:]), "step_us": median(times[WARM_UP:]),
        }
        for rate, times in zip(rates, steps_us, strict=True)
    ]  # fmt: skip


def _images(batch: int, rank: int) -> tuple[np.ndarray, np.ndarray]:
    """Random images and labels of a rank."""
    random = np.random.default_rng(rank)
    x = random.standard_normal((batch, 3, SIDE, SIDE), np.float32)
    return x, random.integers(0, CLASSES, batch)


def _forward_us(trainer: Trainer) -> float:
    """Until the first call of the backward pass began, in the last step."""
    plan, line = trainer.plan, trainer.timeline
    assert plan is not None, "a step has been made"
    assert line is not None, "it was measured"
    listed, calls = plan.schedule.instructions, plan.trace.calls
    return next(
        event.start_us
        for event in line.events
        if event.stream == "C"
        and isinstance(run := listed[event.index], Run)
        and calls[run.call].phase not in ("forward", "loss")
    )


if __name__ == "__main__":
    main(sys.argv[1])
