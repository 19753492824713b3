"""The step that `steps` and `mapping` measure: ResNet-50, its batches, its settings.

Memory grows evenly with the batch, so two small traces give the batch for any budget: the one that
fits in-core a budget that stands for a small GPU, the one that needs 7.5 times as much, and the
largest that an allocator can be planned for. Nothing here needs a GPU, so plans can be made before
one is there (`plans.py`). Source: paper 000, section 5. Read next: `steps.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ooctrain as oc
from benchmarks.gpu.networks import PLAIN
from ooctrain.errors import DoesNotFit, Infeasible
from ooctrain.execution.fit import prepare
from ooctrain.execution.prepared_step import PreparedStep
from ooctrain.execution.settings import Settings
from ooctrain.models import stem_for
from ooctrain.sched.budget import trace_peak_bytes
from ooctrain.step.trace import Trace

OVERSUBSCRIPTION = 7.5
#: Of the budget; rounding to whole pieces of 2 MiB comes on top of the values.
VALUES_SHARE = 0.92
#: `auto` wants 20 s or so for this step; cut off after 2 it falls back to a plan a third as fast.
PLANNING_LIMIT_S = 20.0
#: Compared by `mapping`.
ALLOCATORS = ("va", "best-fit")
#: The search for the largest batch ends when it knows it to within this share.
CLOSE = 0.06


@dataclass(frozen=True, slots=True)
class Workload:
    """A network whose batch is to be found.

    Args:
        name: in the zoo, or "plain", for rehearsals.
        side: of its images, in pixels.
        classes: of its labels.
    """

    name: str = "resnet50"
    side: int = 224
    classes: int = 1000

    def trace(self, batch: int) -> tuple[Trace, Any]:
        """One training step with SGD, and the model."""
        oc.manual_seed(0)
        if self.name == PLAIN.name:
            model = PLAIN.build()
        else:
            model = oc.models.build(self.name, self.classes, stem_for(self.side, self.side))
        return oc.trace(model, (batch, 3, self.side, self.side), device="cuda"), model

    def batch_for(self, peak_bytes: float) -> int:
        """The largest batch whose step needs at most so much in-core."""
        small, large = (trace_peak_bytes(self.trace(batch)[0]) for batch in (8, 16))
        return int(8 + (peak_bytes - small) * 8 / (large - small))


@dataclass(frozen=True, slots=True)
class Sizes:
    """What is compared.

    Args:
        workload: the network.
        budget_bytes: of the small GPU that is stood for.
        small, large: batches: the largest that fits in-core, and the one that is 7.5 times too big.
    """

    workload: Workload
    budget_bytes: int
    small: int
    large: int


def sizes_for(workload: Workload, budget_bytes: int) -> Sizes:
    """The batches for a budget."""
    small, large = (
        workload.batch_for(share * budget_bytes) for share in (VALUES_SHARE, OVERSUBSCRIPTION)
    )
    return Sizes(workload, budget_bytes, max(1, small), max(2, large))


def settings(budget: int | None, planner: str, allocator: str = "va") -> Settings:
    """How the step is run."""
    return Settings(budget, planner, allocator, "cuda", time_limit_s=PLANNING_LIMIT_S)


def largest_batch(sizes: Sizes, how: Settings) -> tuple[int, PreparedStep | None]:
    """The largest batch that can be planned, found by halving, with its plan; 0: none can."""
    best: tuple[int, PreparedStep | None] = (0, None)
    too_large = sizes.large
    while (found := _planned(sizes.workload, too_large, how)) is not None:
        best, too_large = (too_large, found), 2 * too_large
    while too_large - best[0] > max(1, int(CLOSE * too_large)):
        middle = (best[0] + too_large) // 2
        found = _planned(sizes.workload, middle, how)
        if found is None:
            too_large = middle
        else:
            best = middle, found
    return best


def _planned(workload: Workload, batch: int, how: Settings) -> PreparedStep | None:
    try:
        return prepare(workload.trace(batch)[0], how)
    except (Infeasible, DoesNotFit):
        return None
