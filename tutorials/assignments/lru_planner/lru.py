"""Your planner. It is right where everything fits; make it work where it does not.

It gets a trace and a budget, and returns a plan. Yours to write: the value that has not been
touched for longest leaves. `ListWriter` keeps the books: `resident` (what is on the device),
`hosted` (what has a valid host copy), `ledger_bytes` (claimed now), `claim_bytes(call)` (what a
call claims), `granted(variable)` (what a value takes); and it writes the list: `run`, `swap_in`,
`swap_out`, `free`, `free_dead` (of what no later call touches). Read next: README.md,
`ooctrain/sched/planning/planner.py`.
"""

from ooctrain.sched.planning.planner import (
    check_host,
    infeasible,
    make_plan,
    writer_with_resident_parameters,
)


class Lru:
    """Evicts the least recently used; so far it evicts nothing."""

    name = "my-lru"

    def plan(self, question):
        """See `ooctrain.sched.planning.planner.Planner`."""
        trace, budget_bytes = question.trace, question.budget_bytes
        writer = self.write(trace, budget_bytes, question.granule)
        if writer.peak_bytes > budget_bytes:
            raise infeasible(self.name, budget_bytes, writer.peak_bytes, writer.peak_call)
        plan = make_plan(writer.finish(), trace, question.machine)
        check_host(self.name, plan, question.host_budget_bytes)
        return plan

    def write(self, trace, budget_bytes, granule):
        """The list, call by call. Nothing leaves, whatever the budget: here is your work."""
        writer = writer_with_resident_parameters(trace, granule)
        for call in trace.calls:
            for variable in call.ins:
                writer.swap_in(variable)
            writer.run(call.id)
            writer.free_dead(call.id)
        return writer
