"""Paper 000, table 1: ResNet-50 at up to 7.5 times the batch that fits, with the speed kept.

A method is a planner and an allocator. For each batch and method this finds the images per second
of the fastest step that both get into the memory of the device. The planner's budget is what the
allocator can place, which the experiment on fragmentation finds, so a method that fragments plans
with less memory and swaps more. Speeds are simulated from roofline times, on the preset and on two
machines that are fitted to the paper: which method wins depends on how its link is read. Next to
them is a speed that no list exceeds which only offloads, by an LP.

Source: paper 000, section 5.1, table 1. Departures: docs/papers.md. Read next: `fragmentation.py`,
whose search this is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from types import MappingProxyType
from typing import Any

from rich.console import Console
from rich.table import Table

from ooctrain.alloc.registry import choose_dry
from ooctrain.api import step_trace
from ooctrain.errors import Infeasible
from ooctrain.execution.placement import reserved_peak
from ooctrain.experiments.bisected import bisected
from ooctrain.experiments.paper_000.fragmentation import (
    BASELINE_ALLOCATOR,
    MACHINE,
    PAPER_VA,
    PLANNER,
    Bench,
    largest_budget,
)
from ooctrain.experiments.reproducing import Wanted, print_title, write_figure
from ooctrain.experiments.spread import spread
from ooctrain.report.charts import Curve, curves_svg, stacked_svg
from ooctrain.report.text import plain_table
from ooctrain.rewrite import apply_rewrites
from ooctrain.rewrite.pin_small import pinning_for
from ooctrain.sched.bounds.closed import compute_us
from ooctrain.sched.bounds.lp_bound import fluid_bound
from ooctrain.sched.budget import with_region
from ooctrain.sched.planners.keep_all import KeepAll
from ooctrain.sched.planners.registry import get_planner
from ooctrain.sched.planning.planner import plan_excluding
from ooctrain.sched.planning.question import Question
from ooctrain.sched.schedule import Plan
from ooctrain.sched.simulate import simulate
from ooctrain.step.machine import Machine
from ooctrain.step.presets import GB, machine
from ooctrain.step.trace import Trace
from ooctrain.units import per_second

# The cells of the table.

MODEL = "resnet50"
BATCHES = (64, 128, 190, 256, 512, 928, 1120, 1248, 1440)
QUICK_BATCHES = (190, 928)
NNABLA_VA, VA = "va-nnabla", "va:chunk=2MiB"
BASELINE, LMS, SCHEDULE, SCHEDULE_VA = "baseline", "LMS", "schedule", "schedule + VA"
OUR_VA, OURS = "va", "auto + va"
#: Behind the titles of tables.
ABOUT_VA = "; VA is va-paper, as printed; va-nnabla is its authors' code, va ours"


def _printed(*images_per_s: int) -> Mapping[int, int]:
    """A row of the table: its first batch sizes; an x follows."""
    return MappingProxyType(dict(zip(BATCHES, images_per_s, strict=False)))


@dataclass(frozen=True, slots=True)
class Method:
    """A row of the table.

    Args:
        name: name of the row.
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
    Method(BASELINE, "keep-all", BASELINE_ALLOCATOR, _printed(336, 492, 581), 581),
    Method(LMS, "lms-auto", BASELINE_ALLOCATOR, _printed(235, 255, 241, 236, 209, 137), 258),
    Method(SCHEDULE, PLANNER, BASELINE_ALLOCATOR, _printed(320, 439, 533, 559, 457, 400), 581),
    Method(
        SCHEDULE_VA, PLANNER, PAPER_VA,
        _printed(304, 389, 415, 424, 446, 409, 398, 347, 321), 581,
    ),
    Method(NNABLA_VA, PLANNER, NNABLA_VA, _printed(), 581),
    Method(OUR_VA, PLANNER, VA, _printed(), 581),
    Method(OURS, "auto", VA, _printed(), 581),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class MethodCell:
    """What a method makes of a batch; None where it cannot be trained.

    Args:
        machine, method, batch: which.
        budget_bytes: what the planner was given; reserved_bytes: what the allocator took.
        images_per_s: simulated.
        compute_images_per_s: speed of the calls alone, without any stall or swap.
    """

    machine: str
    method: str
    batch: int
    budget_bytes: int | None
    reserved_bytes: int | None
    images_per_s: float | None
    compute_images_per_s: float


