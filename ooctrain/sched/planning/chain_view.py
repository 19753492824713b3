"""A trace seen as one of paper 002's chains: `oc.chain_view(trace)`.

A `ChainView` has stages with the paper's sizes and times, the least budget at which chain planners
work, and the way back from the paper's decisions to gaps of the trace. A cut is where a single
value crosses from the forward calls before it to those after it. All calls between two cuts,
branches included, form one virtual layer. Backward, stage i begins where stage i or one before it
is differentiated, or something that these read is used, for the first time. So by definition x_i
may be away during all stages between F_i and B_i, whatever the trace looks like. Other memory
(gradients that wait, values used once more) is counted as a stage's extra memory. The view never
promises memory that the trace does not have.

Source: paper 002, sections 3.1 and 6.1 ("grouping each non-linear part of the graph in a virtual
layer"). Departures: x_{i+1} is all that stage i leaves for backward, not its output alone; a value
that no backward call reads is not a cut (docs/errata.md, wording of 002), so that a convolution and
its ReLU are one stage; the loss belongs to B_L. Read next: `sched/planners/greedy.py`,
`sched/planners/dynprog.py`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from ooctrain.sched.planning.decisions import Gap, runs_once
from ooctrain.sched.planning.planner import infeasible, turning_point
from ooctrain.sched.planning.residency import Liveness
from ooctrain.sched.planning.swap import swap_gaps
from ooctrain.sched.schedule import BYTES, Granule
from ooctrain.step.chain import NS_PER_US, chain
from ooctrain.step.machine import Machine, call_durations_ns
from ooctrain.step.presets import machine as find_machine
from ooctrain.step.trace import Trace


@dataclass(frozen=True, slots=True)
class ChainStage:
    """One virtual layer.

    Args:
        forward, backward: ids of its calls, F_i and B_i.
        output: the value that crosses to the next stage; None after the last.
        saved: all that it makes and backward calls read: the variables of x_{i+1}, the output among
            them.
    """

    forward: range
    backward: range
    output: int | None
    saved: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ChainView:
    """Paper 002's numbers for a trace, for i = 0 .. L, x and y up to L + 1. Sizes are granted
    bytes.

    Args:
        stages: L + 1 of them.
        inputs: the variables of x_0: what stage 0 reads, backward calls read again, and may leave.
        x, y: |x_i|, |y_i|: what crosses between stages forward and is saved, what crosses backward.
        forward_ns, backward_ns: u_F, u_B.
        extra_forward, extra_backward: ex^F, ex^B.
        pinned_bytes: what persists, outside the chain.
        start_bytes: on the device before the step.
        stages_of_step: stages at the finest; more than `len(stages)` where the view was made
            coarser.
    """

    trace: Trace
    stages: tuple[ChainStage, ...]
    inputs: tuple[int, ...]
    x: tuple[int, ...]
    y: tuple[int, ...]
    forward_ns: tuple[int, ...]
    backward_ns: tuple[int, ...]
    extra_forward: tuple[int, ...]
    extra_backward: tuple[int, ...]
    pinned_bytes: int
    start_bytes: int
    stages_of_step: int

    def __len__(self) -> int:
        return len(self.stages)

    def notes(self) -> dict[str, int]:
        """What a plan says of its chain: its stages, and how many there were if some are joined."""
        stages = len(self)
        if stages == self.stages_of_step:
            return {"stages": stages}
        return {"stages": stages, "stages_of_step": self.stages_of_step}

    def minimum(self) -> tuple[int, str]:
        """(bytes, call): the chain's own minimum: everything is away but what a stage itself
        touches.
        """
        return self._largest([self.x[i] + self.x[i + 1] for i in range(len(self))])

    def peak(self) -> tuple[int, str]:
        """(bytes, call): M_peak: nothing is away."""
        return self._largest(list(accumulate(self.x))[1:])

    def gaps(self, offloaded: Iterable[int]) -> list[Gap]:
        """The gaps in which x_i is away from F_i to B_i, for the i that a planner chose."""
        chosen = {v for i in offloaded for v in self.variables(i)}
        turn = self.stages[-1].backward.start
        return [
            gap
            for gap in swap_gaps(self.trace)
            if gap.var in chosen and gap.after < turn <= gap.before
        ]

    def variables(self, i: int) -> tuple[int, ...]:
        """The variables of x_i."""
        return self.inputs if i == 0 else self.stages[i - 1].saved

    def as_chain(self) -> Trace:
        """The view as a trace of its own (`oc.chain`), to be planned in a budget less
        `pinned_bytes`.
        """
        return chain(
            self.x, self.y, [ns / NS_PER_US for ns in self.forward_ns],
            [ns / NS_PER_US for ns in self.backward_ns], self.extra_forward, self.extra_backward,
        )  # fmt: skip

    def check_budget(self, planner: str, budget_bytes: int) -> None:
        """Raises Infeasible below the chain's minimum."""
        least, witness = self.minimum()
        if least > budget_bytes:
            raise infeasible(planner, budget_bytes, least, witness)

    def _largest(self, present: Sequence[int]) -> tuple[int, str]:
        """The most that a stage needs while these bytes of x are present."""
        needs = [(self.start_bytes, "the start")]
        for i, stage in enumerate(self.stages):
            forward = self.pinned_bytes + self.extra_forward[i] + present[i]
            gradients = self.y[i] + self.y[i + 1]
            backward = self.pinned_bytes + self.extra_backward[i] + gradients + present[i]
            needs.append((forward, _name_of(self.trace, stage.forward)))
            needs.append((backward, _name_of(self.trace, stage.backward)))
        return max(needs, key=lambda need: need[0])


