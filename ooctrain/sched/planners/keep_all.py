"""keep-all: the step in-core. Everything stays from its first to its last use.

This list is the baseline for every other planner; where it does not fit, it raises Infeasible. Only
the inputs move: they come from the host once. A dead value is freed at once. Where the budget
allows, the inputs come first, so that no later call waits for one. Source: the "baseline" of paper
000, section 5. Read next: `naive.py`.
"""

from __future__ import annotations

from ooctrain.sched.planning.list_writer import ListWriter
from ooctrain.sched.planning.planner import check_host, infeasible, make_plan
from ooctrain.sched.planning.question import Question
from ooctrain.sched.schedule import Granule, Plan
from ooctrain.step.trace import Trace


class KeepAll:
    """In-core: feasible if and only if everything fits. Cost: O(calls + variables)."""

    name = "keep-all"

    def plan(self, question: Question) -> Plan:
        """See `Planner`. The minimum is the in-core peak."""
        trace, budget_bytes, granule = question.trace, question.budget_bytes, question.granule
        writer = write_in_core(trace, granule, early_inputs=True)
        if writer.peak_bytes > budget_bytes:
            writer = write_in_core(trace, granule, early_inputs=False)
        plan = make_plan(writer.finish(), trace, question.machine)
        check_host(self.name, plan, question.host_budget_bytes)
        if writer.peak_bytes > budget_bytes:
            raise infeasible(self.name, budget_bytes, writer.peak_bytes, writer.peak_call)
        return plan


def write_in_core(trace: Trace, granule: Granule, *, early_inputs: bool) -> ListWriter:
    """The in-core list, its last frees still to be written.

    Args:
        early_inputs: all inputs before the first call, else each right before the call that reads
            it.
    """
    inputs = [v for v in trace.initial if not trace.variables[v].persistent]
    persistent = [v for v in trace.initial if trace.variables[v].persistent]
    writer = ListWriter(trace, granule, device=persistent, host=inputs)
    for variable in inputs:
        if early_inputs and trace.readers[variable]:
            writer.swap_in(variable)
    for call in trace.calls:
        for variable in call.touched():
            if variable in writer.hosted:
                writer.swap_in(variable)
        writer.run(call.id)
        writer.free_dead(call.id)
    return writer