@dataclass(frozen=True, slots=True)
class OffloadBound:
    """What no list that only offloads exceeds on a machine, whatever the allocator."""

    machine: str
    batch: int
    images_per_s: float


@dataclass(frozen=True, slots=True)
class _Found:
    """A plan that an allocator serves."""

    budget_bytes: int
    reserved_bytes: int
    plan: Plan


def batch_cells(case: tuple[str, int, int]) -> list[MethodCell]:
    """The cells of (model, batch, physical bytes), machine by machine, method by method."""
    return cells_of(*case, METHODS, machines())


def offload_bounds(case: tuple[str, int, int]) -> list[OffloadBound]:
    """What no list that only offloads exceeds for (model, batch, physical bytes)."""
    model, batch, physical_bytes = case
    step, found = step_trace(model, batch), []
    for where in machines():
        bound = fluid_bound(step, physical_bytes, where, recompute=False)
        if bound is not None:
            found.append(OffloadBound(where.name, batch, per_second(batch, bound.makespan_us)))
    return found


def cells_of(
    model: str, batch: int, physical_bytes: int, methods: Sequence[Method],
    wheres: Sequence[Machine] = (),
) -> list[MethodCell]:  # fmt: skip
    """What some methods make of a batch on some machines, in their order; on the preset alone
    where none is given.

    All plans but auto's depend on sizes alone, so they are made once and timed on each machine. The
    one of auto, which is not a row of the paper and takes longest to find, is made for the first.
    """
    step = step_trace(model, batch)
    wheres = wheres or (machine(MACHINE),)
    benches: dict[str, Bench] = {}
    found: dict[str, _Found | None] = {}
    for method in methods:
        if method.name == OURS:
            found[OURS] = _as_trained(step, method, physical_bytes, wheres[0])
        else:
            bench = benches.setdefault(method.planner, Bench(step, method.planner))
            found[method.name] = _placed(bench, method, batch, physical_bytes)
    return [
        _cell(where, method, found[method.name], batch, per_second(batch, compute_us(step, where)))
        for where in wheres
        for method in methods
        if method.name != OURS or where == wheres[0]
    ]


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


def _cell(
    where: Machine, method: Method, found: _Found | None, batch: int, compute_images_per_s: float
) -> MethodCell:
    """A plan timed on a machine."""
    head = where.name, method.name, batch
    if found is None:
        return MethodCell(*head, None, None, None, compute_images_per_s)
    time_us = simulate(found.plan.schedule, found.plan.trace, where).makespan_us
    return MethodCell(
        *head, found.budget_bytes, found.reserved_bytes, per_second(batch, time_us),
        compute_images_per_s,
    )  # fmt: skip


def _placed(bench: Bench, method: Method, batch: int, physical_bytes: int) -> _Found | None:
    """The plan of the largest budget that the method's allocator serves."""
    (row,) = largest_budget("", batch, (method.allocator,), physical_bytes, bench)
    if row.budget_bytes is None or row.reserved_bytes is None:
        return None
    plan = bench.plan_for(choose_dry(method.allocator, physical_bytes), row.budget_bytes)
    return _Found(row.budget_bytes, row.reserved_bytes, plan)


def _as_trained(step: Trace, method: Method, physical_bytes: int, where: Machine) -> _Found | None:
    """Planned as `ooctrain train` does.

    The ledger counts in chunks, and small parameters lie in a region of their own.
    """
    choice = choose_dry(method.allocator, physical_bytes)
    pinned = apply_rewrites(step, pinning_for(step, choice.granule))
    granule = with_region(choice.granule, pinned)
    planner = get_planner(method.planner)
    try:
        plan = plan_excluding(planner, Question(pinned, physical_bytes, where, granule))
    except Infeasible:
        return None
    reserved = reserved_peak(plan.schedule, plan.trace, choice)
    return None if reserved > physical_bytes else _Found(physical_bytes, reserved, plan)


