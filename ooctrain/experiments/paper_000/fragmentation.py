"""How much of the memory can a scheduler use? Paper 000, figure 3, by replays without a GPU.

The scheduler counts what the allocator grants (bytes, or whole chunks), but not the holes between
blocks, so its budget must be smaller than the physical memory. How much smaller is found by
planning and replaying, budget by budget. The results are, for a model, a batch size and an
allocator, the largest budget whose plan the allocator serves in an arena of the physical memory;
and the largest batch that can be trained at all.

Sources: paper 000, section 5.1, figure 3 and table 1. Departures: docs/papers.md. Read next:
`chunks.py`, the sweep over chunk sizes; `fragmentation_shown.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ooctrain.alloc.registry import AllocatorChoice, choose_dry
from ooctrain.api import step_trace
from ooctrain.errors import Infeasible, OutOfDeviceMemory
from ooctrain.execution.placement import reserved_within
from ooctrain.sched.planners.registry import get_planner
from ooctrain.sched.schedule import Plan
from ooctrain.step.presets import machine
from ooctrain.step.trace import Trace
from ooctrain.units import GIB, Granule

MACHINE = "v100-16gb-nvlink"
PHYSICAL_BYTES = 16 * GIB
#: As the authors' code: parameters swap like everything else.
PLANNER = "window:persistent=host"
#: The paper's baseline, with its framework's rounding; then the paper's way as printed.
BASELINE_ALLOCATOR, PAPER_VA = "best-fit-caching", "va-paper"
#: The baseline with PyTorch's rounding too; one arena without borders, and placing beforehand; the
#: authors' code; ours.
ALLOCATORS = (
    BASELINE_ALLOCATOR, "best-fit-caching:rules=pytorch", "best-fit", "first-fit",
    "first-fit-by-size", PAPER_VA, "va-nnabla", "va:chunk=2MiB",
)  # fmt: skip
QUICK_ALLOCATORS = (BASELINE_ALLOCATOR, PAPER_VA)
#: Paper 000's batch sizes of ResNet-50 from those on that do not fit in-core; then ours, then the
#: networks of its figures 4 and 5, from a batch that the paper trained with scheduling alone.
BATCHES = {
    "resnet50": (190, 256, 512, 928, 1120, 1248, 1440),
    "vgg19": (128, 256, 384),
    "resnet18": (512, 1024, 1536),
    "densenet121": (768, 1152),
    "pix2pixhd": (16, 32),
    "deeplabv3plus": (32, 64),
}
#: Of these the static allocators are not asked: they plan for minutes.
LARGE_MODELS = ("densenet121", "pix2pixhd", "deeplabv3plus")
QUICK_BATCHES = {"resnet50": (190, 512, 928)}
#: Table 1's last batch sizes of "Schedule" and of "Schedule + VA".
PAPER_LARGEST_BATCH = {BASELINE_ALLOCATOR: 928, PAPER_VA: 1440}
#: Budgets are searched in steps of this share of the physical memory.
STEPS = 32
#: A batch counts as trainable if one of these multiples of the planner's minimum fits.
TRIED_BUDGETS = (1.0, 1.15, 1.4)
BATCH_STEP = 32
SMALL_BATCH_STEPS = {"pix2pixhd": 2, "deeplabv3plus": 8}
MOST_BATCH = 1 << 14


@dataclass(frozen=True, slots=True)
class LargestBudget:
    """How much of the memory a planner can use.

    Args:
        model, batch, allocator: by name.
        budget_bytes: the largest that was found to fit; None: none does.
        peak_bytes: of the plan's ledger, as the scheduler counts it: in the allocator's granule.
        reserved_bytes: by the allocator, rounding and holes included.
        minimum_bytes: the planner's least budget.
        makespan_us: of the plan, simulated.
    """

    model: str
    batch: int
    allocator: str
    budget_bytes: int | None
    peak_bytes: int | None
    reserved_bytes: int | None
    minimum_bytes: int
    makespan_us: float | None

    @property
    def ratio(self) -> float | None:
        """Reserved / usable: 1 would be an allocator that costs nothing."""
        if self.budget_bytes is None or self.reserved_bytes is None or self.peak_bytes is None:
            return None
        return self.reserved_bytes / self.peak_bytes

    @property
    def images_per_s(self) -> float | None:
        """Speed, simulated."""
        return None if self.makespan_us is None else self.batch / self.makespan_us * 1e6


@dataclass(frozen=True, slots=True)
class LargestBatch:
    """The largest batch that can be trained.

    Args:
        model, allocator: by name.
        batch: in steps of `BATCH_STEP`; 0: none.
    """

    model: str
    allocator: str
    batch: int


class Bench:
    """A model's step at one batch size, planned under any budget; each plan is made once.

    Args:
        trace: rewritten.
        planner: by name with parameters.
    """

    def __init__(self, trace: Trace, planner: str = PLANNER):
        self.trace = trace
        self._planner, self._machine = get_planner(planner), machine(MACHINE)
        self._plans: dict[tuple[int, int], Plan] = {}

    def plan(self, budget_bytes: int, granule_bytes: int = 1) -> Plan:
        """The plan of a budget: whole variables, each rounded up to granules. Raises Infeasible."""
        key = budget_bytes, granule_bytes
        if key not in self._plans:
            self._plans[key] = self._planner.plan(
                self.trace, budget_bytes, self._machine, granule=Granule(granule_bytes, False)
            )
        return self._plans[key]

    def plan_for(self, choice: AllocatorChoice, budget_bytes: int) -> Plan:
        """The same in the granule of an allocator: what it rounds, the planner has counted."""
        return self.plan(budget_bytes, choice.granule.size_bytes)

    def reserved_bytes(self, budget_bytes: int, choice: AllocatorChoice) -> float:
        """What an allocator reserves for the plan of a budget; infinity if it never gets by."""
        plan = self.plan_for(choice, budget_bytes)
        try:
            return reserved_within(plan.schedule, plan.trace, choice, choice.budget_bytes)
        except OutOfDeviceMemory:
            return math.inf

    def minimum_bytes(self, choice: AllocatorChoice) -> int:
        """The least budget for which there is a plan in the allocator's granule."""
        try:
            self.plan_for(choice, 1)
        except Infeasible as refusal:
            return refusal.minimum_bytes
        return 1


