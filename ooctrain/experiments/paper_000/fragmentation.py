"""Paper 000, figure 3: how much of the memory a scheduler can use, by replays without a GPU.

The scheduler counts what the allocator grants (bytes, or whole chunks), but not the holes between
blocks, so its budget must be smaller than the physical memory. How much smaller is found by
planning and replaying, budget by budget. The results are, for a model, a batch size and an
allocator, the largest budget whose plan the allocator serves in an arena of the physical memory;
and the largest batch that can be trained at all.

Sources: paper 000, section 5.1, figure 3 and table 1. Departures: docs/papers.md. Read next:
`table1.py`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from statistics import median
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from ooctrain.alloc import Request
from ooctrain.alloc.registry import AllocatorChoice, choose_dry
from ooctrain.alloc.replay import replay
from ooctrain.api import step_trace
from ooctrain.errors import (
    ConfigError,
    DoesNotFit,
    Infeasible,
    OoctrainError,
    OutOfDeviceMemory,
    failing_as,
)  # fmt: skip
from ooctrain.execution.placement import allocation_log, reserved_within
from ooctrain.experiments.bisected import between, largest
from ooctrain.experiments.reproducing import Wanted, print_title, write_figure
from ooctrain.experiments.spread import spread
from ooctrain.models import build
from ooctrain.optim import SGD
from ooctrain.plugins import fault_of_own_code
from ooctrain.report.charts import Curve, curves_svg, stacked_svg
from ooctrain.report.text import or_dash, plain_table
from ooctrain.sched.planners.registry import get_planner
from ooctrain.sched.planning.question import Question
from ooctrain.sched.schedule import Plan
from ooctrain.step.presets import machine
from ooctrain.step.trace import Trace
from ooctrain.train import Trainer
from ooctrain.units import GIB, KIB, MIB, Granule, format_bytes, format_us, per_second

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
        peak_bytes: peak of the plan's ledger, counted in the allocator's granule.
        reserved_bytes: by the allocator, rounding and holes included.
        minimum_bytes: the planner's least budget.
        makespan_us: makespan of the plan, simulated.
        error: what the allocator raised, in full; then only model, batch and allocator are known.
    """

    model: str
    batch: int
    allocator: str
    budget_bytes: int | None = None
    peak_bytes: int | None = None
    reserved_bytes: int | None = None
    minimum_bytes: int | None = None
    makespan_us: float | None = None
    error: str | None = None

    @property
    def ratio(self) -> float | None:
        """Reserved / usable: 1 would be an allocator that costs nothing."""
        if self.budget_bytes is None or self.reserved_bytes is None or self.peak_bytes is None:
            return None
        return self.reserved_bytes / self.peak_bytes

    @property
    def images_per_s(self) -> float | None:
        """Speed, simulated."""
        return None if self.makespan_us is None else per_second(self.batch, self.makespan_us)


@dataclass(frozen=True, slots=True)
class LargestBatch:
    """The largest batch that can be trained.

    Args:
        model, allocator: by name.
        batch: in steps of `BATCH_STEP`; 0: none.
        error: what the allocator raised, in full.
    """

    model: str
    allocator: str
    batch: int
    error: str | None = None


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
            granule = Granule(granule_bytes, False)
            question = Question(self.trace, budget_bytes, self._machine, granule)
            self._plans[key] = self._planner.plan(question)
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
            return refusal.minimum_bytes or 1
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
    choices = {name: choose_dry(name, physical_bytes) for name in allocators}
    faults: dict[str, str] = {}
    rows: dict[str, LargestBudget] = {}
    for name, choice in choices.items():
        with _others_go_on(name, faults):
            rows[name] = _largest_budget(model, batch, bench, choice, physical_bytes)
    failed = {name: LargestBudget(model, batch, name, error=text) for name, text in faults.items()}
    return [(rows | failed)[name] for name in choices]


