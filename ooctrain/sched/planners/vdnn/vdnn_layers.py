"""vdnn-all, vdnn-conv: layer inputs go to the host, layer by layer, with a full stop after each.

While a layer runs forward, its input is copied out, and the next layer waits for both. While a
layer runs backward, the input that will be needed next is copied in, and the next layer waits for
both. `vdnn-all` does so for every layer, `vdnn-conv` for convolutions only, whose long run time may
hide the copy. The list does not depend on the budget.

Sources: Rhu et al., vDNN (2016), as papers 000 and 002 (section 2.2) describe it; an open
re-implementation (vdnn-plus-plus, neural_net.cu), from which we take that an input with several
readers leaves with the last of them, and that the step waits on both streams after each layer. Here
a layer is a call. Read next: `vdnn.py`, paper 002's stronger version.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from ooctrain.layers.conv2d import Conv2d
from ooctrain.sched.planners.hmms import Offloadable, check_ratio, offloadable_storages, take
from ooctrain.sched.planning.list_writer import ListWriter, writer_with_resident_parameters
from ooctrain.sched.planning.planner import check_host, infeasible, make_plan, turning_point
from ooctrain.sched.planning.question import Question
from ooctrain.sched.schedule import BYTES, Granule, Plan
from ooctrain.step.machine import Machine
from ooctrain.step.op import computed_by
from ooctrain.step.trace import Trace


class _AfterEachLayer(ABC):
    """A planner whose one list stops after each layer; subclasses say what leaves."""

    name: str

    @abstractmethod
    def leaving(self, trace: Trace) -> Iterable[Offloadable]:
        """What goes to the host and comes back, in order of leaving."""

    def plan(
        self, trace: Trace, budget_bytes: int, machine: Machine, *, granule: Granule = BYTES,
        host_budget_bytes: int | None = None, seed: int = 0, time_limit_s: float | None = None,
    ) -> Plan:  # fmt: skip
        """See `Planner`. The minimum is the peak of its only list."""
        question = Question(trace, budget_bytes, machine, granule, host_budget_bytes)
        return _plan(self.name, question, list(self.leaving(trace)))


@dataclass(frozen=True)
class VdnnAll(_AfterEachLayer):
    """vDNN for the inputs of all layers.

    Args:
        ratio: the share of their bytes that leaves, from 0 to 1, as paper 004 limits it.

    Cost: O(uses).
    """

    name = "vdnn-all"

    ratio: float = 1.0

    def __post_init__(self) -> None:
        check_ratio(self.name, self.ratio)

    def leaving(self, trace: Trace) -> Iterable[Offloadable]:
        return take(_layer_inputs(trace), self.ratio)


class VdnnConv(_AfterEachLayer):
    """vDNN for the inputs of convolutions. Cost: O(uses)."""

    name = "vdnn-conv"

    def leaving(self, trace: Trace) -> Iterable[Offloadable]:
        return (s for s in _layer_inputs(trace) if _feeds_convolution(trace, s))


def _layer_inputs(trace: Trace) -> Iterator[Offloadable]:
    """What layers read forward and again backward, with a call in between, in order of leaving."""
    for storage in offloadable_storages(trace):
        is_layer_input = trace.variables[storage.var].kind in ("activation", "input")
        if is_layer_input and storage.needed_by - storage.leaves_with > 1:
            yield storage


def _feeds_convolution(trace: Trace, storage: Offloadable) -> bool:
    """Whether one of its forward readers is a convolution."""
    forward = (call for call in trace.readers[storage.var] if call <= storage.leaves_with)
    return any(isinstance(computed_by(trace.calls[call].op), Conv2d) for call in forward)


def _plan(name: str, question: Question, trips: list[Offloadable]) -> Plan:
    writer = _write(question.trace, trips, question.granule)
    plan = make_plan(writer.finish(), question.trace, question.machine)
    if writer.peak_bytes > question.budget_bytes:
        raise infeasible(name, question.budget_bytes, writer.peak_bytes, writer.peak_call)
    check_host(name, plan, question.host_budget_bytes)
    return plan


def _write(trace: Trace, trips: list[Offloadable], granule: Granule) -> ListWriter:
    writer = writer_with_resident_parameters(trace, granule)
    leaving, needed = defaultdict(list), defaultdict(list)
    for trip in trips:
        leaving[trip.leaves_with].append(trip.var)
        needed[trip.needed_by].append(trip.var)
    next_needed = _next_needed(trace, needed)
    for call in trace.calls:
        for variable in dict.fromkeys(call.ins):
            writer.swap_in(variable)
        ahead = needed[next_needed[call.id]]
        for variable in ahead:
            writer.swap_in(variable)
        for variable in leaving[call.id]:
            writer.swap_out(variable)
        writer.run(call.id)
        if ahead or leaving[call.id]:
            writer.fence()
        for variable in leaving[call.id]:
            writer.free(variable)
        writer.free_dead(call.id)
    return writer


def _next_needed(trace: Trace, needed: Collection[int]) -> list[int]:
    """For each call the next later one that needs something back.

    -1 in the forward phase, and where there is none.
    """
    following, later, turn = [], -1, turning_point(trace)
    for call in reversed(trace.calls):
        following.append(-1 if call.id < turn else later)
        later = call.id if call.id in needed else later
    return following[::-1]
