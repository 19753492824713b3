"""The bound for a host without room: a step time that no list without copies on the host beats.

Where nothing can be copied to the host, what does not fit is computed again. The LP (`lp.py`)
computes fractions of values again, for which it charges neither the memory of their sources nor
that of what is there meanwhile; within small budgets that is far below every list. Here each value
is there or not, in the stages of `stage_program.py`, and each call that runs again takes all of its
memory. The program is solved by branch and bound (HiGHS) up to a number of nodes; what is proved by
then is the bound, so it is true though the search has not ended. It is never below the LP's, which
takes part.

Which calls stages end with decides how much is proved (`stages.py`); two choices are tried, and
both bounds are true. Nothing runs, for the first time or again, before the first call has its
inputs, so the wait for them comes on top.

Class of lists covered: nothing is copied to the host; persistent variables start the step on the
device, and inputs on the host; first runs come in trace order. Pure calls may run again, all or
(`backward=False`) those of the forward pass and the loss, at any time, in any order, as often as
they like. Where the host budget leaves room for the inputs alone, every list that the verifier
accepts copies nothing, and `backward=True` covers them all; no planner here but `checkmate`, in
steps of 30 calls and less, makes lists that `backward=False` does not cover. Sources: ours; the
stages are Checkmate's (Jain et al., MLSys 2020). Read next: `stage_program.py`, `stages.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from ooctrain.sched.bounds.closed import first_wait_us
from ooctrain.sched.bounds.linear import WholeSolution
from ooctrain.sched.bounds.lp import TOLERANCE, fluid_bound
from ooctrain.sched.bounds.stage_program import RecomputeProgram, StepValues
from ooctrain.sched.bounds.stages import dearest_ends, widest_ends
from ooctrain.sched.budget import input_bytes
from ooctrain.sched.schedule import LowerBound
from ooctrain.step.machine import Machine
from ooctrain.step.trace import Trace


class Depth(NamedTuple):
    """How much is asked for; the same depth proves the same with one version of HiGHS.

    Args:
        reads: how many of the widest calls stages end around, by the first choice; in steps of
            twice as many each call is a stage.
        nodes: of the search tree at most.
    """

    reads: int = 5
    nodes: int = 300


#: Where the caller does not say how deep.
USUAL = Depth()


@dataclass(frozen=True, slots=True)
class RecomputeBound:
    """What the program proves.

    Args:
        makespan_us: the bound.
        lp_us: the LP's, of the same question.
        proved_us: the program's alone.
        backward: whether it covers lists that run calls of the backward pass again.
        ended: what ended the search: "optimal", or "nodes" where more of them may prove more.
    """

    makespan_us: float
    lp_us: float
    proved_us: float
    backward: bool
    ended: str

    @property
    def covers(self) -> str:
        """The class of lists, in words."""
        again = "any pure call" if self.backward else "any pure call of the forward pass"
        return f"nothing is copied to the host, {again} may run again, calls first run in order"

    def lower_bound(self) -> LowerBound:
        """As other bounds are given."""
        again = "recomputation" if self.backward else "recomputation of the forward pass"
        return LowerBound(self.makespan_us, f"MILP of {again}")


def recompute_bound(
    trace: Trace, budget_bytes: int, machine: Machine, *, backward: bool = True,
    depth: Depth = USUAL,
) -> RecomputeBound | None:  # fmt: skip
    """The bound; None where no list of the class fits the budget.

    Args:
        trace: the step.
        budget_bytes: of the device, to the byte.
        machine: for the times of calls, and the link on which inputs come.
        backward: whether it covers lists that run calls of the backward pass again.
        depth: how many stages, how long a search.

    Cost: LPs of some 300 rows for each stage: some 200 to choose the stages, one at each node.
    """
    fluid = fluid_bound(
        trace, budget_bytes, machine, resident=True, host_budget_bytes=input_bytes(trace)
    )
    if fluid is None:
        return None
    step, lp_us = StepValues(trace, budget_bytes, backward), fluid.makespan_us
    proved: list[tuple[float, str]] = []
    for ends in _choices(step, machine, fluid.memory_prices, depth.reads):
        program = RecomputeProgram(step, machine, ends)
        found = program.program.search(depth.nodes, guess=False)
        if found.ended == "infeasible":
            return None
        proved.append((_proved_us(program, found, first_wait_us(trace, machine)), found.ended))
    most_us, ended = max(proved)
    return RecomputeBound(max(most_us, lp_us), lp_us, most_us, backward, ended)


def _choices(
    step: StepValues, machine: Machine, prices: Mapping[int, float], reads: int
) -> list[list[int]]:
    """The stages that are tried; in a short step each call is one, and no choice proves more."""
    widest = widest_ends(step, reads)
    if len(widest) == len(step.trace.calls):
        return [widest]
    return [widest, dearest_ends(step, machine, prices)]


def _proved_us(program: RecomputeProgram, found: WholeSolution, wait_us: float) -> float:
    """The wait, the compute time, and what has to run again; of that a little is given away to
    rounding."""
    again = max(0.0, found.bound) * (1 - 10 * TOLERANCE)
    return wait_us + (sum(program.duration_ns) + again * program.unit_ns) / 1000