def _largest_budget(
    model: str, batch: int, bench: Bench, choice: AllocatorChoice, physical_bytes: int
) -> LargestBudget:  # fmt: skip
    least = bench.minimum_bytes(choice)

    def fits(budget: int) -> bool:
        return bench.reserved_bytes(budget, choice) <= physical_bytes

    found = _largest(_budgets(least, physical_bytes), fits)
    if found is None:
        return LargestBudget(model, batch, choice.name, minimum_bytes=least)
    plan, reserved = bench.plan_for(choice, found), int(bench.reserved_bytes(found, choice))
    return LargestBudget(
        model, batch, choice.name, found, plan.peak_bytes, reserved, least, plan.makespan_us
    )


@contextmanager
def _others_go_on(name: str, faults: dict[str, str]) -> Iterator[None]:
    """An allocator that raises is noted in `faults`; what the command should not have been given
    still ends it."""
    try:
        with failing_as(f"allocator {name!r}"):
            yield
    except ConfigError:
        raise
    except OoctrainError as error:
        faults[name] = str(fault_of_own_code(error, [name]) or error)


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

    def most_steps(choice: AllocatorChoice) -> int:
        return largest(lambda steps: trains(step * steps, choice), MOST_BATCH // step, first=16)

    choices = {name: choose_dry(name, physical_bytes) for name in allocators}
    faults: dict[str, str] = {}
    found = dict.fromkeys(choices, 0)
    for name, choice in choices.items():
        with _others_go_on(name, faults):
            found[name] = step * most_steps(choice)
    return [LargestBatch(model, name, most, faults.get(name)) for name, most in found.items()]


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
    return budgets[between(lambda n: fits(budgets[n]), start, len(budgets) - 1)]


# What a chunk size costs: small chunks are many mappings, large ones are rounded-up memory. A
# replay gives the memory that rounding wastes, and the mapping changes of the first and of a later
# step; the cpu device gives the time of real steps. Paper 000 bounds the waste by N_max chunks
# (equation 2) and found 40 MB by experiment; this is that experiment, once with one list for all
# chunks, and once with a list for each, planned in its chunks (`chunk_trades`): what rounding
# takes, prefetches cannot have. Source: paper 000, section 4, last paragraph.

CHUNKS = tuple(64 * KIB << n for n in range(11))  # 64 KiB to 64 MiB
QUICK_CHUNKS = (64 * KIB, MIB, 16 * MIB)
MODEL, BATCH, BUDGET_BYTES = "resnet50", 928, 12 * GIB
#: A quarter of the way from the least to the most; in bytes, since a percentage grows with chunks.
DEVICE_MODEL, DEVICE_BATCH, DEVICE_BUDGET = "resnet18", 64, "200MiB"
WARM_UP_STEPS, TIMED_STEPS, QUICK_STEPS = 1, 4, 2
#: The paper's trade-off: the least that its GPU maps, the paper's choice, and one in between.
TRADED_CHUNKS, QUICK_TRADED = (2 * MIB, 10 * MIB, 40 * MIB), (2 * MIB, 40 * MIB)
TRADED_BATCHES, QUICK_TRADED_BATCHES = (190, 512, 928, 1440), (928,)


@dataclass(frozen=True, slots=True)
class ChunkCost:
    """What one chunk size costs.

    Args:
        allocator: by name, with the chunk.
        chunk_bytes: its size.
        requested_bytes, reserved_bytes: at the peaks, replayed.
        live_blocks: the most at one time: N_max of equation 2.
        first_maps, later_maps: mapping changes of the first step and of the last one logged.
        step_us: a real step on the cpu device; None: not measured, or it does not fit there.
    """

    allocator: str
    chunk_bytes: int
    requested_bytes: int
    reserved_bytes: int
    live_blocks: int
    first_maps: int
    later_maps: int
    step_us: float | None = None

    @property
    def wasted_bytes(self) -> int:
        """What rounding costs at the peak."""
        return self.reserved_bytes - self.requested_bytes


@dataclass(frozen=True, slots=True)
class ChunkTrade:
    """What a chunk size costs a step that was planned in it.

    Args:
        batch, chunk_bytes: which.
        live_blocks: N_max of equation 2, the most variables at one time.
        wasted_bytes: what rounding costs at the peak.
        images_per_s: simulated, without what mapping costs.
        maps: mapping changes of a later step as printed: each request is mapped anew.
    """

    batch: int
    chunk_bytes: int
    live_blocks: int
    wasted_bytes: int
    images_per_s: float
    maps: int


def chunk_trades(
    batches: Sequence[int] = TRADED_BATCHES, chunks: Sequence[int] = TRADED_CHUNKS,
    model: str = MODEL, physical_bytes: int = PHYSICAL_BYTES,
) -> list[ChunkTrade]:  # fmt: skip
    """Plans each batch in each chunk size, and requests it as paper 000 prints it."""
    trades = []
    for batch in batches:
        bench = Bench(step_trace(model, batch))
        for chunk in chunks:
            plan = bench.plan(physical_bytes, chunk)
            log = allocation_log(plan.trace, plan.schedule, physical_bytes)
            found = replay(log, f"{PAPER_VA}:chunk={chunk}")
            stats = found.stats
            trades.append(
                ChunkTrade(
                    batch, chunk, most_live(log.requests),
                    stats.peak_reserved_bytes - stats.peak_requested_bytes,
                    per_second(batch, plan.makespan_us), found.maps_by_step[-1],
                )
            )  # fmt: skip
    return trades


def replay_chunks(
    chunks: Sequence[int] = CHUNKS, allocator: str = "va", model: str = MODEL, batch: int = BATCH,
    budget_bytes: int = BUDGET_BYTES,
) -> list[ChunkCost]:  # fmt: skip
    """Replays one schedule with each chunk size."""
    plan = Bench(step_trace(model, batch)).plan(budget_bytes)
    log = allocation_log(plan.trace, plan.schedule, budget_bytes)
    costs = []
    for chunk in chunks:
        name = f"{allocator}:chunk={chunk}"
        found = replay(log, name)
        stats, maps = found.stats, found.maps_by_step
        costs.append(
            ChunkCost(
                name, chunk, stats.peak_requested_bytes, stats.peak_reserved_bytes,
                most_live(log.requests), maps[0], maps[-1],
            )
        )  # fmt: skip
    return costs


def most_live(requests: Iterable[Request]) -> int:
    """The most blocks at one time."""
    live = most = 0
    for request in requests:
        live += (request.op in ("allocate", "reserve")) - (request.op == "free")
        most = max(most, live)
    return most


def time_chunks(
    chunks: Sequence[int] = CHUNKS, steps: int = TIMED_STEPS, threads: int | None = None
) -> dict[int, float]:
    """Median time of real steps on the cpu device, in us, for each chunk size that fits.

    Two rounds through all sizes: the speed of a machine that others use too wanders.
    """
    times: dict[int, list[float]] = {}
    for chunk in [*chunks, *reversed(chunks)]:
        try:
            found = _step_times(f"va:chunk={chunk}", steps, threads)
        except (Infeasible, DoesNotFit):
            continue
        times.setdefault(chunk, []).extend(found)
    return {chunk: median(found) for chunk, found in times.items()}


def _step_times(allocator: str, steps: int, threads: int | None) -> list[float]:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((DEVICE_BATCH, 3, 32, 32), np.float32)
    y = np.arange(DEVICE_BATCH) % 10
    times = []
    with _make_trainer(allocator, threads) as trainer:
        for number in range(WARM_UP_STEPS + steps):
            started = time.perf_counter()
            trainer.step(x, y)
            if number >= WARM_UP_STEPS:
                times.append((time.perf_counter() - started) * 1e6)
    return times


def _make_trainer(allocator: str, threads: int | None) -> Trainer:
    model = build(DEVICE_MODEL, 10, "cifar")
    return Trainer(
        model, optimizer=SGD(model.parameters(), lr=1e-3, momentum=0.9), budget=DEVICE_BUDGET,
        planner="window", allocator=allocator, threads=threads, machine="cpu-generic",
    )  # fmt: skip


# `ooctrain reproduce fragmentation`: tables, a figure, numbers; each row is printed as soon as it
# is known, since the whole takes minutes. As in the paper, the distance between the line of the
# largest budget and the line of the physical memory is the cost of the allocator.

COLUMN_WIDTHS = (13, 5, 17, 15, 8, 5, 12)


def fragmentation(wanted: Wanted, console: Console) -> Mapping[str, Any]:
    """Paper 000, figure 3: how much memory a planner can use."""
    names = QUICK_ALLOCATORS if wanted.quick else ALLOCATORS
    allocators = wanted.allocators or names
    batches = QUICK_BATCHES if wanted.quick else BATCHES
    physical = wanted.physical_bytes
    print_title(console, f"What a planner can use of {format_bytes(physical)}")
    processes = 1 if wanted.quick else None
    cases = [
        (model, batch, allocators_for(model, allocators), physical)
        for model, sizes in batches.items()
        for batch in sizes
    ]
    budgets: list[LargestBudget] = []
    for rows in spread(budget_case, cases, processes, wanted.keep):
        console.print(budget_table(rows, header=not budgets))
        budgets += rows
    print_title(console, "\nThe largest batch that can be trained")
    models = [
        (model, allocators_for(model, allocators), physical,
         batch_step(model))
        for model in batches
    ]  # fmt: skip
    found = spread(batch_case, models, processes, wanted.keep)
    largest = [row for rows in found for row in rows]
    console.print(batch_table(largest))
    faults = {row.allocator: row.error for row in (*largest, *budgets) if row.error}
    for name, fault in faults.items():
        console.print(f"\n{name} fails:\n{fault}", soft_wrap=True, markup=False)
    chunks = _chunks(wanted.quick, console)
    trades = _trades(wanted, console)
    write_figure(wanted, console, fragmentation_figure(budgets, chunks, physical, allocators))
    return {
        "planner": PLANNER,
        "machine": MACHINE,
        "physical_bytes": physical,
        "budgets": [
            {**asdict(row), "ratio": row.ratio, "images_per_s": row.images_per_s} for row in budgets
        ],
        "largest_batches": [asdict(row) for row in largest],
        "chunks": [{**asdict(row), "wasted_bytes": row.wasted_bytes} for row in chunks],
        "chunk_trades": [asdict(row) for row in trades],
    }


def _chunks(quick: bool, console: Console) -> Sequence[ChunkCost]:
    sizes = QUICK_CHUNKS if quick else CHUNKS
    about = (
        f" ({MODEL}, batch {BATCH}, "
        f"{format_bytes(BUDGET_BYTES)}; real steps: {DEVICE_MODEL}, batch "
        f"{DEVICE_BATCH}, {DEVICE_BUDGET})"
    )
    print_title(console, "\nChunk sizes of va", about)
    steps = QUICK_STEPS if quick else TIMED_STEPS
    times = time_chunks(sizes if quick else sizes[::2], steps=steps)
    replayed = replay_chunks(sizes, "va", MODEL, BATCH, BUDGET_BYTES)
    rows = [replace(row, step_us=times.get(row.chunk_bytes)) for row in replayed]
    console.print(chunk_table(rows))
    return rows


def _trades(wanted: Wanted, console: Console) -> Sequence[ChunkTrade]:
    quick = wanted.quick
    batches = QUICK_TRADED_BATCHES if quick else TRADED_BATCHES
    sizes = QUICK_TRADED if quick else TRADED_CHUNKS
    print_title(
        console,
        "\nChunks that the planner counts in",
        f" ({MODEL}, {format_bytes(wanted.physical_bytes)}, mapped as printed)",
    )
    trades = chunk_trades(batches, sizes, MODEL, wanted.physical_bytes)
    console.print(trade_table(trades))
    return trades


def trade_table(rows: Sequence[ChunkTrade]) -> Table:
    """A line for each batch and chunk size."""
    table = plain_table(
        "batch", "chunk", "N_max", "rounding", "bound N c", "maps a step", "images/s"
    )
    for row in rows:
        table.add_row(
            str(row.batch), format_bytes(row.chunk_bytes), str(row.live_blocks),
            format_bytes(row.wasted_bytes), format_bytes(row.live_blocks * row.chunk_bytes),
            str(row.maps), f"{row.images_per_s:.0f}",
        )  # fmt: skip
    return table


def budget_table(rows: Sequence[LargestBudget], *, header: bool = True) -> Table:
    """A line for each batch and allocator; columns have fixed widths, so that tables can be printed
    below each other."""
    table = plain_table(
        "model", "batch", "allocator", "usable", "reserved", "ratio", "images/s",
        left=("model", "allocator"),
    )  # fmt: skip
    table.show_header = header
    for column, width in zip(table.columns, COLUMN_WIDTHS, strict=True):
        column.min_width = width
    last = ("", 0)
    for row in rows:
        head = (row.model, row.batch)
        shown = [row.model, str(row.batch)] if head != last else ["", ""]
        last = head
        table.add_row(
            *shown, row.allocator, _size(row.budget_bytes), _size(row.reserved_bytes),
            or_dash(row.ratio, ".2f"),
            _speed(row),
        )  # fmt: skip
    return table


def batch_table(rows: Sequence[LargestBatch]) -> Table:
    """The largest batch of each model and allocator, next to the paper's."""
    table = plain_table(
        "model", "allocator", "largest batch", "of the baseline's", "paper",
        left=("model", "allocator"),
    )  # fmt: skip
    base = {row.model: row.batch for row in rows if row.allocator == BASELINE_ALLOCATOR}
    for row in rows:
        paper = PAPER_LARGEST_BATCH.get(row.allocator) if row.model == "resnet50" else None
        share = row.batch / base[row.model] if base.get(row.model) else None
        table.add_row(
            row.model, row.allocator, "fails" if row.error else str(row.batch),
            "-" if share is None else f"{share:.2f} x", or_dash(paper),
        )  # fmt: skip
    return table


def chunk_table(rows: Sequence[ChunkCost]) -> Table:
    """A line for each chunk size."""
    table = plain_table(
        "chunk", "rounding", "bound N c", "maps, 1st step", "maps, later", "step on cpu"
    )
    for row in rows:
        table.add_row(
            format_bytes(row.chunk_bytes), format_bytes(row.wasted_bytes),
            format_bytes(row.live_blocks * row.chunk_bytes), str(row.first_maps),
            str(row.later_maps), "-" if row.step_us is None else format_us(row.step_us),
        )  # fmt: skip
    return table


def fragmentation_figure(
    rows: Sequence[LargestBudget], chunks: Sequence[ChunkCost], physical_bytes: int,
    allocators: Sequence[str],
) -> str:  # fmt: skip
    """SVG: for each model what a planner can use, and below it chunk sizes."""
    pictures = []
    for model in dict.fromkeys(row.model for row in rows):
        found = [row for row in rows if row.model == model]
        batches = sorted({row.batch for row in found})
        asked = [name for name in allocators if any(row.allocator == name for row in found)]
        curves = [_promised(name, found, allocators.index(name)) for name in asked]
        limit = [(batch, physical_bytes / GIB) for batch in batches]
        pictures.append(
            curves_svg(
                f"{model}: what a planner can use of {format_bytes(physical_bytes)}",
                [*curves, Curve("there is", limit, dashed=True, kind=len(allocators))],
                axes=("batch (no point: it cannot be trained)", "GiB"),
            )
        )
    if chunks:
        pictures.append(_chunk_figure(chunks))
    return stacked_svg(pictures)


def _promised(allocator: str, rows: Sequence[LargestBudget], kind: int) -> Curve:
    """The curve of one allocator, in one colour for all networks."""
    points = [
        (row.batch, None if row.budget_bytes is None else row.budget_bytes / GIB)
        for row in rows
        if row.allocator == allocator
    ]
    return Curve(allocator, points, kind=kind)


def _chunk_figure(chunks: Sequence[ChunkCost]) -> str:
    waste = [(row.chunk_bytes, row.wasted_bytes / GIB) for row in chunks]
    maps = [(row.chunk_bytes, row.first_maps / 100) for row in chunks]
    return curves_svg(
        "Chunk size: memory that rounding wastes, and mapping changes of the first step",
        [Curve("rounding, GiB", waste), Curve("mapping changes, hundreds", maps)],
        axes=("chunk", "GiB; hundreds"), doubling=True,
        x_number=lambda size: format_bytes(int(size)),
    )  # fmt: skip


def _size(size_bytes: int | None) -> str:
    return "-" if size_bytes is None else format_bytes(size_bytes)


def _speed(row: LargestBudget) -> str:
    if row.error:
        return "fails"
    return "does not fit" if row.images_per_s is None else f"{row.images_per_s:.0f}"
