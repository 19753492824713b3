"""A step that is ready to run: its plan, its allocator, and the arena that it needs there.

`fit.py` makes one from a trace and what there is of memory; here one is made from a plan as it
stands, in the arena that it happens to need. Which allocator that is depends on the device: how
large its pages are, and whether anything can be mapped at all. Read next: `fit.py`; `sessions.py`,
which runs it.
"""

from __future__ import annotations

from dataclasses import dataclass

from ooctrain.alloc.registry import AllocatorChoice
from ooctrain.execution.placement import reserved_peak, with_mapping
from ooctrain.execution.promise import Promise
from ooctrain.execution.settings import Settings
from ooctrain.sched.budget import trace_peak_bytes, with_region
from ooctrain.sched.schedule import BYTES, Plan, SwapOut
from ooctrain.sched.simulate import simulate
from ooctrain.sched.timeline import Timeline
from ooctrain.step.machine import Machine
from ooctrain.step.trace import Trace

_LEAST_ARENA_BYTES = 1 << 20


@dataclass(frozen=True)
class PreparedStep:
    """A step that fits.

    Args:
        original: the trace before rewriting.
        plan: verified; `plan.trace` is what runs.
        budget_bytes: size of the arena.
        allocator: chosen, not made.
        reserved_bytes: the allocator's reserved peak, fragmentation included.
        in_core_peak_bytes: what the same step needs without any eviction, in granted bytes; 0: not
            counted, as for a plan that no allocator will place.
        notices: what the user should know.
        promise: how `Settings.memory` was divided; None where it was not given.
    """

    original: Trace
    plan: Plan
    machine: Machine
    budget_bytes: int
    allocator: AllocatorChoice
    reserved_bytes: int
    in_core_peak_bytes: int
    notices: tuple[str, ...] = ()
    promise: Promise | None = None

    @property
    def host_written_bytes(self) -> int:
        """What a step writes to the host: swapped out, and inputs that wait there."""
        schedule, variables = self.plan.schedule, self.plan.trace.variables
        fed = [hi - lo for v, lo, hi in schedule.start_host if not variables[v].persistent]
        return sum(fed) + sum(i.hi - i.lo for i in schedule.instructions if isinstance(i, SwapOut))

    def predict(self, machine: Machine | None = None) -> Timeline:
        """The step as it will run, with what the allocator maps anew; the plan knows no allocator.

        Args:
            machine: to run on; None: that it was planned for.
        """
        plan = self.plan
        found = with_mapping(machine or self.machine, plan.schedule, plan.trace, self.allocator)
        return simulate(plan.schedule, plan.trace, found)

    @property
    def size_bytes(self) -> int:
        """Of the budget that was asked about, the device's or the process's, what it takes."""
        return self.budget_bytes if self.promise is None else self.promise.promised_bytes


def placed(plan: Plan, settings: Settings) -> PreparedStep:
    """A plan as it stands, with an arena of the reserved peak that its allocator needs.

    Raises:
        PlanMismatch: the plan moves parts that this allocator cannot hold.
    """
    machine, choose = settings.find_machine(), settings.chooser(plan.trace)
    roomy_bytes = plan.peak_bytes  # rounds no coarser than the arena that it was planned for
    if plan.schedule.granule == BYTES:
        roomy_bytes = 2 * max(roomy_bytes, _LEAST_ARENA_BYTES)  # here rounding comes on top
    roomy = choose(roomy_bytes, False)
    reserved = reserved_peak(plan.schedule, plan.trace, roomy)
    allocator = choose(reserved, True)
    in_core_bytes = trace_peak_bytes(plan.trace, with_region(allocator.granule, plan.trace))
    return PreparedStep(
        plan.trace, plan, machine, reserved, allocator, reserved, in_core_bytes, allocator.notices
    )