def allocators_for(model: str, allocators: Sequence[str]) -> Sequence[str]:
    """Those of the allocators that a model is given to."""
    if model not in LARGE_MODELS:
        return allocators
    return [name for name in allocators if not name.startswith("first-fit")]


def batch_step(model: str) -> int:
    """In which steps a model's largest batch is searched."""
    return SMALL_BATCH_STEPS.get(model, BATCH_STEP)


def largest_budget(
    model: str, batch: int, allocators: Sequence[str], physical_bytes: int = PHYSICAL_BYTES,
    bench: Bench | None = None,
) -> list[LargestBudget]:  # fmt: skip
    """For each allocator the largest budget whose plan it places within the physical memory.

    Found by bisection in steps of 1/32 of the physical memory. Fragmentation is not monotone in the
    budget, so a larger one that happens to fit may be missed.
    """
    bench = bench or Bench(step_trace(model, batch))
    rows = []
    for name in allocators:
        choice = choose_dry(name, physical_bytes)
        least = bench.minimum_bytes(choice)

        def fits(budget: int, choice: AllocatorChoice = choice) -> bool:
            return bench.reserved_bytes(budget, choice) <= physical_bytes

        found = _largest(_budgets(least, physical_bytes), fits)
        if found is None:
            rows.append(LargestBudget(model, batch, name, None, None, None, least, None))
            continue
        plan, reserved = bench.plan_for(choice, found), int(bench.reserved_bytes(found, choice))
        rows.append(
            LargestBudget(
                model, batch, name, found, plan.peak_bytes, reserved, least, plan.makespan_us
            )
        )
    return rows


def largest_batches(
    model: str, allocators: Sequence[str], physical_bytes: int = PHYSICAL_BYTES,
    step: int = BATCH_STEP, planner: str = PLANNER,
) -> list[LargestBatch]:  # fmt: skip
    """For each allocator the largest batch, in steps, for which some budget's plan fits."""
    benches: dict[int, Bench] = {}

    def trains(batch: int, choice: AllocatorChoice) -> bool:
        if batch not in benches:
            benches[batch] = Bench(step_trace(model, batch), planner)
        least = benches[batch].minimum_bytes(choice)
        budgets = (int(least * factor) for factor in TRIED_BUDGETS)
        return any(
            benches[batch].reserved_bytes(budget, choice) <= physical_bytes
            for budget in budgets
            if budget <= physical_bytes
        )

    rows = []
    for name in allocators:
        choice = choose_dry(name, physical_bytes)
        low, high = 0, 16 * step
        while high < MOST_BATCH and trains(high, choice):
            low, high = high, 2 * high
        while high - low > step:
            middle = (low + high) // 2 // step * step
            low, high = (middle, high) if trains(middle, choice) else (low, middle)
        rows.append(LargestBatch(model, name, low))
    return rows


def budget_case(case: tuple[str, int, Sequence[str], int]) -> list[LargestBudget]:
    """`largest_budget` of (model, batch, allocators, physical bytes), for `spread`."""
    return largest_budget(*case)


def batch_case(case: tuple[str, Sequence[str], int, int]) -> list[LargestBatch]:
    """`largest_batches` of (model, allocators, physical bytes, step), for `spread`."""
    return largest_batches(*case)


def _budgets(minimum_bytes: int, physical_bytes: int) -> list[int]:
    """Budgets to choose from: the planner's minimum, and whole steps above it."""
    step = physical_bytes // STEPS
    above = range(minimum_bytes // step + 1, STEPS + 1)
    return [minimum_bytes] * (minimum_bytes <= physical_bytes) + [step * n for n in above]


def _largest(budgets: Sequence[int], fits: Callable[[int], bool]) -> int | None:
    """The largest of increasing budgets that fits, by bisection; None: not even the least."""
    if not budgets:
        return None
    if fits(budgets[-1]):
        return budgets[-1]
    # Where the search may begin: the least first, since it mostly fits.
    quarters = sorted({quarter * len(budgets) // 4 for quarter in range(4)})
    start = next((n for n in quarters if fits(budgets[n])), None)
    if start is None:
        return None
    low, high = start, len(budgets) - 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(budgets[middle]) else (low, middle)
    return budgets[low]
