"""What an own planner is written with: `oc.planning`, or `from ooctrain.planning import ...`.

A planner either writes the list itself (`writer_with_resident_parameters`, `make_plan`), or only
decides which gaps a value spends on the host (`swap_gaps`, `swap_plan`), or which values are
computed again (`droppable`, `rematerialise`, `Decisions`, `plan_of`). docs/howto/planner.md has one
of each; tutorials 12 and 13 write two of them step by step. Read next:
`sched/planning/planner.py`, then `sched/planning/swap.py` and `sched/planning/lower.py`.
"""

from ooctrain.sched.planning.decisions import Decisions, runs_once
from ooctrain.sched.planning.effort import Effort
from ooctrain.sched.planning.list_writer import writer_with_resident_parameters
from ooctrain.sched.planning.lower import plan_of
from ooctrain.sched.planning.planner import (
    check_host,
    host_too_small,
    infeasible,
    least_refusal,
    make_plan,
)
from ooctrain.sched.planning.question import Question
from ooctrain.sched.planning.rematerialise import droppable, rematerialise
from ooctrain.sched.planning.residency import Liveness
from ooctrain.sched.planning.swap import check_budget, swap_gaps, swap_plan
from ooctrain.sched.schedule import BYTES
from ooctrain.step.machine import call_durations_ns

__all__ = [
    "BYTES", "Decisions", "Effort", "Liveness", "Question", "call_durations_ns", "check_budget",
    "check_host", "droppable", "host_too_small", "infeasible", "least_refusal", "make_plan",
    "plan_of", "rematerialise", "runs_once", "swap_gaps", "swap_plan",
    "writer_with_resident_parameters",
]  # fmt: skip
