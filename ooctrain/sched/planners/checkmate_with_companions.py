"""checkmate as it is asked for by name: the program, and beside it `prefix` and `combined`.

`combined` asks the bare program on short steps, so the program cannot know `combined`: here both
are put together. For the least budget, which is asked for several times, `combined` leaves the
program out. Read next: `checkmate.py`; `checkmate_baselines.py`.
"""

from __future__ import annotations

from dataclasses import replace

from ooctrain.sched.planners.checkmate import Checkmate
from ooctrain.sched.planners.checkmate_baselines import ALONE, SIMPLE, Companions
from ooctrain.sched.planners.combined import Combined
from ooctrain.sched.planners.prefix import Prefix
from ooctrain.sched.planning.parameters import check_true_or_false


def checkmate(
    nodes: int = 200, exact: int = 30, most: int = 150, combined: bool = True,
    evaluations: int | None = None,
) -> Checkmate:  # fmt: skip
    """`Checkmate`, with those that search beside it.

    Args:
        nodes, exact, most: of `Checkmate`.
        combined: whether `prefix` and `combined` take part, beside `rotor` and `dtr`.
        evaluations: of `combined`; None: as many as the question says, or as it makes by itself.
    """
    check_true_or_false(Checkmate.name, {"combined": combined})
    alone = replace(ALONE, evaluations=evaluations)
    all_of_them = Companions(
        (*SIMPLE, Prefix(), Combined()), (Prefix(), Combined(checkmate=False)), evaluations
    )
    return Checkmate(nodes, exact, most, all_of_them if combined else alone)
