"""The bound for a host without room: a step time that no list without copies on the host beats.

Where nothing can be copied to the host, what does not fit is computed again. The LP (`lp.py`)
computes fractions of values again, for which it charges neither the memory of their sources nor
that of what is there meanwhile; within small budgets that is far below every list. Here each value
is there or not, in the stages of `stage_program.py`, and each call that runs again takes all of its
memory. The program is solved by branch and bound (HiGHS) up to a number of nodes; what is proved by
then is the bound, so it is true though the search has not ended. It is never below the LP's, which
takes part.

A stage more makes the bound higher and the program harder. Stages end around the calls that read
what the calls just before them did not touch, the widest first: there a value that was dropped has
to be back, beside what is there already.

Class of lists covered: nothing is copied to the host; persistent variables start the step on the
device, and inputs on the host; first runs come in trace order. Pure calls may run again, all or
(`backward=False`) those of the forward pass and the loss, at any time, in any order, as often as
they like. Where the host budget leaves room for the inputs alone, every list that the verifier
accepts copies nothing, and `backward=True` covers them all; no planner here but `checkmate`, in
steps of 30 calls and less, makes lists that `backward=False` does not cover. Sources: ours; the
stages are Checkmate's (Jain et al., MLSys 2020). Read next: `stage_program.py`, `linear.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from ooctrain.sched.bounds.linear import WholeSolution
from ooctrain.sched.bounds.lp import TOLERANCE, fluid_bound
from ooctrain.sched.bounds.stage_program import RecomputeProgram, StepValues
from ooctrain.sched.budget import input_bytes
from ooctrain.sched.schedule import LowerBound
from ooctrain.step.machine import Machine
from ooctrain.step.trace import Trace


class Depth(NamedTuple):
    """How much is asked for; the same depth proves the same with one version of HiGHS.

    Args:
        reads: how many calls stages end around; in steps of twice as many each call is a stage.
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

    Cost: an LP of some 300 rows for each stage at each node.
    """
    fluid = fluid_bound(
        trace, budget_bytes, machine, resident=True, host_budget_bytes=input_bytes(trace)
    )
    if fluid is None:
        return None
    step = StepValues(trace, budget_bytes, backward)
    program = RecomputeProgram(step, machine, stage_ends(step, depth.reads))
    found = program.program.search(depth.nodes, guess=False)
    if found.ended == "infeasible":
        return None
    proved = _proved_us(program, found)
    lp_us = fluid.makespan_us
    return RecomputeBound(max(proved, lp_us), lp_us, proved, backward, found.ended)


def _proved_us(program: RecomputeProgram, found: WholeSolution) -> float:
    """The compute time, and what has to run again; a little of it is given away to rounding."""
    again = max(0.0, found.bound) * (1 - 10 * TOLERANCE)
    return (sum(program.duration_ns) + again * program.unit_ns) / 1000


def stage_ends(step: StepValues, reads: int) -> list[int]:
    """The calls with which stages end, ascending: in a short step all; else for each of the widest
    calls that read again what the calls just before did not touch, that call and the one before.
    """
    calls = len(step.trace.calls)
    if calls <= 2 * reads:
        return list(range(calls))
    pairs = _reads_again(step)
    shares = {pair: max(step.needs[call].share for call in pair) for pair in pairs}
    widest = sorted(pairs, key=lambda pair: (-shares[pair], pair))[:reads]
    return sorted({calls - 1}.union(*widest))


def _reads_again(step: StepValues) -> list[tuple[int, int]]:
    """(the call before, the call) for each call that reads a value which the call before did not
    touch. Calls that touch no value of the program do not count.
    """
    values = set(step.values)
    seen: set[int] = set()
    near: set[int] = set()
    before, pairs = -1, list[tuple[int, int]]()
    for call in step.trace.calls:
        touched = values.intersection(call.touched())
        if not touched:
            continue
        if seen.intersection(call.ins) - near:
            pairs.append((before, call.id))
        before, near = call.id, touched
        seen |= touched
    return pairs
