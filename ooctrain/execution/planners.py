"""All planners by name: those that make lists, and those that rewrite the step first.

A name is "sft:tiles=4", "banded:planner=belady", or any name of `sched/planners/registry.py`.
`sched/` plans the step that it is given and knows no rewrites, so planners that need both are
defined here, above both: two planners that tile the step, which `auto` tries in addition to its
own. Read next: `rewrite/tile/sft_planner.py`, `rewrite/tile/banded.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType

from ooctrain.rewrite.tile.banded import Banded, can_be_banded
from ooctrain.rewrite.tile.sft_planner import Sft
from ooctrain.sched.bounds.closed import lower_bound
from ooctrain.sched.planners import registry
from ooctrain.sched.planners.auto import Auto
from ooctrain.sched.planners.registry import Factories
from ooctrain.sched.planning.planner import Planner
from ooctrain.sched.planning.question import Question
from ooctrain.sched.schedule import Plan
from ooctrain.step.machine import call_durations_ns

#: A tiled step is planned where no list of the untiled one comes as near as this to its calls.
NEAR = 1.05


def tilings(question: Question, best: Plan | None) -> Sequence[Planner]:
    """The planners of a tiled step that `auto` runs: none while a list of the untiled step may be
    as good as `best`.

    A tiled step computes as long as the untiled one, or longer. So it can only help where no list
    of the untiled step fits, or where what no list beats is longer than that.
    """
    if best is not None:
        computing_us = sum(call_durations_ns(question.trace, question.machine)) / 1000
        bound = lower_bound(question.trace, question.budget_bytes, question.machine)
        if bound.makespan_us <= NEAR * computing_us:
            return ()
    return (Banded(untiled=False),) if can_be_banded(question.trace) else ()


def auto(evaluations: int | None = None) -> Auto:
    """`auto`, which plans tilings too."""
    return Auto(tilings, evaluations)


PLANNERS: Factories = MappingProxyType(
    {**registry.PLANNERS, "auto": auto, "banded": Banded, "sft": Sft}
)


def get_planner(spec: str) -> Planner:
    """The planner that a text names.

    Raises:
        ConfigError: unknown name, file or parameter; the nearest known one is suggested.
    """
    return registry.get_planner(spec, PLANNERS)


def as_planner(planner: str | Planner | type) -> Planner:
    """A planner from any name of one: a text, a class with defaults for all, or a planner.

    Raises:
        ConfigError: as `get_planner`, or an object that cannot plan.
    """
    return registry.as_planner(planner, PLANNERS)


def without_bands(planner: str | Planner | type) -> Planner:
    """`auto` without planners that rewrite the step; any other planner as it is."""
    found = as_planner(planner)
    return found.without_rewriting_planners() if isinstance(found, Auto) else found


def planners() -> tuple[str, ...]:
    """Names of all planners, those of other packages included."""
    return registry.planners(PLANNERS)
