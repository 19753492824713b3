"""Your planner. It is right, but it keeps everything, so it needs the memory of the whole step.

It gets a trace and a budget, and returns a plan that sends nothing to the host. Yours to write:
some forward calls keep what they made; what the others made is freed, and computed again before it
is needed. `choices` says which calls keep, `write` makes the list of one choice; the fastest that
fits is taken. `ListWriter` keeps the books: `resident`, `peak_bytes`; and it writes the list:
`run` (again, too), `swap_in` of an input, `free`, `free_dead`. `trace.uses[variable]` are the calls
that touch a variable, `trace.producer[variable]` the one that made it. Read next: README.md,
`ooctrain/sched/planning/planner.py`.
"""

from ooctrain.sched.planning.planner import (
    check_host,
    infeasible,
    make_plan,
    writer_with_resident_parameters,
)


class Recompute:
    """Keeps everything."""

    name = "my-recompute"

    def plan(self, question):
        """See `ooctrain.sched.planning.planner.Planner`. Nothing is to be done here."""
        trace, budget_bytes = question.trace, question.budget_bytes
        plans, least = [], None
        for kept in self.choices(trace):
            writer = self.write(trace, question.granule, kept)
            if least is None or writer.peak_bytes < least.peak_bytes:
                least = writer
            if writer.peak_bytes <= budget_bytes:
                plans.append(make_plan(writer.finish(), trace, question.machine))
        if not plans:
            raise infeasible(self.name, budget_bytes, least.peak_bytes, least.peak_call)
        plan = min(plans, key=lambda plan: plan.makespan_us)
        check_host(self.name, plan, question.host_budget_bytes)
        return plan

    def choices(self, trace):
        """Sets of forward calls that keep what they made: one for each plan that is tried. Your
        work: so far there is one choice, all of them.
        """
        return [{call.id for call in trace.calls if call.phase == "forward"}]

    def write(self, trace, granule, kept):
        """The list of one choice. Your work: so far nothing is freed before it is dead, whatever is
        kept.
        """
        writer = writer_with_resident_parameters(trace, granule)
        for call in trace.calls:
            for variable in call.ins:
                writer.swap_in(variable)  # an input; all others are there
            writer.run(call.id)
            writer.free_dead(call.id)
        return writer