# The machines. What a method keeps of the in-core speed depends on the ratio of the link's rate to
# the arithmetic's alone. The paper prints one speed without swapping, 581 images/s at batch 190,
# and a link that can be read in two ways: "two NVLinks (each can transfer memory at 50GB/s)" are 50
# or 100 GB/s. So the arithmetic of the preset is made faster until it computes 581 images/s, once
# for each link; all other printed values are then predictions. The fit needs more arithmetic than a
# V100 has in float32: the paper's kernels did not compute as a roofline counts. Source: section 5.

#: The paper's best speed without swapping, and the batch at which it was measured.
FITTED_MODEL, FITTED_BATCH, FITTED_IMAGES_PER_S = "resnet50", 190, 581.0
#: The two readings of the link, in GB/s each way.
LINKS_GB_PER_S = (50, 100)
LARGEST_FACTOR = 16.0


def machines() -> tuple[Machine, ...]:
    """The preset, and the fitted machine for each reading of the link."""
    return machine(MACHINE), *map(fitted, LINKS_GB_PER_S)


@cache
def fitted(link_gb_per_s: int) -> Machine:
    """The preset with another link, and arithmetic that trains in-core as fast as the paper."""
    preset = machine(MACHINE)
    base = replace(
        preset, name=f"fitted, {link_gb_per_s} GB/s", link_bytes_per_us=link_gb_per_s * GB / 1e6
    )
    plan = KeepAll().plan(
        Question(step_trace(FITTED_MODEL, FITTED_BATCH), preset.device_bytes, preset)
    )

    def faster(factor: float) -> Machine:
        return replace(base, flops_per_us=preset.flops_per_us * factor)

    def too_slow(factor: float) -> bool:
        step_us = simulate(plan.schedule, plan.trace, faster(factor)).makespan_us
        return per_second(FITTED_BATCH, step_us) < FITTED_IMAGES_PER_S

    return faster(bisected(1.0, LARGEST_FACTOR, too_slow))


# `ooctrain reproduce table1`: two tables for each machine, a figure, numbers. On the preset the
# images per second are shown next to the paper's only for reference; on the machines that are
# fitted to the paper's in-core speed they can be compared, as can the speed that no list exceeds
# which only offloads.


def table1(wanted: Wanted, console: Console) -> Mapping[str, Any]:
    """Paper 000, table 1: ResNet-50 from batch 64 to 1440 on 16 GB."""
    batches = QUICK_BATCHES if wanted.quick else BATCHES
    cases = [(MODEL, batch, wanted.physical_bytes) for batch in batches]
    # The largest batches take longest to plan; with several processes they should begin first.
    processes = 1 if wanted.quick else None
    found = spread(batch_cells, cases[::-1], processes, wanted.keep)
    cells = [cell for rows in reversed(list(found)) for cell in rows]
    proved = spread(offload_bounds, cases, processes, wanted.keep)
    bounds = [bound for rows in proved for bound in rows]
    print_title(console, "Images per second, simulated (paper 000, measured)", ABOUT_VA)
    for where, rows in _by_machine(cells).items():
        print_title(console, f"\n{where}")
        console.print(speed_table(rows, [bound for bound in bounds if bound.machine == where]))
        print_title(console, "\nShare of the best in-core speed (paper 000)")
        console.print(kept_table(rows))
    write_figure(wanted, console, table1_figure(cells))
    in_core = {where: in_core_images_per_s(rows) for where, rows in _by_machine(cells).items()}
    return {
        "model": MODEL,
        "physical_bytes": wanted.physical_bytes,
        "in_core_images_per_s": in_core,
        "bounds": [asdict(bound) for bound in bounds],
        "cells": [_numbers(cell, in_core[cell.machine]) for cell in cells],
    }


