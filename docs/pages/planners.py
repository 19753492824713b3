"""A page for each planner: its docstring, a picture of a plan, and how it does on two steps now.

The figures are not written down anywhere: each build of the site plans small steps anew, so a page
shows what the planner does today. A chain of twelve equal stages can be worked out by hand, and a
ResNet-18 on images of CIFAR's size is a network with skip connections. Read next: `allocators.py`,
the same for allocators.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from prose import (
    as_markdown,
    docstring_of,
    escaped,
    first_sentence,
    library_digest,
    table,
    tree,
    write,
)  # fmt: skip

import ooctrain as oc
from ooctrain.api import step_trace
from ooctrain.errors import OoctrainError
from ooctrain.execution.planners import PLANNERS
from ooctrain.report.svg import timelines_svg
from ooctrain.units import format_bytes, format_us

BUDGETS = ("25%", "50%", "100%")
SECONDS = 0.2  # for a planner that searches
STAGES = 12
SLOW_LINK = oc.Machine(
    "toy", flops_per_us=1, memory_bytes_per_us=1, link_bytes_per_us=5, link="duplex"
)

Step = tuple[oc.Trace, oc.Machine]
Plans = Mapping[str, oc.Plan | None]


def steps() -> dict[str, Step]:
    """{title: (step, machine)}."""
    sizes, forward = [100] * (STAGES + 1), [10] * STAGES
    none = [0] * STAGES
    chain = oc.chain(sizes, sizes, forward, [2 * t for t in forward], none, none)
    network = step_trace("resnet18", 32, 32)
    return {
        f"a chain of {STAGES} equal stages, a slow link": (chain, SLOW_LINK),
        "ResNet-18, 32 images of 32 x 32, `v100-pcie`": (network, oc.machine("v100-pcie")),
    }


def write_pages(folder: Path) -> list[str]:
    """Writes a page for each planner and their index, unless they are there and the library is
    the same; returns their names.
    """
    stamp, made_of = folder / "made_of.txt", library_digest(Path(__file__))
    if stamp.is_file() and stamp.read_text(encoding="utf-8") == made_of:
        return list(PLANNERS)
    tried = steps()
    rows = []
    for name, factory in PLANNERS.items():
        plans = {
            title: {budget: _planned(name, step, budget, machine) for budget in BUDGETS}
            for title, (step, machine) in tried.items()
        }
        write(folder / f"{name}.md", _page(name, _of(factory), plans, tried, folder))
        rows.append([f"[`{name}`]({name}.md)", _summary(factory)])
    intro = (
        "# Planner by planner\n\nA planner decides what leaves the device and when. Each page has "
        "its idea and source, a plan as a picture, and its figures on two small steps, worked out "
        "when this site was built. [Planners](../../planners.md) compares them on large networks; "
        "`ooctrain compare` does it on yours.\n\n"
    )
    text = intro + table(["planner", "in one sentence"], rows)
    write(folder / "index.md", f"{text}\n\n{tree(list(PLANNERS))}")
    write(stamp, made_of)
    return list(PLANNERS)


def _planned(name: str, step: oc.Trace, budget: str, machine: oc.Machine) -> oc.Plan | None:
    try:
        return oc.plan(step, budget, planner=name, machine=machine, time_limit_s=SECONDS)
    except OoctrainError:
        return None


def _summary(factory: Callable[..., object]) -> str:
    return escaped(first_sentence(_of(factory)) or first_sentence(_home(_of(factory))))


def _home(made: object) -> object:
    """The module that a planner is defined in, whose docstring tells the idea."""
    return sys.modules[getattr(made, "__module__", "")]


def _of(factory: Callable[..., object]) -> object:
    """The class that a name means: `auto` is made by a function."""
    return factory if isinstance(factory, type) else type(factory())


def _page(
    name: str, made: object, plans: Mapping[str, Plans], tried: Mapping[str, Step], folder: Path
) -> str:
    parts = [f"# {name}", as_markdown(docstring_of(_home(made)))]
    own = docstring_of(made)
    if own:
        parts += ["## Parameters", as_markdown(own)]
    parts += ["## A plan", *_picture(name, plans, tried, folder), "## On two steps"]
    for title, found in plans.items():
        parts += [f"### {title[0].upper()}{title[1:]}", _table(found, tried[title][1])]
    parts.append(
        f"A dash: no plan. Try it on your network: `ooctrain plan MODEL --planner {name}`."
    )
    return "\n\n".join(parts) + "\n"


def _picture(
    name: str, plans: Mapping[str, Plans], tried: Mapping[str, Step], folder: Path
) -> list[str]:
    title = next(iter(plans))
    _, machine = tried[title]
    for budget in BUDGETS:
        plan = plans[title][budget]
        if plan is not None:
            break
    else:
        return ["It has no plan for the chain."]
    phases = {call.name: call.phase for call in plan.trace.calls}
    found = oc.simulate(plan, plan.trace, machine)
    budget_bytes = plan.peak_bytes
    picture = timelines_svg({f"{name}, budget {budget}": found}, phases=phases)
    write(folder / f"{name}.svg", picture)
    text = (
        f"![The three streams and the memory of a step that {name} planned.]({name}.svg)\n\n"
        f"{title[0].upper()}{title[1:]}, at {budget} of the way from the least to the in-core "
        f"peak: {format_bytes(budget_bytes)}."
    )
    return [text]


def _table(found: Plans, machine: oc.Machine) -> str:
    rows = []
    for budget, plan in found.items():
        if plan is None:
            rows.append([budget, *["-"] * 6])
            continue
        bound = oc.lower_bound(plan.trace, max(plan.peak_bytes, 1), machine).makespan_us
        times = oc.simulate(plan, plan.trace, machine)
        rows.append([
            budget, format_us(plan.makespan_us), f"{plan.makespan_us / bound:.3f}",
            format_bytes(plan.peak_bytes), format_bytes(times.bytes_out),
            format_bytes(times.bytes_in), format_us(times.recompute_us),
        ])  # fmt: skip
    heads = ["budget", "step", "over a bound", "peak", "out", "in", "computed again"]
    return table(heads, rows)
