"""naive: layer-wise swapping with a full stop after every instruction group.

Before a call its inputs come in, after it everything leaves, and nothing overlaps: In*, Fence, Run,
Fence, Out*, Free*, Fence. Parameters are no exception: every variable rests on the host between
calls and between steps. The list is as slow as possible, and fits wherever any list fits that runs
each call once. Source: what the authors of paper 000 do in their first step, before there is a
schedule (nnabla's swap_in_out_scheduler). Read next: `window.py`.
"""

from __future__ import annotations

from collections.abc import Collection

from ooctrain.sched.planning.list_writer import ListWriter, bound_to_device
from ooctrain.sched.planning.planner import check_host, infeasible, make_plan
from ooctrain.sched.planning.question import Question
from ooctrain.sched.schedule import Plan
from ooctrain.step.trace import Call


class Naive:
    """Synchronous swapping, feasible down to the largest need of a single call. Cost: O(calls +
    variables).
    """

    name = "naive"

    def plan(self, question: Question) -> Plan:
        """See `Planner`. The minimum is the largest need of a single call."""
        trace, budget_bytes = question.trace, question.budget_bytes
        stays = bound_to_device(trace)
        host = [variable for variable in trace.initial if variable not in stays]
        start = stays.intersection(trace.initial)
        writer = ListWriter(trace, question.granule, device=start, host=host)
        for call in trace.calls:
            _write_call(writer, call, stays)
        plan = make_plan(writer.finish(), trace, question.machine)
        if writer.peak_bytes > budget_bytes:
            raise infeasible(self.name, budget_bytes, writer.peak_bytes, writer.peak_call)
        check_host(self.name, plan, question.host_budget_bytes)
        return plan


def _write_call(writer: ListWriter, call: Call, stays: Collection[int]) -> None:
    for variable in dict.fromkeys(call.ins):
        writer.swap_in(variable)
    writer.fence()
    writer.run(call.id)
    writer.fence()
    for variable in call.touched():
        if variable in writer.resident:
            _part_with(writer, variable, call, stays)
    writer.fence()


def _part_with(writer: ListWriter, variable: int, call: Call, stays: Collection[int]) -> None:
    if writer.is_dead(variable, call.id):
        writer.free(variable)
    elif variable not in stays:
        writer.swap_out(variable)
        writer.free(variable)
