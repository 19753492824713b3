"""A right planner, and wrong ones, as somebody writes them who has read `sched/planning/planner.py`
only.

`Farthest` keeps every law; each of the other classes differs from it in one thought. Read next:
`test_strangers.py`.
"""

from __future__ import annotations

from dataclasses import replace

from ooctrain.sched.planning.planner import (
    ListWriter,
    check_host,
    infeasible,
    make_plan,
    writer_with_resident_parameters,
)
from ooctrain.sched.schedule import SwapOut

NEVER = 10**9


class Farthest:
    """Whoever is used again last leaves, whole; parameters stay."""

    name = "farthest"

    def plan(self, question):
        trace, budget_bytes, granule = question.trace, question.budget_bytes, question.granule
        least = self.least_bytes(trace, granule)
        writer = self.write(trace, max(least, budget_bytes), granule)
        if budget_bytes < least:
            raise infeasible(self.name, budget_bytes, least, writer.peak_call)
        plan = make_plan(self.finish(writer), trace, question.machine)
        check_host(self.name, plan, question.host_budget_bytes)
        return plan

    def least_bytes(self, trace, granule):
        """By bisection: with more memory nothing stops fitting."""
        low, high = 0, self.write(trace, NEVER, granule).peak_bytes
        while low < high:
            middle = (low + high) // 2
            if self.thinks_it_fits(self.write(trace, middle, granule), middle):
                high = middle
            else:
                low = middle + 1
        return low

    def thinks_it_fits(self, writer, budget_bytes):
        return writer.peak_bytes <= budget_bytes

    def start(self, trace, granule):
        return writer_with_resident_parameters(trace, granule)

    def write(self, trace, budget_bytes, granule):
        writer = self.start(trace, granule)
        for call in trace.calls:
            for variable in call.ins:
                if variable not in writer.resident:
                    self.make_room(writer, call, budget_bytes - writer.granted(variable))
                    writer.swap_in(variable)
            self.make_room(writer, call, budget_bytes - self.claim_bytes(writer, call))
            writer.run(call.id)
            self.after(writer, call)
            writer.free_dead(call.id)
        return writer

    def claim_bytes(self, writer, call):
        return writer.claim_bytes(call.id)

    def after(self, writer, call):
        pass

    def finish(self, writer):
        return writer.finish()

    def make_room(self, writer, call, limit_bytes):
        while writer.ledger_bytes > limit_bytes:
            candidates = self.candidates(writer, call)
            if not candidates:
                return
            leaves = self.choose(writer, call, candidates)
            writer.swap_out(leaves)
            writer.free(leaves)

    def candidates(self, writer, call):
        held = set(writer.trace.end_variables) | set(writer.trace.end_variables.values())
        return sorted(writer.resident - held - set(call.touched()))

    def choose(self, writer, call, candidates):
        return max(candidates, key=lambda variable: self.next_use(writer, variable, call))

    def next_use(self, writer, variable, call):
        return next((use for use in writer.trace.uses[variable] if use > call.id), NEVER)


class Stale(Farthest):
    """Starts with parameters on the host as well, and believes that they are updated there."""

    def start(self, trace, granule):
        device = {v for v in trace.initial if trace.variables[v].persistent}
        return ListWriter(trace, granule, device, trace.initial)

    def after(self, writer, call):
        writer.hosted.update(out for out in call.outs if out in writer.trace.carries)


class HalvesApart(Farthest):
    """Copies out in two halves; the second begins a granule late."""

    def finish(self, writer):
        schedule = super().finish(writer)
        step = schedule.granule.size_bytes
        listed = []
        for instruction in schedule:
            if schedule.granule.ranges and isinstance(instruction, SwapOut):
                var, middle = instruction.var, instruction.hi // 2 // step * step
                second = SwapOut(var, middle + step, instruction.hi)
                listed += [SwapOut(var, 0, middle)] * (middle > 0)
                listed += [second] * (second.hi > second.lo)
            else:
                listed.append(instruction)
        return replace(schedule, instructions=tuple(listed))


class ForgetsWorkspace(Farthest):
    """Makes room for outputs alone."""

    def claim_bytes(self, writer, call):
        return writer.claim_bytes(call.id) - writer.granule.granted(call.workspace_bytes)

    def thinks_it_fits(self, writer, budget_bytes):
        bare = tuple(replace(call, workspace_bytes=0) for call in writer.trace.calls)
        without = self.write(replace(writer.trace, calls=bare), budget_bytes, writer.granule)
        return without.peak_bytes <= budget_bytes


class OverAtForks(Farthest):
    """A granule too much where a call reads what another one reads too."""

    def claim_bytes(self, writer, call):
        fork = any(len(writer.trace.readers[variable]) > 1 for variable in call.ins)
        return writer.claim_bytes(call.id) - fork * writer.granule.size_bytes

    def thinks_it_fits(self, writer, budget_bytes):
        forks = any(len(readers) > 1 for readers in writer.trace.readers)
        return writer.peak_bytes <= budget_bytes + forks * writer.granule.size_bytes


class SetOrder(Farthest):
    """Of those that are used about equally late, the first that a set of names happens to give."""

    def choose(self, writer, call, candidates):
        names = {writer.trace.variables[variable].name for variable in candidates}
        by_name = writer.trace.variable_by_name
        late = max(names, key=lambda name: self.next_use(writer, by_name[name].id, call) // 4)
        return by_name[late].id


class TakesTurns(Farthest):
    """Everybody in turn, from where the last plan stopped."""

    def __init__(self):
        self.turn = 0

    def choose(self, writer, call, candidates):
        self.turn += 1
        return candidates[self.turn % len(candidates)]


class EditsItsTrace(Farthest):
    """Takes the look-up table apart that the trace keeps for everybody."""

    def finish(self, writer):
        writer.trace.variable_by_name.clear()
        return super().finish(writer)
