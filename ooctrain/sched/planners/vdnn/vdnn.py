"""vdnn: offload where computing is slow for its bytes, at the best of all thresholds.

A layer that computes long for its bytes hides the copy of its input; the threshold is found by
trial. Every value of u_F / |x| serves as the threshold, with two candidates each: all activations
whose ratio reaches it, and every other one of them. The gaps of the best set are lowered as soon as
possible.

Source: paper 002, section 6.1, its baseline VDNN after vDNN++. Departure: none known. Candidates
are compared by their no-wait schedules on the chain itself, as in the paper; only the best is
lifted to the trace. Read next: `sched/planners/dynprog/dynprog.py`; `vdnn_layers.py` for the
original with its full stops.
"""

from __future__ import annotations

from collections.abc import Iterator

from ooctrain.errors import Infeasible
from ooctrain.sched.planning.chain_view import ChainView, chain_view
from ooctrain.sched.planning.decisions import Decisions, runs_once
from ooctrain.sched.planning.lower import lower_timed
from ooctrain.sched.planning.question import Question
from ooctrain.sched.planning.swap import swap_gaps, swap_plan
from ooctrain.sched.schedule import BYTES, Granule, Plan
from ooctrain.step.machine import Machine
from ooctrain.step.trace import Trace


class Vdnn:
    """Paper 002's VDNN on the chain of a trace. Cost: two chain schedules for each stage."""

    name = "vdnn"

    def plan(
        self, trace: Trace, budget_bytes: int, machine: Machine, *, granule: Granule = BYTES,
        host_budget_bytes: int | None = None, seed: int = 0, time_limit_s: float | None = None,
    ) -> Plan:  # fmt: skip
        """See `Planner`. The minimum is the chain's own."""
        view = chain_view(trace, machine, granule)
        view.check_budget(self.name, budget_bytes)
        best = min(
            candidates(view), key=lambda chosen: chain_makespan(view, chosen, budget_bytes, machine)
        )
        question = Question(trace, budget_bytes, machine, granule, host_budget_bytes)
        notes = {"offloaded": len(best), **view.notes()}
        return swap_plan(self.name, question, view.gaps(best), notes)


def candidates(view: ChainView) -> Iterator[tuple[int, ...]]:
    """Nothing at all, and for each threshold the full set and every other member of it.

    The last full set is everything, which fits wherever the chain does.
    """
    yield ()
    ratio = {i: view.forward_ns[i] / view.x[i] for i in range(len(view)) if view.x[i]}
    for threshold in sorted(set(ratio.values()), reverse=True):
        chosen = tuple(i for i in ratio if ratio[i] >= threshold)
        yield chosen
        yield chosen[::2]


def chain_makespan(
    view: ChainView, chosen: tuple[int, ...], budget_bytes: int, machine: Machine
) -> float:
    """Of the chain's no-wait schedule with these activations offloaded; infinite if too large."""
    trace = view.as_chain()
    offloaded = set(chosen)
    # x_0 .. x_{L+1} are the first variables of a chain.
    gaps = tuple(gap for gap in swap_gaps(trace) if gap.var in offloaded)
    decisions = Decisions(runs_once(trace), gaps)
    try:
        lowered = lower_timed(decisions, trace, budget_bytes - view.pinned_bytes, machine)
    except Infeasible:
        return float("inf")
    return lowered.makespan_ns
