"""vdnn: inputs of layers travel to the host while layers that compute long hide the copies.

The original, `vdnn-all` and `vdnn-conv`, copies layer by layer. While a layer runs forward, its
input is copied out, and the next layer waits for both. While a layer runs backward, the input that
will be needed next is copied in, and the next layer waits for both. `vdnn-all` does so for every
layer, `vdnn-conv` for convolutions only. The list does not depend on the budget. `vdnn` waits for
nothing and chooses: a layer that computes long for its bytes hides the copy of its input, so every
value of u_F / |x| serves as a threshold, with two candidates each: all activations whose ratio
reaches it, and every other one of them. The gaps of the best set are lowered as soon as possible.

Sources: Rhu et al., vDNN (2016), as papers 000 and 002 (section 2.2) describe it; an open
re-implementation (vdnn-plus-plus, neural_net.cu), from which we take that an input with several
readers leaves with the last of them, and that the step waits on both streams after each layer; here
a layer is a call. `vdnn` is paper 002's baseline (section 6.1), after vDNN++; departure: none
known. Its candidates are compared by their no-wait schedules on the chain itself, as in the paper;
only the best is lifted to the trace. Read next: `sched/planners/dynprog.py`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from ooctrain.errors import Infeasible
from ooctrain.layers.conv2d import Conv2d
from ooctrain.sched.planning.chain_view import ChainView, chain_view
from ooctrain.sched.planning.decisions import Decisions, runs_once
from ooctrain.sched.planning.list_writer import ListWriter, writer_with_resident_parameters
from ooctrain.sched.planning.lower import lower_timed
from ooctrain.sched.planning.offloadable import Offloadable, check_ratio, offloadable_storages, take
from ooctrain.sched.planning.planner import check_host, infeasible, make_plan, turning_point
from ooctrain.sched.planning.question import Question
from ooctrain.sched.planning.swap import swap_gaps, swap_plan
from ooctrain.sched.schedule import Granule, Plan
from ooctrain.step.machine import Machine
from ooctrain.step.op import computed_by
from ooctrain.step.trace import Trace


class _AfterEachLayer(ABC):
    """A planner whose one list stops after each layer; subclasses say what leaves."""

    name: str

    @abstractmethod
    def leaving(self, trace: Trace) -> Iterable[Offloadable]:
        """What goes to the host and comes back, in order of leaving."""

    def plan(self, question: Question) -> Plan:
        """See `Planner`. The minimum is the peak of its only list."""
        return _plan(self.name, question, list(self.leaving(question.trace)))


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


class Vdnn:
    """Paper 002's VDNN on the chain of a trace. Cost: two chain schedules for each stage."""

    name = "vdnn"

    def plan(self, question: Question) -> Plan:
        """See `Planner`. The minimum is the chain's own."""
        budget_bytes, machine = question.budget_bytes, question.machine
        view = chain_view(question.trace, machine, question.granule)
        view.check_budget(self.name, budget_bytes)
        best = min(
            candidates(view), key=lambda chosen: chain_makespan(view, chosen, budget_bytes, machine)
        )
        notes = {"offloaded": len(best), **view.notes()}
        return swap_plan(self.name, question, view.gaps(best), notes)


def candidates(view: ChainView) -> Iterator[tuple[int, ...]]:
    """Nothing at all, and for each threshold the full set and every other member of it.

    The last full set is everything, which fits wherever the chain does.
    """
    yield ()
    ratio = {i: view.forward_ns[i] / view.x[i] for i in range(len(view)) if view.x[i]}
    for threshold in sorted(set(ratio.values()), reverse=True):
        chosen = tuple(i for i in ratio if ratio[i] >= threshold)
        yield chosen
        yield chosen[::2]


def chain_makespan(
    view: ChainView, chosen: tuple[int, ...], budget_bytes: int, machine: Machine
) -> float:
    """Time of the chain's no-wait schedule that offloads these; infinite if too large."""
    trace = view.as_chain()
    offloaded = set(chosen)
    # x_0 .. x_{L+1} are the first variables of a chain.
    gaps = tuple(gap for gap in swap_gaps(trace) if gap.var in offloaded)
    decisions = Decisions(runs_once(trace), gaps)
    try:
        lowered = lower_timed(decisions, trace, budget_bytes - view.pinned_bytes, machine)
    except Infeasible:
        return float("inf")
    return lowered.makespan_ns
