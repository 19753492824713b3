"""checkmate by its name: the program next to planners that search.

`combined` runs the bare program on short steps, so the program cannot import `combined`; this file
imports both. For the least budget, which is planned for several times, `combined` leaves the
program out. Read next: `checkmate.py`; `checkmate_baselines.py`.
"""

from __future__ import annotations

from dataclasses import replace

from ooctrain.sched.planners.checkmate import Checkmate
from ooctrain.sched.planners.checkmate_baselines import SIMPLE, WITHOUT_SEARCH, Companions
from ooctrain.sched.planners.combined import Combined
from ooctrain.sched.planners.prefix import Prefix
from ooctrain.sched.planning.parameters import check_true_or_false


def checkmate(
    nodes: int = 200, exact: int = 30, most: int = 150, combined: bool = True,
    evaluations: int | None = None,
) -> Checkmate:  # fmt: skip
    """`Checkmate` with searching planners as companions.

    Args:
        nodes, exact, most: see `Checkmate`.
        combined: whether `prefix` and `combined` take part, in addition to `rotor` and `dtr`.
        evaluations: limit of `combined`; None: the question's, or its own.
    """
    check_true_or_false(Checkmate.name, {"combined": combined})
    alone = replace(WITHOUT_SEARCH, evaluations=evaluations)
    all_of_them = Companions(
        (*SIMPLE, Prefix(), Combined()), (Prefix(), Combined(checkmate=False)), evaluations
    )
    return Checkmate(nodes, exact, most, all_of_them if combined else alone)
