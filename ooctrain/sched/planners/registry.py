"""Planners by name.

A planner is named as "window:size=2,count=occurrence", as "file.py:Class", or by another package's
entry point. Names are looked up in the explicit table below, where a reader can see them all;
nothing registers itself. Other packages name theirs in the entry-point group "ooctrain.planners".
All planners in this table make lists of the step that they are given. A caller that combines them
with other parts of the library passes a larger table (`execution/planners.py`: those that rewrite
the step first). Read next: `sched/planning/planner.py` for the interface of a planner, `plugins.py`
for the grammar.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from ooctrain import plugins as specs
from ooctrain.sched.planners.auto import Auto
from ooctrain.sched.planners.belady import Belady
from ooctrain.sched.planners.bn_recompute import BnRecompute
from ooctrain.sched.planners.capuchin import Capuchin
from ooctrain.sched.planners.checkmate import Checkmate, CheckmateLp
from ooctrain.sched.planners.chen import ChenSqrt
from ooctrain.sched.planners.combined import Combined
from ooctrain.sched.planners.dtr import Dtr
from ooctrain.sched.planners.dynprog import DynProg
from ooctrain.sched.planners.greedy import Greedy
from ooctrain.sched.planners.hmms import Hmms
from ooctrain.sched.planners.keep_all import KeepAll
from ooctrain.sched.planners.lms import Lms, LmsAuto, LmsGrid
from ooctrain.sched.planners.lru import Lru
from ooctrain.sched.planners.naive import Naive
from ooctrain.sched.planners.pofo import Pofo
from ooctrain.sched.planners.prefix import Prefix
from ooctrain.sched.planners.revolve import Revolve
from ooctrain.sched.planners.rotor import Rotor
from ooctrain.sched.planners.superneurons import SuperNeurons
from ooctrain.sched.planners.tflms_hybrid import TflmsHybrid
from ooctrain.sched.planners.vdnn import Vdnn, VdnnAll, VdnnConv
from ooctrain.sched.planners.window import SlidingWindow, WindowCyclic
from ooctrain.sched.planning.planner import Planner, expect_planner

ENTRY_POINTS = "ooctrain.planners"
Factories = Mapping[str, Callable[..., Planner]]
PLANNERS: Factories = MappingProxyType(
    {
        "auto": Auto,
        "belady": Belady,
        "bn-recompute": BnRecompute,
        "capuchin": Capuchin,
        "checkmate": Checkmate,
        "checkmate-lp": CheckmateLp,
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
        "window": SlidingWindow,
        "window-cyclic": WindowCyclic,
    }
)


def get_planner(spec: str, known: Factories = PLANNERS) -> Planner:
    """The planner that a text names.

    Args:
        spec: name with parameters, or "file.py:Class".
        known: what the names mean.

    Raises:
        ConfigError: unknown name, file or parameter; the nearest known one is suggested. Or what it
            names cannot plan.
    """
    plain = known.get(spec)
    found: Planner = plain() if plain else specs.resolve(
        spec, known, group=ENTRY_POINTS, what="planner"
    )  # fmt: skip
    expect_planner(found)
    return found


def as_planner(planner: str | Planner | type, known: Factories = PLANNERS) -> Planner:
    """A planner from any name of one: a text, a class with defaults for all, or a planner.

    Raises:
        ConfigError: as `get_planner`, or an object that cannot plan.
    """
    if isinstance(planner, str):
        return get_planner(planner, known)
    found = planner() if isinstance(planner, type) else planner
    expect_planner(found)
    return found


def planners(known: Factories = PLANNERS) -> tuple[str, ...]:
    """Names of all planners, those of other packages included."""
    return specs.names(known, ENTRY_POINTS)
