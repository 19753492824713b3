"""Planners by name.

In: "window:size=2,count=occurrence", "file.py:Class", or the name of another package's entry point.
Out: a planner. The one idea: the table below is all the magic there is. Other packages register
theirs in the entry-point group "ooctrain.planners". Read next: `base.py` for what a planner is,
`specs.py` for the grammar.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from ooctrain import specs
from ooctrain.sched.auto import Auto
from ooctrain.sched.base import Planner
from ooctrain.sched.keep_all import KeepAll
from ooctrain.sched.naive import Naive
from ooctrain.sched.window import Window

ENTRY_POINTS = "ooctrain.planners"
PLANNERS: Mapping[str, Callable[..., Planner]] = MappingProxyType(
    {"auto": Auto, "keep-all": KeepAll, "naive": Naive, "window": Window}
)


def get_planner(spec: str) -> Planner:
    """The planner that a text names.

    Raises:
        ConfigError: unknown name, file or parameter; the nearest known one is suggested.
    """
    return specs.resolve(spec, PLANNERS, group=ENTRY_POINTS, what="planner")


def planners() -> tuple[str, ...]:
    """Names of all planners, those of other packages included."""
    return specs.names(PLANNERS, ENTRY_POINTS)
