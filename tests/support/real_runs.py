"""Every planner in real runs, on two networks and three budgets, with the cases that it refuses.

`runs` are steps that are prepared and executed on the cpu device, for each planner of the registry;
a `Refusal` is a step for which no plan fits. A refusal is a result too, so the refusals are a table
under version control, with the least budget that each planner asks for there; a test runs them all
and finds exactly this table. Read next: `../properties/test_real_runs.py`, `same_bits.py`.

    PYTHONPATH=tests python -m support.real_runs > docs/infeasible.csv
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import astuple, dataclass, fields
from functools import partial
from types import MappingProxyType
from typing import TextIO

import numpy as np

from ooctrain.devices.interface import Debug
from ooctrain.engine.autograd import manual_seed
from ooctrain.engine.module import Module
from ooctrain.errors import Infeasible
from ooctrain.execution.fit import prepare
from ooctrain.execution.prepared_step import PreparedStep
from ooctrain.execution.settings import Settings
from ooctrain.models import build
from ooctrain.sched.planners.registry import PLANNERS
from ooctrain.step.trace import Trace
from ooctrain.tracing import trace as trace_step

BUDGETS = ("10%", "25%", "50%")
CLASSES = 10
#: Of planners that search: it decides how good their plans are, not whether there is one.
EVALUATIONS = 5000


@dataclass(frozen=True, slots=True)
class RealWorkload:
    """A network and its batch, small enough that hundreds of steps take a minute.

    Args:
        make: gives the network.
        batch, image: images, and their height and width.
        per_pixel: a label for each pixel, instead of one for each image.
    """

    make: Callable[[], Module]
    batch: int
    image: int
    per_pixel: bool = False

    def model(self) -> Module:
        """The network with its first weights, the same ones each time."""
        manual_seed(0)
        return self.make()

    def trace(self, model: Module) -> Trace:
        """The training step, before any rewrite."""
        return trace_step(model, (self.batch, 3, self.image, self.image), threads=1)

    def batches(self, count: int) -> list[tuple[np.ndarray, np.ndarray]]:
        """Random images and labels."""
        random = np.random.default_rng(0)
        shape = (self.batch, self.image, self.image) if self.per_pixel else (self.batch,)
        return [
            (
                random.standard_normal((self.batch, 3, self.image, self.image), np.float32),
                random.integers(0, CLASSES, shape),
            )
            for _ in range(count)
        ]


WORKLOADS: Mapping[str, RealWorkload] = MappingProxyType(
    {
        "resnet18": RealWorkload(partial(build, "resnet18", CLASSES, "cifar"), batch=8, image=32),
        "unet": RealWorkload(
            partial(build, "unet", CLASSES, "cifar"), batch=8, image=32, per_pixel=True
        ),
    }
)


@dataclass(frozen=True, slots=True)
class RealRun:
    """One real run.

    Args:
        workload: a name of `WORKLOADS`.
        planner: by name.
        budget: as typed.
    """

    workload: str
    planner: str
    budget: str

    def settings(self, debug: Debug | None = None) -> Settings:
        """How it runs: on one thread, planned for a preset, not for the machine it runs on."""
        return Settings(
            budget=self.budget, planner=self.planner, threads=1, machine="cpu-generic",
            evaluations=EVALUATIONS, debug=debug or Debug(),
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Refusal:
    """A run that its planner finds infeasible.

    Args:
        workload, planner, budget: the run.
        minimum_bytes: what the planner needs there.
        witness_call: the call that needs it.
    """

    workload: str
    planner: str
    budget: str
    minimum_bytes: int
    witness_call: str


def runs() -> Iterator[RealRun]:
    """All, planner by planner."""
    for workload in WORKLOADS:
        for planner in PLANNERS:
            for budget in BUDGETS:
                yield RealRun(workload, planner, budget)


def prepare_run(run: RealRun, trace: Trace) -> PreparedStep | Refusal:
    """The step, ready to run, or why there is none."""
    try:
        return prepare(trace, run.settings())
    except Infeasible as refused:
        return Refusal(
            run.workload, run.planner, run.budget, refused.minimum_bytes, refused.witness_call
        )


def refusals() -> Iterator[Refusal]:
    """Of all runs those that are infeasible."""
    traces = {name: workload.trace(workload.model()) for name, workload in WORKLOADS.items()}
    for run in runs():
        found = prepare_run(run, traces[run.workload])
        if isinstance(found, Refusal):
            yield found


def write_table(rows: Iterable[Refusal], file: TextIO) -> None:
    """As CSV with a header."""
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(field.name for field in fields(Refusal))
    writer.writerows(astuple(row) for row in rows)


def read_table(file: TextIO) -> list[Refusal]:
    """What `write_table` wrote."""
    return [
        Refusal(workload, planner, budget, int(minimum), call)
        for workload, planner, budget, minimum, call in list(csv.reader(file))[1:]
    ]


if __name__ == "__main__":
    write_table(refusals(), sys.stdout)
