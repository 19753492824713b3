"""bn-recompute: outputs of batch norms are computed again; another planner does the rest.

The planner edits the step so that the outputs of batch norms come back in the backward pass, and a
named planner that swaps then plans the edited step. A batch norm (with the ReLU fused to it) keeps
two values of one size, its input and its output, and makes one from the other in a single pass over
memory. If only the input and the statistics are kept, the step generates half as many bytes, so the
link can carry a larger share of them.

Source: paper 004, section 6.3, which takes over the idea of Rota Bulo et al., In-place activated
batch norm (2018). Departures: they keep the output and invert the norm, we keep the input and apply
it again, which is exact; a norm to which a shortcut is added is left alone, since its output would
need that of the block before, and so on to the first. Read next: `hmms.py`,
`sched/planning/unroll.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from ooctrain.errors import ConfigError
from ooctrain.layers.batch_norm import BatchNormApply
from ooctrain.layers.relu import ReLU
from ooctrain.sched.planners.belady import Belady
from ooctrain.sched.planners.hmms import Hmms
from ooctrain.sched.planners.lms import LmsAuto
from ooctrain.sched.planners.window import WindowCyclic
from ooctrain.sched.planning.planner import Planner, turning_point
from ooctrain.sched.planning.question import Question
from ooctrain.sched.planning.rematerialise import droppable, rematerialise
from ooctrain.sched.planning.unroll import plan_runs
from ooctrain.sched.schedule import Plan
from ooctrain.step.machine import Machine, call_durations_ns
from ooctrain.step.op import computed_by
from ooctrain.step.trace import Call, Trace

#: Who may plan the rest: planners that list each call once.
SWAPPERS: Mapping[str, Callable[[], Planner]] = MappingProxyType(
    {"belady": Belady, "hmms": Hmms, "lms-auto": LmsAuto, "window-cyclic": WindowCyclic}
)


@dataclass(frozen=True, slots=True)
class BnRecompute:
    """Batch norms run again, and a planner that swaps.

    Args:
        swap: its name.

    Cost: that of the planner.
    """

    name = "bn-recompute"

    swap: str = "hmms"

    def __post_init__(self) -> None:
        if self.swap not in SWAPPERS:
            raise ConfigError(
                f"bn-recompute: swap={self.swap!r} is not a planner that can swap with it",
                code="OOC-105",
                fix=f"one of {', '.join(SWAPPERS)}",
            )

    def plan(self, question: Question) -> Plan:
        """See `Planner`. The minimum is that of the swapping planner on the step that results."""
        trace = question.trace
        dropped = outputs_of_norms(trace)
        runs, notes = rematerialise(trace, dropped), {"dropped": len(dropped), "swap": self.swap}
        return plan_runs(self.name, question, runs, SWAPPERS[self.swap](), notes)


def outputs_of_norms(trace: Trace) -> tuple[int, ...]:
    """The outputs of batch norms without a shortcut, and of ReLUs right after them."""

    def comes_from_norm(call: Call) -> bool:
        op = computed_by(call.op)
        if isinstance(op, BatchNormApply):
            return not op.residual
        before = trace.producer[call.ins[0]] if isinstance(op, ReLU) else None
        return before is not None and comes_from_norm(trace.calls[before])

    return tuple(
        var for var in droppable(trace) if comes_from_norm(trace.calls[trace.uses[var][0]])
    )


def generated_bytes(trace: Trace, dropped: Collection[int] = ()) -> Mapping[int, int]:
    """{variable: bytes} of what forward calls make and backward calls read."""
    turn = turning_point(trace)
    return {
        v.id: v.nbytes
        for v in trace.variables
        if not v.persistent
        and v.id not in dropped
        and (producer := trace.producer[v.id]) is not None
        and producer < turn <= trace.uses[v.id][-1]
    }


def offloadable_share(trace: Trace, machine: Machine, dropped: Collection[int] = ()) -> float:
    """Bytes that the link carries during the forward pass over those that the backward pass needs;
    more than 1 where the link is not the limit.

    Args:
        dropped: values that are computed again and so need no transfer.

    Reference: paper 004, figure 1 and section 6.3: 55 % of ResNet-18, 70 % with norms recomputed.
    """
    forward_us = sum(call_durations_ns(trace, machine)[: turning_point(trace)]) / 1000
    generated = sum(generated_bytes(trace, dropped).values())
    return forward_us * machine.out_bytes_per_us / max(1, generated)
