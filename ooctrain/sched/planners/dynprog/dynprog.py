"""dynprog: which activations to offload, all or nothing, by dynamic programming.

The planner walks the chain with F_i and B_i together, and keeps for each state that can arise the
least idle time on the way to it (`dynprog_search.py`). The gaps of the best set are then lowered as
soon as possible. The set is optimal among schedules that send in ascending and fetch in descending
order and may pause a transfer; the plan then moves whole activations, which can add a little idle
time.

Source: paper 002, section 5.2 and algorithm 1, repaired. Departures: short chains are solved in
bytes instead of slots; where rounding to slots leaves no feasible state everything is offloaded; if
there are too many states, those with the least idle time are followed. Read next:
`dynprog_search.py`; then `sched/planners/belady.py`, which moves parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import get_args

from ooctrain.errors import ConfigError
from ooctrain.sched.planners.dynprog.dynprog_search import MOST_STATES, Rounding, in_slots, solve
from ooctrain.sched.planning.chain_view import ChainView, chain_view
from ooctrain.sched.planning.parameters import check_whole_numbers
from ooctrain.sched.planning.question import Question
from ooctrain.sched.planning.swap import swap_plan
from ooctrain.sched.schedule import BYTES, Granule, Plan
from ooctrain.step.machine import Machine
from ooctrain.step.trace import Trace


@dataclass(frozen=True, slots=True)
class DynProg:
    """Paper 002's DYNPROG on the chain of a trace.

    Args:
        slots: how many slots the memory is counted in (the paper's S).
        exact_stages: chains of at most this many stages are counted in bytes.
        most_states: how many states are followed from each stage; the paper follows all.
        transfers: how slots that move during a call are rounded: "down" promises no room that is
            not there, so that its idle time is never too low; "nearest" and "up" may. All are safe,
            since what was decided is planned to the byte. Paper 002 does not say which it took.

    Cost: O(states) for each stage: at most 2^stages in bytes, and `most_states`.
    """

    name = "dynprog"

    slots: int = 500
    exact_stages: int = 11
    most_states: int = MOST_STATES
    transfers: Rounding = "down"

    def __post_init__(self) -> None:
        check_whole_numbers(self.name, {"slots": self.slots, "most_states": self.most_states})
        check_whole_numbers(self.name, {"exact_stages": self.exact_stages}, least=0)
        if self.transfers not in get_args(Rounding):
            raise ConfigError(
                f"dynprog has no rounding {self.transfers!r} of transfers", code="OOC-106",
                fix=f"transfers is one of {', '.join(get_args(Rounding))}",
            )  # fmt: skip

    def plan(
        self, trace: Trace, budget_bytes: int, machine: Machine, *, granule: Granule = BYTES,
        host_budget_bytes: int | None = None, seed: int = 0, time_limit_s: float | None = None,
    ) -> Plan:  # fmt: skip
        """See `Planner`. The minimum is the chain's own."""
        view = chain_view(trace, machine, granule)
        question = Question(trace, budget_bytes, machine, granule, host_budget_bytes)
        return self.plan_chain(question, view)

    def plan_chain(self, question: Question, view: ChainView) -> Plan:
        """`plan`, for callers that already have the view of the trace as a chain."""
        view.check_budget(self.name, question.budget_bytes)
        memory_bytes = question.budget_bytes - view.pinned_bytes
        slot_bytes = 1.0 if len(view) <= self.exact_stages else memory_bytes / self.slots
        slotted = in_slots(view, memory_bytes, question.machine, slot_bytes, self.transfers)
        solution = solve(slotted, self.most_states)
        notes = {"offloaded": len(view), **view.notes(), "slot_bytes": slot_bytes}
        chosen: Sequence[int] = range(len(view))
        if solution is not None:
            chosen = solution.offloaded
            notes |= {"offloaded": len(chosen), "idle_us": solution.idle_us}
        return swap_plan(self.name, question, view.gaps(chosen), notes)
