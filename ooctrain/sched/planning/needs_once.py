"""What a list needs that runs each call once, known before any list is made.

On device and host together all that is alive needs room: **a list that runs each call once needs at
least the in-core peak, arena and slab together**, since every value that is still read is in one of
the two. The number belongs to a step and not to its budgets, so it is found once where one step is
planned for many budgets. Source: ours; liveness as in `residency.py`. Read next:
`sched/planners/belady.py`, `rewrite/tile/banded.py`, which look here before they make lists.
"""

from __future__ import annotations

from ooctrain.sched.planning.decisions import runs_once
from ooctrain.sched.planning.planner import host_lacks
from ooctrain.sched.planning.question import Question
from ooctrain.sched.planning.residency import Liveness
from ooctrain.sched.schedule import BYTES
from ooctrain.step.trace import Trace
from ooctrain.units import format_bytes


def alive_bytes(trace: Trace) -> int:
    """The most that is alive at a time where each call runs once in the order of the trace,
    workspace included, unrounded: no such list holds less on device and host together.

    Cost: O(uses).
    """
    return max(Liveness(trace, BYTES).resident_bytes(runs_once(trace)), default=0)


def check_both_memories(planner: str, question: Question) -> None:
    """Whether device and host together hold what is alive.

    Raises:
        Infeasible: they do not, so the host lacks: no list runs each call once.

    Cost: O(uses).
    """
    host_bytes = question.host_budget_bytes
    if host_bytes is None:
        return
    away = alive_bytes(question.trace) - question.budget_bytes
    if away > host_bytes:
        raise host_lacks(
            planner, f"host budget {format_bytes(host_bytes)} ({host_bytes} bytes); where each "
            f"call runs once, {format_bytes(away)} ({away} bytes) must lie on the host",
        )  # fmt: skip
