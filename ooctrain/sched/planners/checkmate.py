"""checkmate: the least time to compute again on any graph, as a mixed-integer program.

Chains have dynamic programs (`rotor`). On a graph with branches the choice is what runs in which
stage and what is kept into the next, and memory depends on both; `StageProgram` writes that as
linear rows over whole numbers, and branch and bound (HiGHS) solves it. Nothing is offloaded. The
search ends after a number of nodes, not of seconds, so the plan is the same on every machine; the
plan's notes state objective, bound and gap, and what ended it ("time" where the caller's limit did:
only then the plan depends on the machine). `checkmate-lp` solves the relaxation and rounds it in
two phases: what is kept, then what has to run for that.

Source: Jain, Jain, Nrusimha, Gholami, Abbeel, Keutzer, Stoica and Gonzalez, Checkmate: breaking the
memory wall with optimal tensor rematerialization (MLSys 2020): the graph of operations, the program
over R, S, U and FREE, the two-phase rounding. Departures: values instead of nodes are kept, so a
node with several outputs may keep some; a storage that an output takes over is let go; only R has
to be whole, since for whole R the least S and the greatest FREE are. Long steps are grouped
(`grouped_calls`, as Rockmate does, Zhao et al. 2023, in small), which costs optimality, as do their
narrower choices: only forward nodes run again, and only in the backward pass. Where the search ends
before the optimum, the answer is no worse than the relaxation rounded, which tries several
thresholds and memory allowances where the paper has one of each, nor than dropping all. Where the
step fits as it is, nothing runs again, and no program is solved. No other planner takes part.
Read next: `rotor.py` for chains; `combined.py`, which takes these lists as starts.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

from ooctrain.errors import ConfigError
from ooctrain.sched.bounds.linear_program import INFINITE, LinearProgram, Term, WholeSolution
from ooctrain.sched.planning.decisions import Decisions, runs_once
from ooctrain.sched.planning.lower import plan_of
from ooctrain.sched.planning.planner import check_whole_numbers, infeasible
from ooctrain.sched.planning.question import Question
from ooctrain.sched.planning.rematerialise import droppable, rematerialise
from ooctrain.sched.planning.residency import Liveness, always_resident
from ooctrain.sched.schedule import Granule, Plan, Run
from ooctrain.step.machine import call_durations_ns
from ooctrain.step.trace import Call, Trace

# What both planners share. `ByStages` is a planner: runs for the budget, and runs for the least
# memory. `Rematerialising` plans one question: each call once comes first; then all dropped, and
# what the program finds. What computes least becomes the plan.


#: A solver's optimum may be above the true one by this share.
ROUNDING = 1e-6


class TimedRuns(NamedTuple):
    """Some runs, and what they take."""

    time_ns: int
    need_bytes: int
    witness: str
    runs: tuple[Run, ...]


class ByStages(ABC):
    """What both planners are: a program over stages, with the plan made of its solution.

    Attributes:
        name, exact, most: see `Checkmate`.
    """

    __slots__ = ()
    name: ClassVar[str]
    exact: int
    most: int

    def plan(self, question: Question) -> Plan:
        """See `Planner`. The minimum is the least need among keeping all, dropping all, and what
        `least` finds.
        """
        step = limited(self.name, question.trace, question.granule, self.exact, self.most)
        return Rematerialising(self.name, question, step, self).plan()

    @abstractmethod
    def least(self, asked: Rematerialising) -> Iterator[tuple[Run, ...]]:
        """Runs for the least memory that is found."""

    @abstractmethod
    def within(self, asked: Rematerialising) -> tuple[list[tuple[Run, ...]], Mapping[str, Any]]:
        """Runs for the budget, and what is known of them."""


def limited(
    name: str, trace: Trace, granule: Granule, exact: int, most: int
) -> tuple[RunGraph, bool]:
    """(the step as a graph, whether each node is a call: then all may run again).

    Raises:
        ConfigError: it has too many groups.
    """
    liveness = Liveness(trace, granule)
    is_short = len(trace.calls) <= exact
    rows = single_calls(trace) if is_short else grouped_calls(trace, liveness.size)
    if len(rows) > most:
        raise ConfigError(
            f"{name}: the step is too long for a program over all pairs of its calls",
            code="OOC-105",
            numbers=f"{len(trace.calls)} calls in {len(rows)} groups, at most {most}",
            fix=f"prefix or combined; {name}:most={len(rows)}, and much time; or the rewrite fuse",
        )
    return RunGraph(liveness, rows), is_short


class Rematerialising:
    """One question, and the runs that are compared for it.

    Attributes:
        graph: the step by nodes.
        cut_short: whether the deadline has ended a program.
    """

    def __init__(
        self, name: str, question: Question, step: tuple[RunGraph, bool],
        planner: ByStages,
    ):  # fmt: skip
        self.name, self.question, self.planner = name, question, planner
        self.graph, self.backward = step
        self.cut_short = False
        self.liveness = question.liveness
        self.call_ns = call_durations_ns(question.trace, question.machine)
        calls = question.trace.calls
        self.node_ns = [
            sum(self.call_ns[c] for c in node.calls if calls[c].pure or len(node.calls) == 1)
            for node in self.graph.nodes
        ]

    def program(self, budget_bytes: int | None, *, whole: bool = True) -> StageProgram:
        """The program for a budget, or for the least one, or its relaxation."""
        freedom = Freedom(whole, self.backward)
        return StageProgram(self.graph, self.node_ns, budget_bytes, freedom)

    def searched(self, program: StageProgram, nodes: int) -> WholeSolution:
        """What comes of a program, within a number of nodes and the time that is left."""
        found = program.program.search(nodes, self.question.effort.deadline.left_s())
        self.cut_short |= found.ended == "time"
        return found

    def is_over(self) -> bool:
        """Whether the time is over; the plan says so if it is."""
        passed = self.question.effort.deadline.passed()
        self.cut_short |= passed
        return passed

    def at_least_once_us(self, bound_us: float) -> float:
        """A program's bound with the calls of groups that run once in any list, which it does not
        count; or what it takes to run each call once, which is a bound too.
        """
        once_ns = sum(self.call_ns) - sum(self.node_ns)
        return max(bound_us + once_ns / 1000, sum(self.call_ns) / 1000)

    def plan(self) -> Plan:
        """The plan of what computes least: of what the program finds, and what fits anyway."""
        budget_bytes = self.question.budget_bytes
        known = self._ways(extremes(self.question.trace))
        if all(way.need_bytes > budget_bytes for way in known):
            known += self._ways(self.planner.least(self))
        least = min(known, key=lambda way: way.need_bytes)
        if least.need_bytes > budget_bytes:
            raise infeasible(self.name, budget_bytes, least.need_bytes, least.witness)
        if known[0].need_bytes <= budget_bytes:  # nothing computes less than to run each call once
            notes: Mapping[str, Any] = {"bound_us": known[0].time_ns / 1000, "ended": "optimal"}
        else:
            found, notes = self.planner.within(self)
            known += self._ways(found)
        fitting = (way for way in known if way.need_bytes <= budget_bytes)
        best = min(fitting, key=lambda way: way.time_ns)
        return self._noted(plan_of(self.name, self.question, Decisions(best.runs)), notes)

    def _ways(self, choices: Iterable[Sequence[Run]]) -> list[TimedRuns]:
        """What some runs take; those that cannot be are left out."""
        ways = []
        for runs in choices:
            try:
                need, witness = self.liveness.least_budget(runs)
            except ConfigError:  # they read what has been taken over
                continue
            time_ns = sum(self.call_ns[run.call] for run in runs)
            ways.append(TimedRuns(time_ns, need, witness, tuple(runs)))
        return ways

    def _noted(self, plan: Plan, notes: Mapping[str, Any]) -> Plan:
        """The plan, and how far its computing may be from the least of what the program allows:
        where calls are grouped, of lists that run a group as a whole. To drop all may run part of
        a group; then the gap may be below 0.
        """
        runs = [i.call for i in plan.schedule.instructions if isinstance(i, Run)]
        call_ns = call_durations_ns(plan.trace, self.question.machine)
        objective_us, bound_us = sum(map(call_ns.__getitem__, runs)) / 1000, notes["bound_us"]
        numbers = {
            "objective_us": objective_us, "groups": len(self.graph.nodes),
            "runs_again": len(runs) - len(plan.trace.calls),
        }  # fmt: skip
        if bound_us is not None:
            if objective_us < bound_us <= objective_us * (1 + ROUNDING):  # solvers round
                bound_us = objective_us
            gap = (objective_us - bound_us) / objective_us if objective_us else 0.0
            numbers |= {"bound_us": bound_us, "gap": gap}
        cut_short = {"cut_short": True} if self.cut_short else {}
        return replace(plan, notes={"ended": notes["ended"], **numbers, **cut_short})


def extremes(trace: Trace) -> Iterator[tuple[Run, ...]]:
    """Each call once, first; all that may be dropped, dropped once, and after each reader."""
    yield runs_once(trace)
    values = droppable(trace)
    yield rematerialise(trace, values)
    yield rematerialise(trace, values, again=values)


#: Shares from which on a fraction of a value is kept, and shares of memory that rounding may cost.
THRESHOLDS = (0.25, 0.5, 0.75)
ALLOWANCES = (0.0, 0.1, 0.25)
#: A search tree has all its nodes up to this many whole columns.
USUAL_COLUMNS = 100


@dataclass(frozen=True, slots=True)
class Checkmate(ByStages):
    """The program over whole numbers.

    Args:
        nodes: most nodes of the search tree; in proportion fewer from `USUAL_COLUMNS` on.
        exact: steps of more calls than this are grouped.
        most: more groups than this are refused.

    Cost: a search over (groups^2 / 2) whole columns and as many rows for each reader of a value.
    """

    name: ClassVar[str] = "checkmate"

    nodes: int = 200
    exact: int = 30
    most: int = 150

    def __post_init__(self) -> None:
        limits = {"nodes": self.nodes, "exact": self.exact, "most": self.most}
        check_whole_numbers(self.name, limits)

    def _tree(self, program: StageProgram) -> int:
        """Nodes of the search tree: fewer where each takes longer."""
        whole = max(len(program.run), USUAL_COLUMNS)
        return max(1, self.nodes * USUAL_COLUMNS // whole)

    def least(self, asked: Rematerialising) -> Iterator[tuple[Run, ...]]:
        """Runs for the least memory that is found."""
        program = asked.program(None)
        found = asked.searched(program, self._tree(program))
        if found.values:
            yield asked.graph.runs(program.chosen(found.values))

    def within(self, asked: Rematerialising) -> tuple[list[tuple[Run, ...]], Mapping[str, Any]]:
        """Runs for the budget, and what is known of them."""
        program = asked.program(asked.question.budget_bytes)
        found = asked.searched(program, self._tree(program))
        is_bound = found.ended != "infeasible"  # where groups do not fit, single calls may
        bound_us = asked.at_least_once_us(found.bound * program.unit_ns / 1000)
        notes = {"bound_us": bound_us if is_bound else None, "ended": found.ended}
        runs = [asked.graph.runs(program.chosen(found.values))] if found.values else []
        if found.ended != "optimal":
            runs += roundings_within(asked)[0]
        return runs, notes


@dataclass(frozen=True, slots=True)
class CheckmateLp(ByStages):
    """The relaxation of the program, rounded.

    Args:
        exact, most: see `Checkmate`.

    Cost: a linear program for each allowance of memory, no search.
    """

    name: ClassVar[str] = "checkmate-lp"

    exact: int = 30
    most: int = 150

    def __post_init__(self) -> None:
        check_whole_numbers(self.name, {"exact": self.exact, "most": self.most})

    def least(self, asked: Rematerialising) -> Iterator[tuple[Run, ...]]:
        """Roundings of the relaxation for the least memory."""
        yield from roundings(asked, None)[0]

    def within(self, asked: Rematerialising) -> tuple[list[tuple[Run, ...]], Mapping[str, Any]]:
        """Roundings of the relaxation for the budget and for a little less."""
        found, cost_us = roundings_within(asked)
        bound_us = asked.at_least_once_us(cost_us) if math.isfinite(cost_us) else None
        return [*found, *self.least(asked)], {"bound_us": bound_us, "ended": "rounded"}


def roundings_within(asked: Rematerialising) -> tuple[list[tuple[Run, ...]], float]:
    """Roundings for the budget and for a little less; and what the relaxation says is the least
    time, in us.
    """
    found: list[tuple[Run, ...]] = []
    bound_us, budget_bytes = math.inf, asked.question.budget_bytes
    for allowance in ALLOWANCES:
        if asked.is_over():
            break
        spared = int((budget_bytes - asked.graph.resident_bytes) * allowance)
        rounded, cost_us = roundings(asked, budget_bytes - spared)
        found += rounded
        bound_us = min(bound_us, cost_us)
    return found, bound_us


def roundings(
    asked: Rematerialising, budget_bytes: int | None
) -> tuple[list[tuple[Run, ...]], float]:
    """Roundings of the relaxation, and its optimum in us."""
    program = asked.program(budget_bytes, whole=False)
    found = asked.searched(program, 1)
    if not found.values:
        return [], math.inf
    chosen = [program.rounded(found.values, threshold) for threshold in THRESHOLDS]
    return [asked.graph.runs(pairs) for pairs in chosen], found.bound * program.unit_ns / 1000


# The program: which nodes run in which stage, and which values are kept into the next. Stage t ends
# with the first run of node t. R[t, k]: node k runs in stage t; S[t, v]: value v is kept into it. A
# node runs if each value that it reads is kept or made in the same stage; a value is kept if it was
# there. U[t, k]: bytes held just before node k may run, which is what was held before, plus the
# outputs of the node before, minus what FREE lets go after that: values neither kept into the next
# stage nor read later in this one. As FREE is at most each of its factors, that product is linear.


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
        time_ns: duration of each node.
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


# A step as a graph of nodes that run as a whole. A node is a call, or in a long step a few calls in
# a row that want the same values: updates belong to the call before them, batch statistics to the
# convolution, a backward call to the one before it if it reads no further value of the forward
# pass. Then the program has a third of the rows. Parameters and what is updated in place never
# leave, so they are a number of bytes, not values.


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
        claim_bytes: the most that they claim in addition to what is held before them.
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
        rows: the calls of each node, in order.

    Attributes:
        nodes: in order.
        resident_bytes: size of what stays on the device all the time.
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
        """The most that some calls take in addition to what they find."""
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
