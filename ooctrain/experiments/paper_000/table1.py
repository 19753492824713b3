"""Paper 000, table 1: ResNet-50 at batches up to 7.5 times what fits, and the speed that is kept.

A method is a planner and an allocator. For each batch and method this finds the images per second
of the fastest step that both get into the memory of the device. The planner's budget is what the
allocator can place, which the experiment on fragmentation finds, so a method that fragments plans
with less memory and swaps more. Speeds are simulated from roofline times. The share of the in-core
speed that a method keeps depends on the ratio of the link's rate to the arithmetic's, so compare
shares only where this ratio is alike.

Source: paper 000, section 5.1, table 1. Departures: docs/papers.md. Read next: `fragmentation.py`,
whose search this is; `table1_shown.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from ooctrain.alloc.registry import choose_dry
from ooctrain.api import step_trace
from ooctrain.errors import Infeasible
from ooctrain.execution.placement import reserved_peak
from ooctrain.experiments.paper_000.fragmentation import MACHINE, PLANNER, Bench, largest_budget
from ooctrain.rewrite import apply_rewrites
from ooctrain.rewrite.pin_small import pinning_for
from ooctrain.sched.bounds.closed import compute_us
from ooctrain.sched.budget import with_region
from ooctrain.sched.planners.registry import get_planner
from ooctrain.sched.planning.beside_region import plan_beside
from ooctrain.sched.planning.question import Question
from ooctrain.step.presets import machine
from ooctrain.step.trace import Trace

MODEL = "resnet50"
BATCHES = (64, 128, 190, 256, 512, 928, 1120, 1248, 1440)
QUICK_BATCHES = (190, 928)
BEST_FIT, VA = "best-fit", "va:chunk=2MiB"
BASELINE, LMS, SCHEDULE, SCHEDULE_VA = "baseline", "LMS", "schedule", "schedule + VA"
OURS = "auto + va"
#: Behind the titles of tables: the rows are named as in print, the allocator is another.
ABOUT_VA = "; VA here is va, which maps each chunk once: ours, not the paper's"


def _printed(*images_per_s: int) -> Mapping[int, int]:
    """A row of the table: its first batch sizes; an x follows."""
    return MappingProxyType(dict(zip(BATCHES, images_per_s, strict=False)))


@dataclass(frozen=True, slots=True)
class Method:
    """A row of the table.

    Args:
        name: of the row.
        planner, allocator: by name.
        printed: {batch: images per second} of the paper; empty: the paper has no such row.
        printed_in_core: the paper's best in-core speed on the same machine, images per second.
    """

    name: str
    planner: str
    allocator: str
    printed: Mapping[int, int]
    printed_in_core: int


METHODS = (
    Method(BASELINE, "keep-all", BEST_FIT, _printed(336, 492, 581), 581),
    Method(LMS, "lms-auto", BEST_FIT, _printed(235, 255, 241, 236, 209, 137), 258),
    Method(SCHEDULE, PLANNER, BEST_FIT, _printed(320, 439, 533, 559, 457, 400), 581),
    Method(SCHEDULE_VA, PLANNER, VA, _printed(304, 389, 415, 424, 446, 409, 398, 347, 321), 581),
    Method(OURS, "auto", VA, _printed(), 581),
)


@dataclass(frozen=True, slots=True)
class MethodCell:
    """What a method makes of a batch; None where it cannot be trained.

    Args:
        method, batch: which.
        budget_bytes: what the planner was given; reserved_bytes: what the allocator took.
        images_per_s: simulated.
        compute_images_per_s: of the calls alone, without any stall or swap.
    """

    method: str
    batch: int
    budget_bytes: int | None
    reserved_bytes: int | None
    images_per_s: float | None
    compute_images_per_s: float


def batch_cells(case: tuple[str, int, int]) -> list[MethodCell]:
    """The cells of (model, batch, physical bytes), in the order of `METHODS`."""
    return cells_of(*case, METHODS)


def cells_of(
    model: str, batch: int, physical_bytes: int, methods: Sequence[Method]
) -> list[MethodCell]:
    """What some methods make of a batch, in their order."""
    step = step_trace(model, batch)
    compute = batch / compute_us(step, machine(MACHINE)) * 1e6
    benches: dict[str, Bench] = {}
    cells = []
    for method in methods:
        if method.name == OURS:
            found = _as_trained(step, method, physical_bytes)
        else:
            bench = benches.setdefault(method.planner, Bench(step, method.planner))
            (row,) = largest_budget(model, batch, (method.allocator,), physical_bytes, bench)
            found = (row.budget_bytes, row.reserved_bytes, row.makespan_us)
        budget, reserved, makespan_us = found
        speed = None if makespan_us is None else batch / makespan_us * 1e6
        cells.append(MethodCell(method.name, batch, budget, reserved, speed, compute))
    return cells


def in_core_images_per_s(cells: Iterable[MethodCell]) -> float | None:
    """The best speed without swapping; None where no batch fits in-core."""
    found = [cell.images_per_s for cell in cells if cell.method == BASELINE]
    return max((speed for speed in found if speed is not None), default=None)


def speed_kept(cell: MethodCell, in_core: float | None) -> float | None:
    """The share of the best in-core speed."""
    return None if cell.images_per_s is None or not in_core else cell.images_per_s / in_core


def printed_kept(method: Method, batch: int) -> float | None:
    """The same of the paper's figures."""
    speed = method.printed.get(batch)
    return None if speed is None else speed / method.printed_in_core


def largest_batch(cells: Sequence[MethodCell], method: str) -> int | None:
    """The largest of the batches that a method trains."""
    trained = [c.batch for c in cells if c.method == method and c.images_per_s is not None]
    return max(trained, default=None)


def method_named(name: str) -> Method:
    """The method of a cell."""
    return next(method for method in METHODS if method.name == name)


def _as_trained(
    step: Trace, method: Method, physical_bytes: int
) -> tuple[int | None, int | None, float | None]:
    """(budget, reserved bytes, makespan in us), planned as `ooctrain train` does.

    The ledger counts in chunks, and small parameters lie in a region of their own.
    """
    choice = choose_dry(method.allocator, physical_bytes)
    pinned = apply_rewrites(step, pinning_for(step, choice.granule))
    granule = with_region(choice.granule, pinned)
    planner, where = get_planner(method.planner), machine(MACHINE)
    try:
        plan = plan_beside(planner, Question(pinned, physical_bytes, where, granule))
    except Infeasible:
        return None, None, None
    reserved = reserved_peak(plan.schedule, plan.trace, choice)
    if reserved > physical_bytes:
        return None, None, None
    return physical_bytes, reserved, plan.makespan_us
