"""Your planner. It is right, but every call waits for its values, and every value leaves at once.

It gets a trace and a budget, and returns a plan. Yours to write: a window over the calls to come.
What is read in the window is fetched while earlier calls run, and what is not needed in it leaves
in time. `ListWriter` keeps the books, as in the assignment before: `resident`, `hosted`,
`ledger_bytes`, `claim_bytes(call)`, `granted(variable)`; and it writes the list: `run`, `swap_in`,
`swap_out`, `free`, `free_dead`. `trace.uses[variable]` are the calls that touch a variable. Read
next: README.md, `ooctrain/sched/planning/planner.py`.
"""

from ooctrain.sched.planning.planner import (
    check_host,
    infeasible,
    make_plan,
    writer_with_resident_parameters,
)


class Window:
    """Fetches before each call, and sends everything away after it."""

    name = "my-window"

    def plan(self, question):
        """See `ooctrain.sched.planning.planner.Planner`."""
        trace, budget_bytes, granule = question.trace, question.budget_bytes, question.granule
        least = self.write(trace, 0, granule)
        if least.peak_bytes > budget_bytes:
            raise infeasible(self.name, budget_bytes, least.peak_bytes, least.peak_call)
        plan = make_plan(self.write(trace, budget_bytes, granule).finish(), trace, question.machine)
        check_host(self.name, plan, question.host_budget_bytes)
        return plan

    def write(self, trace, budget_bytes, granule):
        """The list, call by call. With a budget of 0 it shows the least that the rule needs. Here
        is your work: nothing is fetched early, and everything leaves.
        """
        writer = writer_with_resident_parameters(trace, granule)
        for call in trace.calls:
            for variable in dict.fromkeys(call.ins):
                writer.swap_in(variable)
            writer.run(call.id)
            writer.free_dead(call.id)
            for variable in call.touched():
                if variable in writer.resident and not trace.variables[variable].persistent:
                    writer.swap_out(variable)
                    writer.free(variable)
        return writer