def chain_view(
    trace: Trace, machine: str | Machine | None = None, granule: Granule = BYTES,
    most_stages: int | None = None,
) -> ChainView:  # fmt: skip
    """A trace as a chain.

    Args:
        trace: any step; one without a single cut is a chain of one stage.
        machine: gives the times; a name, or None for this machine as calibrated.
        most_stages: a planner whose table grows with the cube of the stages asks for no more than
            these. Cuts are then left out, evenly, so that a stage spans several layers; whatever is
            planned for it is a plan of the step all the same.

    Cost: O(calls + uses).
    """
    where = find_machine(machine)
    turn = turning_point(trace)
    movable = _movable(trace, turn)
    cuts = list(_cuts(trace, movable, turn))
    stages_of_step = len(cuts) + 1
    cuts = evenly(cuts, (most_stages or stages_of_step) - 1)
    forward = [range(lo, hi) for lo, hi in pairwise([0, *(cut for cut, _ in cuts), turn])]
    groups = _groups(trace, movable, forward)
    backward = _backward_stages(trace, groups, forward)
    outputs = [*(value for _, value in cuts), None]
    stages = tuple(
        ChainStage(f, b, output, saved)
        for f, b, output, saved in zip(forward, backward, outputs, groups[1:], strict=True)
    )
    durations = call_durations_ns(trace, where)
    liveness = Liveness(trace, granule)
    resident = liveness.resident_bytes(runs_once(trace))
    stays = [v for v in trace.initial if trace.variables[v].persistent and v not in movable]
    pinned = _granted_bytes(trace, stays, granule)
    x = tuple(_granted_bytes(trace, group, granule) for group in groups)
    y = tuple(_crossing_gradients(trace, turn, backward, granule))
    during_forward = [pinned + held for held in list(accumulate(x))[1:]]
    during_backward = [held + y[i] + y[i + 1] for i, held in enumerate(during_forward)]
    return ChainView(
        trace,
        stages,
        inputs=groups[0],
        x=x,
        y=y,
        forward_ns=tuple(sum(durations[k] for k in f) for f in forward),
        backward_ns=tuple(sum(durations[k] for k in b) for b in backward),
        extra_forward=tuple(
            _extra(resident, f, known) for f, known in zip(forward, during_forward, strict=True)
        ),
        extra_backward=tuple(
            _extra(resident, b, known) for b, known in zip(backward, during_backward, strict=True)
        ),
        pinned_bytes=pinned,
        start_bytes=liveness.start_bytes,
        stages_of_step=stages_of_step,
    )


