"""A step as a graph of nodes that run as a whole, which is what `checkmate` decides about.

A node is a call. In a long step it is a few calls in a row that want the same values: the updates
of running statistics and parameters belong to the call before them, batch statistics to the
convolution, and a backward call joins the one before it if it reads no further value of the
forward pass. Then the program has a third of the rows, at the price that a node runs as a whole.
Parameters and what is updated in place never leave, so they are a number of bytes, not values.
Source: Checkmate's graph of operations; the grouping is that of Rockmate (Zhao et al. 2023) in
small. Read next: `checkmate_program.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from ooctrain.sched.planning.residency import Liveness, always_resident
from ooctrain.sched.schedule import Run
from ooctrain.step.trace import Call, Trace

BEFORE = -1  # the node that makes what is there before the step
FORWARD = ("forward", "loss")
#: A value of less than this share of the largest one is no reason for a node of its own.
SMALL = 1 / 256


@dataclass(frozen=True, slots=True)
class RunNode:
    """Calls that run one after the other.

    Args:
        calls: their ids.
        ins: values from other nodes that they read.
        outs: values that other nodes or the next step read.
        claim_bytes: the most that they claim beside what is held before them.
        again: whether they may run again.
    """

    calls: tuple[int, ...]
    ins: tuple[int, ...]
    outs: tuple[int, ...]
    claim_bytes: int
    again: bool


class RunGraph:
    """The nodes of a step.

    Args:
        liveness: of the step.
        rows: the calls of each node, in order.

    Attributes:
        nodes: in order.
        resident_bytes: of what stays on the device all the time.
        made: {value: the node that makes it}; an input is made by its first reader, which waits for
            the copy. `BEFORE` for what is on the device before the step.
        fetched: inputs; no node makes them again.
        users: {value: the nodes that read it}.
        taker: {value: the node that takes over its storage}.
        ends: values that the next step needs.
        until: for each node the last stage in which it can run, as a parameter that it reads is
            updated then.
    """

    def __init__(self, liveness: Liveness, rows: Sequence[tuple[int, ...]]):
        self.trace, self.size = liveness.trace, liveness.size
        self._liveness = liveness
        self._fixed, self._updated = always_resident(self.trace)
        self.resident_bytes = sum(
            self.size[v] for v in self._fixed if self.trace.producer[v] is None
        )
        node_of = {call: place for place, row in enumerate(rows) for call in row}
        self.ends = frozenset(self.trace.end_variables.values()) - self._fixed
        self.fetched = liveness.inputs
        self.made: dict[int, int] = {}
        self.users: dict[int, tuple[int, ...]] = {}
        for v, producer in enumerate(self.trace.producer):
            readers = tuple(sorted({node_of[call] for call in self.trace.readers[v]}))
            if v in self._fixed or not (readers or v in self.ends):
                continue
            if v in self.fetched:
                self.made[v], self.users[v] = readers[0], readers
            else:
                self.made[v] = made = BEFORE if producer is None else node_of[producer]
                self.users[v] = tuple(node for node in readers if node != made)
        self.taker = {v: node_of[call] for v, call in self.trace.taker.items()}
        self.nodes = [self._node(place, row) for place, row in enumerate(rows)]
        last = len(rows)
        self.until = [
            min([node_of[self._updated[v]] for c in row for v in self._reads(c)], default=last)
            for row in rows
        ]

    def _reads(self, call: int) -> Iterator[int]:
        """The parameters it reads that are updated in place later."""
        return (v for v in self.trace.calls[call].ins if v in self._updated)

    def _node(self, place: int, row: tuple[int, ...]) -> RunNode:
        calls = [self.trace.calls[call] for call in row]
        read = dict.fromkeys(v for call in calls for v in call.ins if v in self.made)
        ins = tuple(v for v in read if self.made[v] != place or v in self.fetched)
        written = [v for call in calls for v in call.outs if v in self.made]
        outs = tuple(v for v in written if self.users[v] or v in self.ends)
        again = any(call.pure for call in calls) and not any(
            v in outs for call in calls if not call.pure for v in call.outs
        )
        return RunNode(row, ins, outs, self._claim_bytes(calls, outs), again)

    def _claim_bytes(self, calls: Sequence[Call], outs: tuple[int, ...]) -> int:
        """The most that some calls take beside what they find."""
        inside, most, size = dict[int, int](), 0, self.size
        last = {v: call.id for call in calls for v in call.touched()}
        taken_bytes = 0  # storages from outside that have gone over to outputs
        for call in calls:
            most = max(
                most, sum(inside.values()) - taken_bytes + self._liveness.claim_bytes[call.id]
            )
            for out, source in call.reuse.items():
                if out not in self._fixed and inside.pop(source, None) is None:
                    taken_bytes += size[source]
            inside |= {v: size[v] for v in call.outs if v not in self._fixed}
            inside = {v: s for v, s in inside.items() if v in outs or last[v] > call.id}
        return most

    def runs(self, chosen: Iterable[tuple[int, int]]) -> tuple[Run, ...]:
        """The runs that some (stage, node) mean, without those whose outputs are never read.

        Args:
            chosen: which nodes run in which stages; each in its own stage besides.
        """
        pairs = sorted({*chosen, *((place, place) for place in range(len(self.nodes)))})
        wanted = set(self.trace.end_variables.values())
        runs: list[Run] = []
        for stage, place in reversed(pairs):
            for number in reversed(self.nodes[place].calls):
                call = self.trace.calls[number]
                kept = call.outs
                if stage != place:
                    kept = tuple(v for v in call.outs if v in wanted)
                    if not (kept and call.pure):
                        continue
                runs.append(Run(number, kept if len(kept) < len(call.outs) else None))
                wanted.difference_update(kept)
                wanted.update(call.ins)
        return tuple(reversed(runs))


def single_calls(trace: Trace) -> list[tuple[int, ...]]:
    """Each call for itself."""
    return [(call.id,) for call in trace.calls]


def grouped_calls(trace: Trace, size: Sequence[int]) -> list[tuple[int, ...]]:
    """Calls in a row that want the same values."""
    small = max(size, default=0) * SMALL
    rows: list[tuple[int, ...]] = []
    read: set[int] = set()  # values of the forward pass that the last row reads
    for call in trace.calls:
        values = _forward_values(trace, call)
        narrow = all(size[v] <= small for v in call.outs)
        if rows and _joins(trace.calls[rows[-1][-1]], call, values <= read, narrow):
            rows[-1] += (call.id,)
        else:
            rows.append((call.id,))
            read = set()
        read |= values
    return rows


def _joins(before: Call, call: Call, reads_no_more: bool, narrow: bool) -> bool:
    """Whether a call belongs to the group of the one before it."""
    if (before.phase in FORWARD) != (call.phase in FORWARD):
        return False
    if not call.pure:
        return True
    if call.phase in FORWARD:
        return narrow and not set(call.ins).isdisjoint(before.outs)
    return reads_no_more


def _forward_values(trace: Trace, call: Call) -> set[int]:
    """What a call reads that the forward pass made."""
    return {
        v for v in call.ins
        if (made := trace.producer[v]) is not None and trace.calls[made].phase in FORWARD
    }  # fmt: skip
