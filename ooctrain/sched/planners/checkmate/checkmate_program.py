"""Checkmate's program: which nodes run in which stage, and which values are kept into the next.

Stage t ends with the first run of node t (the stages advance a frontier). R[t, k] says that node k
runs in stage t, S[t, v] that value v is kept into it. A node runs if each value that it reads is
kept or made in the same stage; a value is kept if it was there. U[t, k] counts the bytes held just
before node k may run: what was held before, plus the outputs of the node before, minus what FREE
lets go after that: values that are neither kept into the next stage nor read later in this one. The
product of these conditions is linear, as FREE is at most each of its factors. Source: Jain et al.,
Checkmate: breaking the memory wall with optimal tensor rematerialization (MLSys 2020): the program
over R, S, U and FREE, and the two-phase rounding. Departures: values instead of nodes are kept, so
a node with several outputs may keep some; a storage that an output takes over is let go; only R has
to be whole, since for whole R the least S and the greatest FREE are. Read next: `checkmate.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ooctrain.sched.bounds.linear import INFINITE, LinearProgram, Term
from ooctrain.sched.planners.checkmate.checkmate_graph import BEFORE, FORWARD, RunGraph

Kept = set[tuple[int, int]]  # (stage, value)


@dataclass(frozen=True, slots=True)
class Freedom:
    """What the program may choose.

    Args:
        whole: whether runs are whole; False: the relaxation.
        backward: whether backward nodes run again, too, and nodes in the forward pass.
    """

    whole: bool = True
    backward: bool = True


class StageProgram:
    """The program for a budget, or for the least one.

    Args:
        graph: the nodes.
        time_ns: of each node.
        budget_bytes: None: the memory is what is made small, whatever the time.
    """

    def __init__(
        self, graph: RunGraph, time_ns: Sequence[int], budget_bytes: int | None, freedom: Freedom
    ):
        self.graph, self.freedom = graph, freedom
        self.stages = len(graph.nodes)
        self.program = LinearProgram()
        left = None if budget_bytes is None else budget_bytes - graph.resident_bytes
        scale = max(graph.size, default=1) if left is None else left
        self.unit_bytes = scale / 100 or 1.0
        self.unit_ns = sum(time_ns) / 100 or 1.0
        self._most = INFINITE if left is None else left / self.unit_bytes
        self._peak = None
        if left is None:
            self._peak = self.program.column(cost=1.0, lower=self._least_need() / self.unit_bytes)
        costs = [0.0 if left is None else time / self.unit_ns for time in time_ns]
        self.run = dict(self._run_columns(costs))
        self.kept = dict(self._kept_columns())
        for stage in range(self.stages):
            self._availability(stage)
            self._keeping(stage)
            self._memory(stage)

    def _least_need(self) -> int:
        """Bytes that the largest node takes by itself."""
        size = self.graph.size
        return max(sum(size[v] for v in n.ins) + n.claim_bytes for n in self.graph.nodes)

    def _run_columns(self, costs: Sequence[float]) -> Iterator[tuple[tuple[int, int], int]]:
        """R[t, k]; R[t, t] = 1, and none where a node cannot run."""
        for stage in range(self.stages):
            for place in range(stage + 1):
                first = stage == place
                if first or self.may_run(stage, place):
                    column = self.program.column(
                        cost=costs[place], lower=float(first), upper=1.0, whole=self.freedom.whole
                    )
                    yield (stage, place), column

    def may_run(self, stage: int, place: int) -> bool:
        """Whether a node may run again in a stage."""
        if not self.graph.nodes[place].again or stage > self.graph.until[place]:
            return False
        return self.freedom.backward or (self._forward(place) and not self._forward(stage))

    def _forward(self, place: int) -> bool:
        calls = self.graph.trace.calls
        return calls[self.graph.nodes[place].calls[0]].phase in FORWARD

    def _kept_columns(self) -> Iterator[tuple[tuple[int, int], int]]:
        """S[t, v] from the stage after its first run to the last one in which a reader may run."""
        graph = self.graph
        for value, made in graph.made.items():
            ends = value in graph.ends
            runs = (t for t, k in self.run if k in graph.users[value])
            last = self.stages if ends else max(runs, default=made)
            for stage in range(made + 1, last + 1):
                there = stage == 0 or (ends and stage == self.stages)
                yield (stage, value), self.program.column(lower=float(there), upper=1.0)

    def _made(self, stage: int, value: int) -> list[Term]:
        """R of the node that makes a value, or nothing where it cannot."""
        made = self.graph.made[value]
        column = self.run.get((stage, made))
        if column is None or (value in self.graph.fetched and stage != made):
            return []
        return [(column, 1.0)]

    def _there(self, stage: int, value: int) -> list[Term]:
        """S + R: in how far a value is there in a stage."""
        column = self.kept.get((stage, value))
        kept = [] if column is None else [(column, 1.0)]
        return [*kept, *self._made(stage, value)]

    def _availability(self, stage: int) -> None:
        """A node runs where all that it reads is there."""
        for place in range(stage + 1):
            if (stage, place) not in self.run:
                continue
            for value in self.graph.nodes[place].ins:
                if self.graph.made[value] != place or stage != place:  # else it is fetched now
                    there = [(column, -share) for column, share in self._there(stage, value)]
                    self.program.at_most([(self.run[stage, place], 1.0), *there])

    def _keeping(self, stage: int) -> None:
        """What is kept was there, and is not taken over; what is there is not made again."""
        for value in self.graph.made:
            after = self.kept.get((stage + 1, value))
            if after is not None:
                there = [(column, -share) for column, share in self._there(stage, value)]
                self.program.at_most([(after, 1.0), *there])
                taker = self.run.get((stage, self.graph.taker.get(value, -2)))
                if taker is not None:
                    self.program.at_most([(after, 1.0), (taker, 1.0)], 1.0)
            if stage != self.graph.made[value] and (stage, value) in self.kept:
                again = self._made(stage, value)
                if again:
                    self.program.at_most([(self.kept[stage, value], 1.0), *again], 1.0)

    def _memory(self, stage: int) -> None:
        """The recurrence of U, and what each node needs."""
        graph, unit = self.graph, self.unit_bytes
        added: list[Term] = [
            (self.kept[stage, v], graph.size[v] / unit)
            for v in graph.made
            if (stage, v) in self.kept
        ]
        held: list[Term] = []
        for place in range(stage + 1):
            ran = self.run.get((stage, place))
            if ran is None:
                continue
            node = graph.nodes[place]
            if place == stage:
                arrived = [v for v in node.ins if v in graph.fetched and graph.made[v] == place]
                added.append((ran, sum(graph.size[v] for v in arrived) / unit))
            now = self.program.column(upper=self._most)
            self.program.equal([(now, -1.0), *held, *added])
            need = [(now, 1.0), (ran, node.claim_bytes / unit)]
            if self._peak is None:
                self.program.at_most(need, self._most)
            else:
                self.program.at_most([*need, (self._peak, -1.0)])
            held = [(now, 1.0)]
            added = [(ran, sum(graph.size[v] for v in node.outs) / unit)]
            added += self._let_go(stage, place)

    def _let_go(self, stage: int, place: int) -> Iterator[Term]:
        """FREE of what a node touches, for the values that may go after it."""
        graph, ran = self.graph, self.run[stage, place]
        node = graph.nodes[place]
        for value in dict.fromkeys(node.ins + node.outs):
            later = [k for k in graph.users[value] if place < k <= stage]
            ends = value in graph.ends and stage + 1 == self.stages
            if not graph.size[value] or stage in later or ends:
                continue
            free = self.program.column(upper=1.0)
            self.program.at_most([(free, 1.0), (ran, -1.0)])
            stays = [self.run[stage, k] for k in later if (stage, k) in self.run]
            if (stage + 1, value) in self.kept:
                stays.append(self.kept[stage + 1, value])
            for column in stays:
                self.program.at_most([(free, 1.0), (column, 1.0)], 1.0)
            yield free, -graph.size[value] / self.unit_bytes

    def chosen(self, values: Sequence[float]) -> set[tuple[int, int]]:
        """The (stage, node) that run in a whole solution."""
        return {pair for pair, column in self.run.items() if values[column] > 0.5}

    def rounded(self, values: Sequence[float], threshold: float) -> set[tuple[int, int]]:
        """Two-phase rounding: S is rounded, then R is the least that makes S and the stages true.

        From the last stage to the first: what is kept into the next stage must be there, and so
        must all that a node reads. What cannot be made again is kept from before.
        """
        kept = {pair for pair, column in self.kept.items() if values[column] > threshold}
        chosen: set[tuple[int, int]] = set()
        for stage in reversed(range(self.stages)):
            running = {stage}
            for value in [v for t, v in kept if t == stage + 1]:
                self._provide(stage, value, running, kept)
            for place in reversed(range(stage + 1)):
                if place in running:
                    for value in self.graph.nodes[place].ins:
                        self._provide(stage, value, running, kept)
            chosen |= {(stage, place) for place in running}
        return chosen

    def _provide(self, stage: int, value: int, running: set[int], kept: Kept) -> None:
        """Sees that a value is there in a stage: kept, made anyway, made again, or kept longer."""
        made = self.graph.made[value]
        if (stage, value) in kept or made == stage or (made == BEFORE and not stage):
            return
        if value not in self.graph.fetched and (made in running or (stage, made) in self.run):
            running.add(made)
        else:
            kept.add((stage, value))
