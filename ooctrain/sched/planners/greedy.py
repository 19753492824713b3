"""greedy: the first activations go to the host, until enough memory is free.

The value that is made first is needed last, so it has the most time to go and come back. The
planner therefore offloads the shortest prefix x_0 .. x_k of the chain with at least M_peak - M
bytes, and lowers its gaps as soon as possible. This is optimal where the last activation may go in
part (paper 002, theorem 2); here all go whole, and the difference is the cost of rounding.

Source: paper 002, section 4.2. Departure: the input x_0 has a host copy already and is never copied
out (docs/errata.md, wording of 002). Read next: `dynprog.py`, and `belady.py` for the same
rule without the chain and without the rounding.
"""

from __future__ import annotations

from itertools import accumulate

from ooctrain.sched.planning.chain_view import ChainView, chain_view
from ooctrain.sched.planning.question import Question
from ooctrain.sched.planning.swap import swap_plan
from ooctrain.sched.schedule import Plan


class Greedy:
    """Paper 002's GREEDY on the chain of a trace. Cost: O(uses); lowering costs more."""

    name = "greedy"

    def plan(self, question: Question) -> Plan:
        """See `Planner`. The minimum is the chain's own."""
        budget_bytes = question.budget_bytes
        view = chain_view(question.trace, question.machine, question.granule)
        view.check_budget(self.name, budget_bytes)
        chosen = shortest_prefix(view, budget_bytes)
        notes = {"offloaded": len(chosen), **view.notes()}
        return swap_plan(self.name, question, view.gaps(chosen), notes)


def shortest_prefix(view: ChainView, budget_bytes: int) -> range:
    """0 .. k with the smallest k such that x_0 + .. + x_k is at least M_peak - M."""
    missing = view.peak()[0] - budget_bytes
    if missing <= 0:
        return range(0)
    prefix_bytes = accumulate(view.x[: len(view)])
    return range(next((k + 1 for k, held in enumerate(prefix_bytes) if held >= missing), len(view)))
