"""Planners by name.

In: "window:size=2,count=occurrence", "file.py:Class", or the name of another package's entry point.
Out: a planner. The one idea: names are looked up in the explicit table below, where a reader can
see them all; nothing registers itself. Other packages name theirs in the entry-point group
"ooctrain.planners". Read next: `base.py` for what a planner is, `plugins.py` for the grammar.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from ooctrain import plugins as specs
from ooctrain.errors import ConfigError
from ooctrain.sched.auto import Auto
from ooctrain.sched.base import Planner
from ooctrain.sched.belady import Belady
from ooctrain.sched.bn_recompute import BnRecompute
from ooctrain.sched.chen import ChenSqrt
from ooctrain.sched.combined import Combined
from ooctrain.sched.dtr import Dtr
from ooctrain.sched.dynprog import DynProg
from ooctrain.sched.greedy import Greedy
from ooctrain.sched.hmms import Hmms
from ooctrain.sched.keep_all import KeepAll
from ooctrain.sched.lms import Lms
from ooctrain.sched.lms_auto import LmsAuto
from ooctrain.sched.lms_grid import LmsGrid
from ooctrain.sched.lru import Lru
from ooctrain.sched.naive import Naive
from ooctrain.sched.pofo import Pofo
from ooctrain.sched.prefix import Prefix
from ooctrain.sched.revolve import Revolve
from ooctrain.sched.rotor import Rotor
from ooctrain.sched.schedule import Plan
from ooctrain.sched.superneurons import SuperNeurons
from ooctrain.sched.tflms_hybrid import TflmsHybrid
from ooctrain.sched.vdnn import Vdnn
from ooctrain.sched.vdnn_layers import VdnnAll, VdnnConv
from ooctrain.sched.window import Window
from ooctrain.sched.window_cyclic import WindowCyclic

ENTRY_POINTS = "ooctrain.planners"
PLANNERS: Mapping[str, Callable[..., Planner]] = MappingProxyType(
    {
        "auto": Auto,
        "belady": Belady,
        "bn-recompute": BnRecompute,
        "chen-sqrt": ChenSqrt,
        "combined": Combined,
        "dtr": Dtr,
        "dynprog": DynProg,
        "greedy": Greedy,
        "hmms": Hmms,
        "keep-all": KeepAll,
        "lms": Lms,
        "lms-auto": LmsAuto,
        "lms-grid": LmsGrid,
        "lru": Lru,
        "naive": Naive,
        "pofo": Pofo,
        "prefix": Prefix,
        "revolve": Revolve,
        "rotor": Rotor,
        "superneurons": SuperNeurons,
        "tflms-hybrid": TflmsHybrid,
        "vdnn": Vdnn,
        "vdnn-all": VdnnAll,
        "vdnn-conv": VdnnConv,
        "window": Window,
        "window-cyclic": WindowCyclic,
    }
)


def get_planner(spec: str) -> Planner:
    """The planner that a text names.

    Raises:
        ConfigError: unknown name, file or parameter; the nearest known one is suggested.
    """
    return specs.resolve(spec, PLANNERS, group=ENTRY_POINTS, what="planner")


def as_planner(planner: str | Planner | type) -> Planner:
    """A planner from whatever names one: a text, a class with defaults for all, or a planner.

    Raises:
        ConfigError: as `get_planner`, or an object that cannot plan.
    """
    if isinstance(planner, str):
        found: Planner = get_planner(planner)
    else:
        found = planner() if isinstance(planner, type) else planner
    if not callable(getattr(found, "plan", None)) or not hasattr(found, "name"):
        raise ConfigError(
            f"{type(found).__name__} is no planner: it lacks `name` or `plan`", code="OOC-108",
            fix="ooctrain/sched/base.py says what a planner has",
        )  # fmt: skip
    return found


def as_plan(found: object, planner: Planner) -> Plan:
    """What a planner returned, if it is a plan at all; ConfigError otherwise."""
    if not isinstance(found, Plan):
        raise ConfigError(
            f"planner {planner.name!r} returned {type(found).__name__}, not a Plan", code="OOC-108"
        )
    return found


def planners() -> tuple[str, ...]:
    """Names of all planners, those of other packages included."""
    return specs.names(PLANNERS, ENTRY_POINTS)