def speed_table(cells: Sequence[MethodCell], bounds: Sequence[OffloadBound]) -> Table:
    """Images per second of one machine; the paper's in brackets; last what no list exceeds."""

    def text(cell: MethodCell, method: Method) -> str:
        return _pair(cell.images_per_s, method.printed.get(cell.batch), "{:.0f}", method)

    found = {bound.batch: f"{bound.images_per_s:.0f}" for bound in bounds}
    return _table(cells, text, {"LP": found})


def kept_table(cells: Sequence[MethodCell]) -> Table:
    """Shares of the best in-core speed; the paper's in brackets."""
    in_core = in_core_images_per_s(cells)

    def text(cell: MethodCell, method: Method) -> str:
        return _pair(speed_kept(cell, in_core), printed_kept(method, cell.batch), "{:.0%}", method)

    return _table(cells, text, {})


def table1_figure(cells: Sequence[MethodCell]) -> str:
    """SVG: the share of speed that each method keeps over the batch, here and in the paper."""
    batches = sorted({cell.batch for cell in cells})
    paper = [
        Curve(m.name, [(batch, _in_percent(printed_kept(m, batch))) for batch in batches])
        for m in METHODS
        if m.printed
    ]
    pictures = [
        (f"Computed here: speed kept, simulated, {where}", _kept_curves(rows))
        for where, rows in _by_machine(cells).items()
    ]
    pictures.append(("Paper 000, table 1: speed kept (LMS on a P100, the others on a V100)", paper))
    # The line at 100 % gives all pictures the same axis; first, it gives all the same colours.
    whole = Curve("in-core", [(batch, 100.0) for batch in batches], dashed=True)
    return stacked_svg(
        [
            curves_svg(
                title, [whole, *curves],
                axes=("batch (no point: it cannot be trained)", "% of the best in-core speed"),
            )
            for title, curves in pictures
        ]
    )  # fmt: skip


def _kept_curves(cells: Sequence[MethodCell]) -> list[Curve]:
    in_core = in_core_images_per_s(cells)
    return [
        Curve(m.name, [(c.batch, _in_percent(speed_kept(c, in_core))) for c in _of(cells, m)])
        for m in METHODS
    ]


def _by_machine(cells: Sequence[MethodCell]) -> dict[str, list[MethodCell]]:
    names = dict.fromkeys(cell.machine for cell in cells)
    return {name: [cell for cell in cells if cell.machine == name] for name in names}


def _numbers(cell: MethodCell, in_core: float | None) -> Mapping[str, Any]:
    method = method_named(cell.method)
    return {
        **asdict(cell),
        "planner": method.planner,
        "allocator": method.allocator,
        "speed_kept": speed_kept(cell, in_core),
        "printed_images_per_s": method.printed.get(cell.batch),
        "printed_speed_kept": printed_kept(method, cell.batch),
    }


def _table(
    cells: Sequence[MethodCell], text: Callable[[MethodCell, Method], str],
    last: Mapping[str, Mapping[int, str]],
) -> Table:  # fmt: skip
    """A line for each batch; `last`: {title: {batch: text}} of columns behind the methods."""
    names = {cell.method for cell in cells}
    methods = [method for method in METHODS if method.name in names]
    table = plain_table("batch", *(method.name for method in methods), *last, no_wrap=True)
    for batch in sorted({cell.batch for cell in cells}):
        found = {cell.method: cell for cell in cells if cell.batch == batch}
        table.add_row(
            str(batch), *(text(found[method.name], method) for method in methods),
            *(column.get(batch, "") for column in last.values()),
        )  # fmt: skip
    return table


def _pair(here: float | None, paper: float | None, form: str, method: Method) -> str:
    shown = "x" if here is None else form.format(here)
    if not method.printed:
        return shown
    return f"{shown} ({'x' if paper is None else form.format(paper)})"


def _of(cells: Sequence[MethodCell], method: Method) -> list[MethodCell]:
    return sorted((c for c in cells if c.method == method.name), key=lambda cell: cell.batch)


def _in_percent(share: float | None) -> float | None:
    return None if share is None else 100 * share
