"""Paper 000, figures 4 and 5: DenseNet, Pix2PixHD and DeepLabv3+ at batches that do not fit.

For each network and the memory of a device, this finds the largest batch in-core, with scheduling
and with virtual addressing; and at these batches the images per second and the memory that each
method takes. It is table 1 for other networks and uses its methods and its cells. Only the batches
are new: the paper gives them as factors, so they are searched for.

Source: paper 000, section 5.2, figures 4 and 5. Departures: docs/papers.md. Read next: `table1.py`,
`fragmentation.py`; `architectures_shown.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isqrt

from ooctrain.experiments.paper_000.fragmentation import BASELINE_ALLOCATOR, largest_batches
from ooctrain.experiments.paper_000.table1 import (
    BASELINE,
    NNABLA_VA,
    OUR_VA,
    OURS,
    SCHEDULE,
    SCHEDULE_VA,
    MethodCell,
    cells_of,
    method_named,
)

WITH_VA = (SCHEDULE_VA, NNABLA_VA, OUR_VA)
METHODS = tuple(method_named(name) for name in (BASELINE, SCHEDULE, *WITH_VA, OURS))
QUICK_METHODS = METHODS[:-1]


@dataclass(frozen=True, slots=True)
class FigureNetwork:
    """A network of the figures.

    Args:
        model: by name, on images of its usual size, which are the paper's.
        printed_in_core: the paper's largest batch in-core.
        printed_factor: how many times that the schedule trains.
        batch_step: in which steps batches are searched.
    """

    model: str
    printed_in_core: int
    printed_factor: float
    batch_step: int


NETWORKS = (
    FigureNetwork("densenet121", 512, 1.5, 32),
    FigureNetwork("pix2pixhd_perceptual", 4, 4.0, 2),
    FigureNetwork("deeplabv3plus_xception65", 6, 5.3, 4),
    FigureNetwork("deeplabv3plus", 6, 5.3, 8),
)
QUICK_NETWORKS = (FigureNetwork("pix2pixhd_perceptual", 4, 4.0, 4),)
#: How many times the schedule's batch virtual addressing trains.
PRINTED_VA_FACTORS = (1.5, 2.0)


@dataclass(frozen=True, slots=True)
class Largest:
    """The largest batch of a network that a method trains; 0: none."""

    model: str
    method: str
    batch: int


def largest(case: tuple[FigureNetwork, int]) -> list[Largest]:
    """In-core, with scheduling, and with virtual addressing, of (network, physical bytes)."""
    network, physical_bytes = case
    model, step = network.model, network.batch_step
    (in_core,) = largest_batches(model, (BASELINE_ALLOCATOR,), physical_bytes, 1, "keep-all")
    methods = (SCHEDULE, *WITH_VA)
    allocators = [method_named(name).allocator for name in methods]
    swapped = largest_batches(model, allocators, physical_bytes, step)
    return [
        Largest(model, method, row.batch)
        for method, row in zip((BASELINE, *methods), (in_core, *swapped), strict=True)
    ]


def batches_of(found: Sequence[Largest]) -> list[int]:
    """Half of what fits in-core, what fits, the largest of the others as in print, and one in
    between."""
    in_core, schedule, va = (row.batch for row in found[:3])
    between = isqrt(in_core * schedule)
    return sorted({batch for batch in (in_core // 2, in_core, between, schedule, va) if batch})


def cells(case: tuple[str, int, int, bool]) -> list[MethodCell]:
    """The cells of (model, batch, physical bytes, whether quick), one for each method."""
    model, batch, physical_bytes, quick = case
    return cells_of(model, batch, physical_bytes, QUICK_METHODS if quick else METHODS)


def factors(found: Sequence[Largest]) -> Mapping[str, float | None]:
    """{method: how many times the batch}: the schedule's of the baseline's, virtual addressing's of
    the schedule's."""
    batches = {row.method: row.batch for row in found}
    base = {name: BASELINE if name == SCHEDULE else SCHEDULE for name in batches}
    return {
        name: batch / batches[base[name]] if batches[base[name]] else None
        for name, batch in batches.items()
        if name != BASELINE
    }


def printed_factor(network: FigureNetwork, method: str) -> str:
    """The paper's factor of a method, in words."""
    if method == SCHEDULE:
        return f"{network.printed_factor:g} x"
    low, high = PRINTED_VA_FACTORS
    return f"{low:g} to {high:g} x" if method == SCHEDULE_VA else ""


def printed_batch(network: FigureNetwork, method: str) -> int | None:
    """The paper's batch, where it follows from what is printed."""
    if method == BASELINE:
        return network.printed_in_core
    return round(network.printed_in_core * network.printed_factor) if method == SCHEDULE else None
