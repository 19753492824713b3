"""A page for each allocator: its docstring, a map of its arena, and what it makes of two logs.

A log holds what the first steps of a training ask for. Every allocator is asked the same, so the
maps and the figures can be compared; they are worked out when the site is built. Read next:
`reference.py`.
"""

from __future__ import annotations

import sys
from pathlib import Path

from prose import as_markdown, docstring_of, escaped, first_sentence, table, tree, write

import ooctrain as oc
from ooctrain.alloc import AllocationLog
from ooctrain.alloc.registry import choose_allocator
from ooctrain.alloc.replay import made_dry, peak_bytes, replay, snapshot_at_peak
from ooctrain.api import step_trace
from ooctrain.errors import OoctrainError
from ooctrain.execution.placement import allocation_log
from ooctrain.report.arena import arena_svg
from ooctrain.report.charts import stacked_svg
from ooctrain.units import format_bytes

MACHINE = "v100-pcie"
WHOLE = oc.Granule(512, ranges=False)


def logs() -> dict[str, AllocationLog]:
    """{title: what a step asks for, planned by `window` at 25 %}."""
    return {
        "LeNet, 64 images": log_of("lenet", 64),
        "ResNet-18, 8 images of 224 x 224": log_of("resnet18", 8),
    }


def log_of(model: str, batch: int) -> AllocationLog:
    """What the first steps of a training ask for; whole blocks, so that all can serve them."""
    step = step_trace(model, batch)
    plan = oc.plan(step, "25%", planner="window", machine=MACHINE, granule=WHOLE)
    return allocation_log(plan.trace, plan.schedule, plan.peak_bytes)


def write_pages(folder: Path) -> list[str]:
    """Writes a page for each allocator and their index; returns their names."""
    asked = logs()
    rows = []
    for name in oc.allocators():
        write(folder / f"{name}.md", _page(name, asked, folder))
        made = type(made_dry(name, 1 << 30))
        told = first_sentence(made) or first_sentence(sys.modules[made.__module__])
        rows.append([f"[`{name}`]({name}.md)", escaped(told)])
    intro = (
        "# Allocator by allocator\n\nAn allocator decides at which address each block lies. Each "
        "page has its idea, its arena when it is fullest, and what it makes of the same requests "
        "as all others, worked out when this site was built. [Allocators](../../allocators.md) "
        "compares them; `ooctrain replay` does it on a log of yours.\n\n"
    )
    write(
        folder / "index.md",
        f"{intro}{table(['allocator', 'in one sentence'], rows)}\n\n{tree(list(oc.allocators()))}",
    )
    return list(oc.allocators())


def _page(name: str, asked: dict[str, AllocationLog], folder: Path) -> str:
    made = type(made_dry(name, 1 << 30))
    granule = choose_allocator(name, 1 << 30, binding=False).granule
    parts = [f"# {name}", as_markdown(docstring_of(sys.modules[made.__module__]))]
    if docstring_of(made):
        parts += ["## Parameters", as_markdown(docstring_of(made))]
    parts += ["## Its arena when it is fullest", _picture(name, asked, folder), "## On two steps"]
    heads = ["step", "alive", "granted", "reserved", "over what is alive", "maps"]
    parts.append(table(heads, [_row(name, title, log) for title, log in asked.items()]))
    parts.append(
        f"It rounds to {format_bytes(granule.size_bytes)}. *Alive* is the most that lives at one "
        "time: no allocator reserves less. *Reserved* is what it needs, holes included. Try it: "
        f"`ooctrain plan MODEL --budget 25% --allocator {name}`."
    )
    return "\n\n".join(parts) + "\n"


def _picture(name: str, asked: dict[str, AllocationLog], folder: Path) -> str:
    shots = {}
    for title, log in asked.items():
        try:
            shots[title] = snapshot_at_peak(log, replay(log, name))
        except (OoctrainError, KeyError):
            continue
    if not shots:
        return "It has no arena of its own."
    pictures = [arena_svg({title: shot}) for title, shot in shots.items()]
    write(folder / f"{name}.svg", stacked_svg(pictures))
    return f"![The arena of {name}: blocks, holes and the free end.]({name}.svg)"


def _row(name: str, title: str, log: AllocationLog) -> list[str]:
    alive = peak_bytes(log.requests)
    try:
        found = replay(log, name)
    except OoctrainError as error:
        return [title, format_bytes(alive), "-", "-", escaped(str(error).splitlines()[0]), "-"]
    stats = found.stats
    return [
        title, format_bytes(alive), format_bytes(stats.peak_granted_bytes),
        format_bytes(stats.peak_reserved_bytes),
        f"{100 * (stats.peak_reserved_bytes / alive - 1):.1f} %", str(stats.maps),
    ]  # fmt: skip
