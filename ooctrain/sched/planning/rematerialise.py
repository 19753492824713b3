"""Recomputation: the calls that run again when some values of the forward pass are not kept.

From a trace and the values to drop comes a sequence of `Run`s in which every call finds its inputs
alive. A dropped value dies after its last use in the forward pass. When a later call needs it, its
producer runs again first, after the producers of its own missing inputs, depth first. Forward calls
are pure, so a second run gives the same bits (docs/architecture.md, "Laws that hold everywhere").
Sources: Chen et al., Training deep nets with sublinear memory cost, for the idea; paper 001 edits
its graph to the same effect. Read next: `sched/planners/prefix.py`, which chooses what to drop;
`decisions.py` for what the runs become.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from ooctrain.sched.planning.decisions import BEFORE_THE_STEP
from ooctrain.sched.schedule import Run
from ooctrain.step.trace import Trace

_FORWARD = ("forward", "loss")
#: The time after a use: (variable, call of the trace that touches it).
Use = tuple[int, int]


def last_forward_use(trace: Trace, var: int) -> int:
    """The last call of the forward pass (or the loss) that touches a variable.

    `BEFORE_THE_STEP` if there is none.
    """
    uses = (use for use in reversed(trace.uses[var]) if trace.calls[use].phase in _FORWARD)
    return next(uses, BEFORE_THE_STEP)


def droppable(trace: Trace) -> tuple[int, ...]:
    """The values that recomputation is about, in order of production.

    Outputs of pure forward calls that are read after the forward pass.
    """
    return tuple(
        variable.id
        for variable in trace.variables
        if variable.nbytes
        and (producer := trace.producer[variable.id]) is not None
        and trace.calls[producer].pure
        and trace.calls[producer].phase == "forward"
        and trace.uses[variable.id][-1] > last_forward_use(trace, variable.id)
    )


def rematerialise(
    trace: Trace, dropped: Iterable[int], *, again: Iterable[int] = (),
    unread: Iterable[int] = (), held: Iterable[int] = (),
) -> tuple[Run, ...]:  # fmt: skip
    """The runs of a step that computes the dropped values again.

    Args:
        dropped: values that die after their last use in the forward pass. One whose sources are
            gone for good when it is needed (a parameter that has been updated) is kept instead.
        again: those of `dropped` that die again right after the call for which they came back.
        unread: those of `dropped` that do so unless the next call reads them too, as the two calls
            of a batch norm's gradient read the same values.
        held: values that no call reads after the forward pass, but that must stay for the calls
            that run again and read them.

    Returns:
        Every call of the trace once, in order, and before each call the runs that bring back its
        missing inputs.

    Cost: O(calls + runs that are added + values of `unread` that are back at each call), once more
    for each value that has to be kept instead.
    """
    dropped, again, unread, held = map(frozenset, (dropped, again, unread, held))
    while True:
        walk = _Walk(trace, dropped, again, unread, held)
        lost = walk.play()
        if lost is None:
            return tuple(walk.runs)
        assert lost in dropped, "a value is missing that was not dropped"
        dropped -= {lost}


class _Walk:
    """One walk over the step.

    Attributes:
        alive: values that a call can read now.
        revived: those that were computed again, also if they have been dropped since then.
        watched: those of these that may die after a call that does not touch them: they have just
            come back, or die once they are unread.
        runs: what has been decided so far.
    """

    def __init__(
        self, trace: Trace, dropped: Collection[int], again: Collection[int],
        unread: Collection[int], held: Collection[int],
    ):  # fmt: skip
        self.trace, self.held = trace, held
        self.again, self.unread = again, unread
        self.dropped_after = {var: last_forward_use(trace, var) for var in dropped}
        self.alive, self.revived, self.watched = set(trace.initial), set[int](), set[int]()
        self.runs: list[Run] = []
        self.last_use = [uses[-1] if uses else BEFORE_THE_STEP for uses in trace.uses]
        self.ends = frozenset(trace.end_variables.values())

    def play(self) -> int | None:
        """Walks all calls; returns a dropped value that cannot be computed again, if there is
        one.
        """
        for call in self.trace.calls:
            lost = self._revive([v for v in dict.fromkeys(call.ins) if v not in self.alive])
            if lost is not None:
                return lost
            self._run(call.id, None)
            self._bury(call.id)
        return None

    def _revive(self, targets: list[int]) -> int | None:
        """Runs the producers of values again, and before each those of what it reads, depth first,
        the last value first. Returns the target that cannot be had, if there is one.
        """
        stack = list(targets)
        while stack:
            value = stack[-1]
            if value in self.alive:
                stack.pop()
                continue
            producer = self.trace.producer[value]
            if producer is None or not self.trace.calls[producer].pure:
                return next(v for v in reversed(stack) if v in targets)
            ins = dict.fromkeys(self.trace.calls[producer].ins)
            missing = [v for v in ins if v not in self.alive]
            if missing:
                stack += missing
                continue
            outs = self.trace.calls[producer].outs
            keep = tuple(v for v in outs if v not in self.alive)
            self._run(producer, keep if len(keep) < len(outs) else None)
            self.revived.update(keep)
            self.watched.update(keep)
            stack.pop()
        return None

    def _run(self, call_id: int, keep: tuple[int, ...] | None) -> None:
        call = self.trace.calls[call_id]
        self.runs.append(Run(call_id, keep))
        self.alive.difference_update(call.reuse.values())
        self.alive.update(call.outs if keep is None else keep)

    def _bury(self, call_id: int) -> None:
        """What dies after a call of the trace: by its last use, or because it is dropped."""
        touched = self.trace.calls[call_id].touched()
        self.alive.difference_update([value for value in touched if self._dies(value, call_id)])
        candidates = self.revived.intersection(self.watched.union(touched))
        spent = {value for value in candidates if self._is_spent(value, call_id)}
        self.revived -= spent
        self.alive -= spent
        self.watched = candidates.difference(spent).intersection(self.unread)

    def _is_spent(self, value: int, call_id: int) -> bool:
        """Whether a value that came back dies after a call of the trace."""
        if self.last_use[value] <= call_id or value in self.again:
            return True
        return value in self.unread and value not in self.trace.calls[call_id + 1].ins

    def _dies(self, value: int, call_id: int) -> bool:
        if value in self.ends:
            return False
        if self.last_use[value] <= call_id:
            return value not in self.held or value in self.revived
        return self.dropped_after.get(value) == call_id


# What to drop, segment by segment. Convolutions are expensive and the calls after them are cheap,
# so a network falls into segments that begin with the output of an expensive call, its checkpoint.
# A value belongs to the latest checkpoint it is made from without another in between. Batch
# statistics belong to none: they take almost no memory to keep, and a pass over the values to
# compute. Sources: Chen et al.; paper 001, sections 2.2 and 3.2, whose numbers these are.
# Departure: TensorFlow's batch norm is one node, so there statistics are computed again too.


#: Owner of what is made from inputs and parameters alone.
NO_CHECKPOINT = -1


@dataclass(frozen=True, slots=True)
class SegmentCheckpoint:
    """A value that stays while those of its segment may be computed again.

    Args:
        id: its number, from 1, in order of production.
    """

    id: int
    var: int
    name: str
    size_bytes: int


def checkpoints_by_types(trace: Trace, types: Collection[str]) -> tuple[SegmentCheckpoint, ...]:
    """The outputs of the forward calls of some types, numbered.

    Args:
        types: names of operations, such as "Conv2d"; TensorFlow's "Conv2D" will do.
    """
    wanted = {name.lower() for name in types}
    found = [
        out
        for call in trace.calls
        if call.phase == "forward" and type(call.op).__name__.lower() in wanted
        for out in call.outs
    ]
    variables = [trace.variables[var] for var in found]
    return tuple(SegmentCheckpoint(k, v.id, v.name, v.nbytes) for k, v in enumerate(variables, 1))


def segments(trace: Trace, checkpoints: Collection[int]) -> Mapping[int, tuple[int, ...]]:
    """{checkpoint: the values of its segment that may be dropped}, `NO_CHECKPOINT` among them.

    Args:
        checkpoints: variables.

    Cost: O(uses).
    """
    stay = frozenset(checkpoints)
    order = {out: call.id for call in trace.calls for out in call.outs}
    owner: dict[int, int] = {}
    for call in trace.calls:
        if call.phase == "forward":
            sources = [owner[var] for var in call.ins if var in owner]
            latest = max(sources, key=lambda var: order.get(var, -1), default=NO_CHECKPOINT)
            owner.update({out: out if out in stay else latest for out in call.outs})
    found: dict[int, list[int]] = {var: [] for var in (NO_CHECKPOINT, *sorted(stay))}
    for var in droppable(trace):
        if var not in stay and trace.variables[var].kind != "stat":
            found[owner[var]].append(var)
    return {checkpoint: tuple(values) for checkpoint, values in found.items()}
