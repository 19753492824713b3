"""An allocation log from a schedule, without running it.

A trace and its schedule give an `AllocationLog` of some training steps. The executor and this file
make their requests through the same `Placement`, so the log is the one that a real run would leave,
whatever the size of the machine. Read next: `placement.py`, `alloc/replay/replay.py`.
"""

from __future__ import annotations

from ooctrain.alloc.dry_run import DryAllocator
from ooctrain.alloc.replay.log import AllocationLog, Recorder
from ooctrain.execution.placement import PARAMETER_KINDS, Placement, play_step
from ooctrain.execution.program import Rounding, make_program
from ooctrain.sched.schedule import Schedule
from ooctrain.step.trace import Trace

#: The first step maps and warms up; from the third on nothing changes any more.
LOGGED_STEPS = 3


def allocation_log(
    trace: Trace, schedule: Schedule, budget_bytes: int, allocator: Rounding | None = None,
    steps: int = LOGGED_STEPS,
) -> AllocationLog:  # fmt: skip
    """What a schedule asks of an allocator in its first steps.

    Args:
        budget_bytes: that it was planned for; it is only noted.
        allocator: whose requests they are to be; None: of any that rounds as was planned.

    Raises:
        PlanMismatch: the schedule moves parts that the allocator cannot hold.
    """
    program = make_program(trace, schedule, allocator or DryAllocator(schedule.granule))
    name, granule = allocator.name if allocator else "", program.schedule.granule
    recorder = Recorder(DryAllocator(granule, name))
    placement = Placement(program, recorder)
    for _ in range(steps):
        recorder.mark_step()
        placement.claim_start()
        play_step(placement)
    parameters = frozenset(v.name for v in trace.variables if v.kind in PARAMETER_KINDS)
    requests = tuple(recorder.requests)
    return AllocationLog(requests, name, granule, budget_bytes, parameters=parameters)
