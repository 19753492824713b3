"""checkmate as it is asked for by name: the program, and beside it `prefix` and `combined`.

`combined` asks the bare program on short steps, so the program cannot know `combined`: here both
are put together. For the least budget, which is asked for several times, `combined` leaves the
program out. Read next: `checkmate.py`; `beside.py`.
"""

from __future__ import annotations

from ooctrain.sched.planners.checkmate.beside import Companions
from ooctrain.sched.planners.checkmate.checkmate import Checkmate
from ooctrain.sched.planners.combined import Combined
from ooctrain.sched.planners.prefix import Prefix
from ooctrain.sched.planning.planner import check_true_or_false


def checkmate(
    nodes: int = 200, exact: int = 30, most: int = 150, combined: bool = True,
    evaluations: int | None = None,
) -> Checkmate:  # fmt: skip
    """`Checkmate`, with those that search beside it.

    Args:
        combined: whether `prefix` and `combined` take part, beside `rotor` and `dtr`.
        nodes, exact, most, evaluations: of `Checkmate`.
    """
    check_true_or_false(Checkmate.name, {"combined": combined})
    beside = Companions(
        (Prefix(), Combined(evaluations)), (Prefix(), Combined(evaluations, checkmate=False))
    )
    return Checkmate(nodes, exact, most, evaluations, beside if combined else Companions())