def evenly(cuts: Sequence[tuple[int, int]], most: int) -> list[tuple[int, int]]:
    """A limited number of some cuts, with equally many left out before each of them."""
    if len(cuts) <= most:
        return list(cuts)
    return [cuts[(place + 1) * (len(cuts) + 1) // (most + 1) - 1] for place in range(most)]


def _granted_bytes(trace: Trace, variables: Iterable[int], granule: Granule) -> int:
    return sum(granule.granted(trace.variables[v].nbytes) for v in variables)


def _movable(trace: Trace, turn: int) -> frozenset[int]:
    """What a chain may offload or be cut at: touched forward, and not updated by the step.

    A persistent value that is not a parameter counts where forward and backward calls read it: the
    x_0 of `oc.chain`.
    """
    return frozenset(
        variable.id
        for variable in trace.variables
        if (uses := trace.uses[variable.id])
        and uses[0] < turn
        and (
            not variable.persistent
            or (variable.kind == "state" and _rests(trace, variable.id) and uses[-1] >= turn)
        )
    )


def _rests(trace: Trace, variable: int) -> bool:
    return variable not in trace.carries and variable not in trace.carried_from


def _cuts(trace: Trace, movable: frozenset[int], turn: int) -> Iterator[tuple[int, int]]:
    """(call, value): forward calls before which the chain may be cut, ascending, and the value that
    crosses there. The stage before makes it: an input that crosses alone is x_0, not what stages
    hand on.
    """
    start = 0
    crossing: set[int] = set()
    last_forward = {v: trace.uses[v][bisect_left(trace.uses[v], turn) - 1] for v in movable}
    for call in trace.calls[: max(0, turn - 1)]:
        crossing.update(v for v in call.touched() if v in movable)
        crossing = {v for v in crossing if last_forward[v] > call.id}
        if len(crossing) == 1:
            (value,) = crossing
            made = trace.producer[value]
            if made is not None and made >= start and trace.uses[value][-1] >= turn:
                start = call.id + 1
                yield start, value


def _groups(
    trace: Trace, movable: frozenset[int], forward: Sequence[range]
) -> list[tuple[int, ...]]:
    """The variables of x_0 .. x_{L+1}: initial ones with the stage that reads them first, others
    with the stage after the one that makes them.
    """
    stage_of = {k: i for i, calls in enumerate(forward) for k in calls}
    turn = forward[-1].stop
    groups: list[list[int]] = [[] for _ in range(len(forward) + 1)]
    for v in sorted(movable):
        if trace.uses[v][-1] >= turn and trace.variables[v].nbytes:
            made_here = trace.producer[v] is not None
            groups[stage_of[trace.uses[v][0]] + made_here].append(v)
    return [tuple(group) for group in groups]


def _backward_stages(
    trace: Trace, groups: Sequence[tuple[int, ...]], forward: Sequence[range]
) -> list[range]:
    """B_0 .. B_L. B_i begins with the first call that differentiates one of stages 0 .. i, or reads
    anything in x_0 .. x_i.
    """
    turn, end = forward[-1].stop, len(trace.calls)
    differentiated: dict[int | None, int] = {}  # forward call -> the first call of its backward
    for call in trace.calls[turn:]:
        differentiated.setdefault(call.forward_of, call.id)
    begins: list[int] = []
    for calls, group in zip(forward, groups, strict=False):
        reads = (trace.uses[v][bisect_left(trace.uses[v], turn)] for v in group)
        differentiates = (differentiated.get(k, end) for k in calls)
        begins.append(min([end, *begins[-1:], *reads, *differentiates]))
    begins[-1] = turn
    return [range(lo, hi) for lo, hi in zip(begins, [end, *begins[:-1]], strict=True)]


def _crossing_gradients(
    trace: Trace, turn: int, backward: Sequence[range], granule: Granule
) -> Iterator[int]:
    """y_0 .. y_{L+1}: what backward calls before the end of B_i make for later ones."""
    change = [0] * (len(trace.calls) + 2)  # in the bytes that cross into each call
    for variable in trace.variables:
        uses = trace.uses[variable.id]
        if uses and uses[0] >= turn and not variable.persistent:
            change[uses[0] + 1] += granule.granted(variable.nbytes)
            change[uses[-1] + 1] -= granule.granted(variable.nbytes)
    crossing = list(accumulate(change))
    yield from (crossing[stage.stop] for stage in backward)
    yield 0  # y_{L+1} is made and used within B_L, to which the loss belongs


def _extra(resident_bytes: Sequence[int], calls: range, explained_bytes: int) -> int:
    return max((max(0, resident_bytes[k] - explained_bytes) for k in calls), default=0)


def _name_of(trace: Trace, calls: range) -> str:
    return trace.calls[calls.start].name if calls else "an empty stage"
