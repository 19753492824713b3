"""An allocation log from a schedule, without running it.

In: a trace and its schedule. Out: an `AllocationLog` of some training steps. The one idea: the
executor and this file make their requests by the same `Placement`, so the log is the one that a
real run would leave, whatever the size of the machine. Read next: `placement.py`,
`alloc/replay/replay.py`.
"""

from __future__ import annotations

from ooctrain.alloc.dry_run import DryAllocator
from ooctrain.alloc.replay.log import AllocationLog, Recorder
from ooctrain.execution.placement import PARAMETER_KINDS, Placement, play_step
from ooctrain.execution.program import make_program
from ooctrain.sched.schedule import Schedule
from ooctrain.step.trace import Trace
from ooctrain.units import Granule

#: The first step maps and warms up; from the third on nothing changes any more.
LOGGED_STEPS = 3


def allocation_log(
    trace: Trace, schedule: Schedule, budget_bytes: int, granule: Granule | None = None,
    allocator: str = "", steps: int = LOGGED_STEPS, about: str = "",
) -> AllocationLog:  # fmt: skip
    """What a schedule asks of an allocator in its first steps.

    Args:
        budget_bytes: that it was planned for; it is only noted.
        granule: how the allocator rounds; None: as it was planned.
        allocator: its name; it is only noted.
        about: for people.

    Raises:
        PlanMismatch: the schedule moves parts that such an allocator cannot hold.
    """
    rounding = DryAllocator(granule or schedule.granule, allocator)
    program = make_program(trace, schedule, rounding)
    recorder = Recorder(DryAllocator(program.schedule.granule, allocator))
    placement = Placement(program, recorder)
    for _ in range(steps):
        recorder.mark_step()
        placement.claim_start()
        play_step(placement)
    parameters = frozenset(v.name for v in trace.variables if v.kind in PARAMETER_KINDS)
    return AllocationLog(
        tuple(recorder.requests), allocator, program.schedule.granule, budget_bytes, about,
        parameters,
    )  # fmt: skip
