"""`ooctrain` as a submission sees it: this file is the package's first file there.

A submission that must write a planner or an allocator gets what both are made of (traces, lists,
the list writer, the books), but no planner and no allocator. An import of anything else is an
ImportError that names it, so a submission cannot pass the question on to the library's own
solution. Read next: `../isolation.py`, which copies what is given.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

#: {public name: the module that has it}
_HOME = {
    "Granule": "sched.schedule",
    "Infeasible": "errors",
    "LowerBound": "sched.schedule",
    "Machine": "step.machine",
    "OoctrainError": "errors",
    "Plan": "sched.schedule",
    "Schedule": "sched.schedule",
    "ScheduleError": "errors",
    "Timeline": "sched.timeline",
    "Trace": "step.trace",
    "chain": "step.chain",
    "machine": "step.presets",
}


def __getattr__(name: str) -> Any:
    if name == "errors":
        return importlib.import_module("ooctrain.errors")
    if name not in _HOME:
        raise AttributeError(f"ooctrain.{name} {NotGiven.why}")
    return getattr(importlib.import_module(f"ooctrain.{_HOME[name]}"), name)


class NotGiven:
    """An importer that is asked last, and names what of the library is not there."""

    why = (
        "is not given to a submission, which has the library's interfaces and none of its planners "
        "and allocators"
    )

    @classmethod
    def find_spec(
        cls, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """None for other packages; ImportError for ours."""
        if name.partition(".")[0] == "ooctrain":
            raise ImportError(f"{name} {cls.why}", name=name)
        return None


def refuse_the_rest() -> None:
    """From now on what is not given is named."""
    sys.meta_path.append(NotGiven)
