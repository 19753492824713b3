"""What a planner is asked: one question, with the facts of its step that most planners need first.

Step, budget, machine and limits travel together through all parts of a planner, so they are one
value, and `Planner.plan` takes nothing else. What nearly every planner computes first (what is
alive during each call, which gaps may be spent on the host, minimum and peak) is computed when it
is first read, once for all planners that get the same step: `dataclasses.replace` keeps it. A
planner reads what it needs: one that knows no search does not look at `effort`, one that makes a
single list does not look at `cost` and `forms`. Read next: `planner.py`, the interface;
`sched/planners/naive.py`, which reads little, and `sched/planners/belady.py`, which reads more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from ooctrain.sched.budget import input_bytes, trace_minimum_bytes, trace_peak_bytes
from ooctrain.sched.planning.decisions import Gap, movable_gaps, runs_once
from ooctrain.sched.planning.effort import UNHURRIED, Effort
from ooctrain.sched.planning.residency import Liveness
from ooctrain.sched.schedule import BYTES, Granule, Plan
from ooctrain.step.machine import Machine
from ooctrain.step.trace import Trace


def makespan_us(plan: Plan) -> float:
    """How long a step takes by the plan's own claim."""
    return plan.makespan_us


class StepFacts:
    """What follows from a step and a granule alone; each is computed when it is first read."""

    def __init__(self, trace: Trace, granule: Granule):
        self.trace, self.granule = trace, granule

    def describe(self, trace: Trace, granule: Granule) -> bool:
        """Whether these are the facts of this step, counted in this granule."""
        return self.trace is trace and self.granule == granule

    @cached_property
    def liveness(self) -> Liveness:
        """See `Question.liveness`."""
        return Liveness(self.trace, self.granule)

    @cached_property
    def resident_bytes(self) -> Sequence[int]:
        """See `Question.resident_bytes`."""
        return self.liveness.resident_bytes(runs_once(self.trace))

    @cached_property
    def swap_gaps(self) -> Sequence[Gap]:
        """See `Question.swap_gaps`."""
        return movable_gaps(self.trace, runs_once(self.trace))

    @cached_property
    def minimum_bytes(self) -> int:
        """See `Question.minimum_bytes`."""
        return trace_minimum_bytes(self.trace, self.granule)

    @cached_property
    def peak_bytes(self) -> int:
        """See `Question.peak_bytes`."""
        return trace_peak_bytes(self.trace, self.granule)


@dataclass(frozen=True, slots=True)
class Question:
    """A step to be planned, and the limits that its plan has to keep.

    Args:
        trace: the (rewritten) step.
        budget_bytes: limit of everything on the device, in granted bytes.
        machine: times on which decisions and the claimed makespan rest.
        granule: how the allocator rounds, and whether parts of variables may move.
        host_budget_bytes: limit of host copies; None: there is none.
        seed: for planners that draw random numbers.
        effort: how much a search may do.
        cost: of a plan, in us, for planners that compare whole plans. The claimed makespan leaves
            out what an allocator costs (mapping memory, for example); the composer of a step knows
            the allocator, and counts that here.
        forms: {name of a rewrite: the step after it}, other forms of the step with the same bits.
            A planner may plan one of them instead: its plan then has that step as its `trace` and
            the name in its `rewrites`.
        same_bits: whether a planner that asks others leaves out those that rewrite the step so that
            it rounds otherwise.
        facts: of the step, as far as they are known; `replace` hands them on.
    """

    trace: Trace
    budget_bytes: int
    machine: Machine
    granule: Granule = BYTES
    host_budget_bytes: int | None = None
    seed: int = 0
    effort: Effort = UNHURRIED
    cost: Callable[[Plan], float] = makespan_us
    forms: Mapping[str, Trace] = field(default_factory=dict)
    same_bits: bool = False
    facts: StepFacts | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.facts is None or not self.facts.describe(self.trace, self.granule):
            object.__setattr__(self, "facts", StepFacts(self.trace, self.granule))

    @property
    def _facts(self) -> StepFacts:
        assert self.facts is not None
        return self.facts

    @property
    def host_left_bytes(self) -> int | None:
        """What the inputs, which wait on the host, leave of the host budget; None: it is not
        limited. Below 0 nothing fits."""
        limit = self.host_budget_bytes
        return None if limit is None else limit - input_bytes(self.trace)

    @property
    def liveness(self) -> Liveness:
        """What any runs of the step need on the device."""
        return self._facts.liveness

    @property
    def resident_bytes(self) -> Sequence[int]:
        """Bytes on the device during each call if each runs once and nothing leaves."""
        return self._facts.resident_bytes

    @property
    def swap_gaps(self) -> Sequence[Gap]:
        """All gaps that a whole variable may spend on the host while each call runs once."""
        return self._facts.swap_gaps

    @property
    def minimum_bytes(self) -> int:
        """The least budget of any list of whole calls that leaves what persists on the device; 0 %
        of a budget."""
        return self._facts.minimum_bytes

    @property
    def peak_bytes(self) -> int:
        """The budget at which nothing has to leave; 100 % of a budget."""
        return self._facts.peak_bytes
