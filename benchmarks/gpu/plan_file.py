"""A step prepared by a plan from a file, or planned on the spot.

A plan that no longer fits the code costs the seconds of planning anew, and is no failure. The
result is a `PreparedStep`. Read next: `plans.py`, which makes the files.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import ooctrain as oc
from ooctrain.errors import PlanMismatch
from ooctrain.execution.prepared_step import PreparedStep, placed
from ooctrain.execution.settings import Settings
from ooctrain.step.trace import Trace


def by_file(trace: Trace, how: Settings, file: str | Path) -> PreparedStep | None:
    """The step as a file plans it; None: there is no file, or it is for another step, or for a GPU
    that maps in other pieces.

    Args:
        file: "" for none.
    """
    if not file or not Path(file).is_file():
        return None
    with suppress(PlanMismatch):
        made = placed(oc.load_plan(str(file), trace), how)
        if made.allocator.granule.size_bytes == made.plan.schedule.granule.size_bytes:
            return made
    return None
