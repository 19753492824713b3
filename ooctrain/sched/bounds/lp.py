"""The LP bound: a makespan that no legal list beats, with or without recomputation.

The bound ignores which byte moves when. At the start and the end of each call it looks at sums
only: bytes sent out so far, bytes fetched so far, bytes released so far, bytes made up for by
computing again. Every legal list has such sums, and they obey the rows of the program; so the least
idle time that the rows allow is a bound, the `FluidBound`. The relaxation permits more than a list
can do: values move and are computed again in fractions, in any order, without latency, and
computing again takes no room for the values that it reads.

Class of schedules covered: the first runs of the calls come in trace order. Any pure call may run
again; to get all of its largest output back takes its whole time, and that of the calls before it
whose outputs have no other reader, and none of it before the first call has begun. Any bytes may
move at any time. Persistent variables may start the step on either side, as long as they end it
there.

Sources: paper 002's relaxed model for the offload part; recomputation is ours. Read next:
`fluid_program.py` for the rows, `closed.py` for bounds without an LP.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ooctrain.sched.bounds.fluid_items import Covered
from ooctrain.sched.bounds.fluid_program import FluidProgram
from ooctrain.sched.bounds.linear import LpSolution
from ooctrain.sched.budget import input_bytes
from ooctrain.sched.schedule import LowerBound
from ooctrain.step.machine import Machine
from ooctrain.step.trace import Trace
from ooctrain.units import format_bytes

#: HiGHS is exact to about 1e-7 of the largest number; the bound gives this share away.
TOLERANCE = 1e-6


@dataclass(frozen=True, slots=True)
class FluidBound:
    """What the LP proves.

    Args:
        makespan_us: the bound: the dual value, less `TOLERANCE` of it.
        primal_us, dual_us: both sides of the LP.
        recompute: whether it covers lists that run calls again.
        resident: whether it covers only lists that leave persistent variables where they are.
        host_budget_bytes: that they keep to; None: as much host memory as they like.
        memory_prices: {call: us that a byte more while it runs would save}, where that is anything.
    """

    makespan_us: float
    primal_us: float
    dual_us: float
    recompute: bool
    resident: bool
    host_budget_bytes: int | None = None
    memory_prices: Mapping[int, float] = field(default_factory=dict)

    @property
    def covers(self) -> str:
        """The class of schedules, in words."""
        again = "any pure call may run again" if self.recompute else "every call runs once"
        moves = "any bytes but persistent variables'" if self.resident else "any bytes"
        host = self.host_budget_bytes
        room = "" if host is None else f", at most {format_bytes(host)} are on the host"
        return f"{again}, {moves} may move at any time{room}, calls first run in trace order"

    def lower_bound(self) -> LowerBound:
        """As other bounds are given."""
        kind = "LP with recomputation" if self.recompute else "LP of offloading"
        return LowerBound(self.makespan_us, kind)


def fluid_bound(
    trace: Trace, budget_bytes: int, machine: Machine, *, recompute: bool = True,
    resident: bool = False, host_budget_bytes: int | None = None,
) -> FluidBound | None:  # fmt: skip
    """The LP bound; None where no list fits the budget at all.

    Args:
        trace: the step.
        budget_bytes: of the device, to the byte (a coarser granule only makes plans slower).
        machine: durations and the link; latencies count as nothing.
        recompute: whether calls may run again.
        resident: only lists that leave parameters and optimizer slots on the device.
        host_budget_bytes: of inputs and host copies; less than the inputs means the inputs and
            nothing else, as for plans; None: unlimited.

    Cost: an LP of some 15 rows for each call and 3 columns for each gap: 0.5 s for 600 calls.
    """
    if host_budget_bytes is not None:
        host_budget_bytes = max(host_budget_bytes, input_bytes(trace))
    covered = Covered(recompute, resident, host_budget_bytes)
    fluid = FluidProgram(trace, budget_bytes, machine, covered)
    solution = fluid.write().solve()
    if solution is None:
        return None
    compute = fluid.compute_us / fluid.unit_us
    primal, dual = ((compute + idle) * fluid.unit_us for idle in (solution.primal, solution.dual))
    proved = max(fluid.compute_us, min(primal, dual) * (1 - TOLERANCE))
    prices = _memory_prices(fluid, solution)
    return FluidBound(proved, primal, dual, recompute, resident, host_budget_bytes, prices)


def _memory_prices(fluid: FluidProgram, solution: LpSolution) -> dict[int, float]:
    """{call: us saved by a byte more}, of the calls that have a price."""
    per_byte = fluid.unit_us / fluid.budget_bytes
    prices = {
        call: -sum(solution.prices[row] for row in rows) * per_byte
        for call, rows in fluid.fits.items()
    }
    return {call: price for call, price in prices.items() if price > 0}
