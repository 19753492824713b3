"""lms: long edges of the graph go through the host, as in TensorFlow Large Model Support.

Three numbers and the graph decide the list. An edge from the call that makes a value to one that
reads it, `swapout_threshold` topological levels long or longer, becomes a trip: out once the value
is made, back in `swapin_ahead` levels before it is read. Readers of which each lies at most
`swapin_groupby` levels behind the one before share one trip. The rule uses neither time nor memory.

Sources: paper 001, sections 2.1 and 3.1; the authors' TFLMS (branch tflmsv2, lms.py). Where the two
differ, `rule` chooses: "paper" swaps edges from the threshold on and begins `swapin_ahead` levels
before the reader to look for a call that triggers a swap-in; "code" swaps edges longer than the
threshold and begins one level earlier. Paper 001 does not say which readers share a trip: that is
the code's. Departures: among the calls that could trigger a swap-in the code picks any element of a
set, we the last one in trace order; it looks up to ten levels further back for one, which no level
of ours needs; it skips tensors of fewer than two dimensions, we do not; a swap-out is waited for
when its bytes are needed, oldest first, where TensorFlow frees a tensor as soon as it is out.
Erratum: paper 000 quotes the rule as distance <= threshold; the code and paper 001 swap long edges.

`lms-auto` finds the parameters as TFLMS's own tuner does; `lms-grid` takes the best of a grid. Read
next: `tflms_hybrid.py`, which computes some values again first.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from ooctrain.errors import ConfigError
from ooctrain.sched.planning.decisions import BEFORE_THE_STEP
from ooctrain.sched.planning.fastest import Candidate, fastest_list
from ooctrain.sched.planning.list_writer import (
    ListWriter,
    last_uses,
    writer_with_resident_parameters,
)
from ooctrain.sched.planning.planner import check_whole_numbers, infeasible
from ooctrain.sched.planning.question import Question
from ooctrain.sched.schedule import Granule, Plan
from ooctrain.step.trace import Trace

Rule = Literal["paper", "code"]


class Trip(NamedTuple):
    """A variable is away from the end of one call to the end of another.

    Args:
        after: the last call that uses it before; `BEFORE_THE_STEP` for an input.
        trigger: its swap-in is listed right after this call.
    """

    var: int
    after: int
    trigger: int


@dataclass(frozen=True, slots=True)
class Lms:
    """TFLMS with given parameters, all in topological levels.

    Args:
        swapout_threshold: edges of at least this length are swapped.
        swapin_ahead: how long before its reader a value is to come back; 0: right before it.
        swapin_groupby: a reader at most this far behind the one before shares its swap-in.
        rule: "paper": paper 001 as printed; "code": TFLMS, where a threshold and a head start of n
            are those of n + 1 in print.

    Cost: O(calls^2 / word size + uses).
    """

    name = "lms"

    swapout_threshold: int = 1
    swapin_ahead: int = 1
    swapin_groupby: int = 0
    rule: Rule = "paper"

    def __post_init__(self) -> None:
        names = ("swapout_threshold", "swapin_ahead", "swapin_groupby")
        check_whole_numbers("lms", {name: getattr(self, name) for name in names}, least=0)
        if self.rule not in get_args(Rule):
            raise ConfigError(
                f"lms has no rule {self.rule!r}", code="OOC-106",
                fix='rule is "paper" or "code"',
            )  # fmt: skip

    @property
    def least_distance(self) -> int:
        """The least length of an edge that is swapped, in levels."""
        return self.swapout_threshold + (self.rule == "code")

    @property
    def head_start(self) -> int:
        """How many levels before the reader a swap-in is triggered; 0: right before it."""
        return self.swapin_ahead + (self.rule == "code") if self.swapin_ahead else 0

    def plan(self, question: Question) -> Plan:
        """See `Planner`. The minimum is the peak of its list if every swap-out is waited for at
        once.
        """
        budget_bytes, granule = question.budget_bytes, question.granule
        graph = LevelGraph(question.trace)
        least, witness = peak(graph, granule, self)
        if least > budget_bytes:
            raise infeasible(self.name, budget_bytes, least, witness)
        found = list_with(graph, self, budget_bytes, granule)
        return fastest_list(self.name, question, [found])


class LevelGraph:
    """The trace as a graph with topological levels.

    Attributes:
        level: for each call one more than the highest among those whose results it reads.
        height: the highest level.
    """

    def __init__(self, trace: Trace):
        self.trace = trace
        self.level: list[int] = []
        self._ancestors: list[int] = []  # of each call, as the bits of a number
        self._at_level: dict[int, int] = defaultdict(int)
        for call in trace.calls:
            producers = {p for v in call.ins if (p := trace.producer[v]) is not None}
            level = 1 + max((self.level[p] for p in producers), default=0)
            ancestors = 0
            for p in producers:
                ancestors |= self._ancestors[p] | 1 << p
            self.level.append(level)
            self._ancestors.append(ancestors)
            self._at_level[level] |= 1 << call.id
        self.height = max(self.level, default=0)
        self._travellers = [
            (variable.id, self._reach(variable.id))
            for variable in trace.variables
            if trace.readers[variable.id] and not variable.persistent and variable.nbytes
        ]

    def trigger(self, reader: int, ahead: int) -> int:
        """The call after which a swap-in for a reader is listed: the last ancestor `ahead` levels
        before it; else the call right before it.
        """
        wanted = self.level[reader] - ahead
        if ahead and wanted > 0:
            # There is one: a call at a level reads a result of the level below.
            return (self._ancestors[reader] & self._at_level[wanted]).bit_length() - 1
        return reader - 1

    def trips(self, lms: Lms) -> Iterator[Trip]:
        """All trips of some parameters, variable by variable. What persists stays."""
        least = lms.least_distance
        for variable, reach in self._travellers:
            if reach >= least:
                yield from self._trips_of(variable, lms)

    def _reach(self, variable: int) -> float:
        """The length of the longest edge from a variable; an input always travels."""
        producer, readers = self.trace.producer[variable], self.trace.readers[variable]
        if producer is None:
            return math.inf
        return max(self.level[reader] for reader in readers) - self.level[producer]

    def _trips_of(self, variable: int, lms: Lms) -> Iterator[Trip]:
        producer = self.trace.producer[variable]
        home, last_use, before = 0, BEFORE_THE_STEP, None
        least, ahead = lms.least_distance, lms.head_start
        if producer is not None:
            home, last_use = self.level[producer], producer
        for reader in self.trace.readers[variable]:
            level = self.level[reader]
            far = level - home >= least or last_use == BEFORE_THE_STEP
            if far and (before is None or level - before > lms.swapin_groupby):
                trigger = self.trigger(reader, ahead)
                # A trip whose way back begins where its way out does would gain nothing.
                if trigger > last_use or last_use == BEFORE_THE_STEP:
                    yield Trip(variable, last_use, trigger)
            if far:
                before = level
            last_use = reader


def peak(graph: LevelGraph, granule: Granule, lms: Lms) -> tuple[int, str]:
    """(bytes, call): the peak of a list whose swap-outs are waited for at once: the least budget of
    these parameters.
    """
    return HeldCurve(graph.trace, granule).peak(graph.trips(lms))


def list_with(graph: LevelGraph, lms: Lms, budget_bytes: int, granule: Granule) -> Candidate:
    """The list of some parameters that fit the budget."""
    writer = _write(graph, granule, graph.trips(lms), budget_bytes)
    notes: dict[str, Any] = {
        "swapout_threshold": lms.swapout_threshold,
        "swapin_ahead": lms.swapin_ahead,
        "swapin_groupby": lms.swapin_groupby,
    }
    if lms.rule != "paper":
        notes["rule"] = lms.rule
    return Candidate(writer.finish(), notes)


def _write(
    graph: LevelGraph, granule: Granule, trips: Iterable[Trip], budget_bytes: int
) -> ListWriter:
    trace = graph.trace
    writer = writer_with_resident_parameters(trace, granule)
    leaves, returns = defaultdict(list), defaultdict(list)
    for trip in trips:
        leaves[trip.after].append(trip.var)
        returns[trip.trigger].append(trip.var)
    travellers = {variable for variables in leaves.values() for variable in variables}
    leaving: dict[int, None] = {}  # swapped out, their bytes not yet waited for; oldest first

    def make_room(size_bytes: int) -> None:
        while leaving and writer.ledger_bytes + size_bytes > budget_bytes:
            oldest = next(iter(leaving))
            del leaving[oldest]
            writer.free(oldest)

    for call_id in range(BEFORE_THE_STEP, len(trace.calls)):
        if call_id >= 0:
            if leaving:
                make_room(writer.claim_bytes(call_id))
            writer.run(call_id)
            writer.free_dead(call_id)
            for out in trace.calls[call_id].outs:
                if out in travellers:
                    writer.swap_out(out)
            leaving.update(dict.fromkeys(leaves[call_id]))
        for variable in returns[call_id]:
            if variable in leaving:
                del leaving[variable]
                writer.free(variable)
            make_room(writer.granted(variable))
            writer.swap_in(variable)
    return writer


# The peak of a list before it is written, as the searches below need it hundreds of times. The
# memory that a step holds without trips is a fixed curve; a trip takes its bytes off between two
# points of it. Each call has two points: while it runs, and when the values swapped in right after
# it have arrived. Every swap-out counts as waited for at once.


class HeldCurve:
    """What a step holds at each point, inputs included.

    Attributes:
        held_bytes: [0]: before the first call; [2 k + 1]: while call k runs; [2 k + 2]: when what
            is swapped in right after it has come.
    """

    def __init__(self, trace: Trace, granule: Granule):
        self.trace = trace
        self.size = np.array([granule.granted(v.nbytes) for v in trace.variables], np.int64)
        points = 2 * len(trace.calls) + 1
        change = np.zeros(points + 1, np.int64)
        for v, last in enumerate(last_uses(trace)):
            stays = trace.variables[v].persistent and not trace.uses[v]
            # A variable is gone right after its last call.
            first, stop = self._first_point(v), points if stays else min(2 * last + 2, points)
            if first < stop:
                change[first] += self.size[v]
                change[stop] -= self.size[v]
        self.held_bytes = np.cumsum(change[:-1])
        workspace = [granule.granted(call.workspace_bytes) for call in trace.calls]
        self.held_bytes[1::2] += np.array(workspace, np.int64)

    def _first_point(self, variable: int) -> int:
        producer = self.trace.producer[variable]
        if producer is None:
            return 0
        takes_over = variable in self.trace.calls[producer].reuse
        return 2 * producer + 1 + takes_over  # until then its storage is its predecessor's

    def peak(self, trips: Iterable[tuple[int, int, int]]) -> tuple[int, str]:
        """(bytes, call): the peak with (variable, after, trigger) away, and whose it is."""
        change = np.zeros(len(self.held_bytes) + 1, np.int64)
        variable, after, trigger = np.array(list(trips), np.int64).reshape(-1, 3).T
        away = self.size[variable]
        np.add.at(change, 2 * after + 2, -away)
        np.add.at(change, 2 * trigger + 2, away)
        held_bytes = self.held_bytes + np.cumsum(change[:-1])
        point = int(held_bytes.argmax())
        name = self.trace.calls[(point - 1) // 2].name if point else ""
        return int(held_bytes[point]), name


# lms-auto: TFLMS with the parameters that its own tuner would find. Three searches follow each
# other, each for the largest number that still fits: the threshold (swap as few edges as possible),
# then how far ahead to swap in, then how far apart readers may share a trip. Time plays no part:
# the paper says that tuning reduces communication, but feasibility is all it looks at
# (docs/errata.md, 001-tuning-has-no-time). Sources: paper 001, section 3.1; TFLMS,
# `_search_params`. Departures: where the code raises its synchronous modes because threshold 1 does
# not fit, we swap in right before the reader, which is their effect on memory; the code estimates
# memory (90 % of the limit, swap-outs that last one level), we count the list's bytes. Like the
# code we search by bisection, although what fits need not be monotone.


Fits = Callable[[Lms], bool]


class LmsAuto:
    """TFLMS's three searches. Cost: one list; about 3 log(levels) peaks."""

    name = "lms-auto"

    def plan(self, question: Question) -> Plan:
        """See `Planner`. The minimum is that of the parameters the search starts with."""
        found = tuned_list(self.name, question.trace, question.budget_bytes, question.granule)
        return fastest_list(self.name, question, [found])


def tuned_list(name: str, trace: Trace, budget_bytes: int, granule: Granule) -> Candidate:
    """The list of the parameters that the searches find.

    Raises:
        Infeasible: the parameters the search starts with do not fit.
    """
    graph, curve = LevelGraph(trace), HeldCurve(trace, granule)

    @cache
    def need(lms: Lms) -> tuple[int, str]:
        return curve.peak(graph.trips(lms))

    starts = starting_points(graph)
    least, witness = min(need(lms) for lms in starts)
    if least > budget_bytes:
        raise infeasible(name, budget_bytes, least, witness)
    fitting = next(lms for lms in starts if need(lms)[0] <= budget_bytes)
    found = search(fitting, graph.height, lambda lms: need(lms)[0] <= budget_bytes)
    return list_with(graph, found, budget_bytes, granule)


def starting_points(graph: LevelGraph) -> tuple[Lms, ...]:
    """What the search tries to start with: no swapping, swapping all with a head start, swapping
    all and waiting for it.
    """
    return (Lms(graph.height + 1, 1, 0), Lms(1, 1, 0), Lms(1, 0, 0))


def search(start: Lms, height: int, fits: Fits) -> Lms:
    """The three searches, from parameters that fit."""
    found = start
    if found.swapout_threshold <= height:
        threshold = _largest(1, height, lambda n: fits(replace(found, swapout_threshold=n)))
        found = replace(found, swapout_threshold=threshold)
    if found.swapin_ahead:
        ahead = _largest(1, height, lambda n: fits(replace(found, swapin_ahead=n)))
        found = replace(found, swapin_ahead=ahead)
    if fits(replace(found, swapin_groupby=height)):
        return replace(found, swapin_groupby=height)
    return replace(
        found, swapin_groupby=_first_half(height, lambda n: fits(replace(found, swapin_groupby=n)))
    )


def _largest(low: int, high: int, fits: Callable[[int], bool]) -> int:
    """The largest number that fits, by bisection from one that does."""
    while low < high:
        middle = (low + high + 1) // 2
        if fits(middle):
            low = middle
        else:
            high = middle - 1
    return low


def _first_half(high: int, fits: Callable[[int], bool]) -> int:
    """The first of high / 2, high / 4, .. that fits; 0 where none does."""
    while high > 0:
        high //= 2
        if fits(high):
            return high
    return 0


# lms-grid: the fastest point of a grid of parameters, by simulated time, to show what LMS can do at
# its best. The grid spreads from the tuner's point, which is included, down to the smallest
# numbers. Source: ours, as a fair baseline.


#: Shares of the largest threshold that fits, and of the height of the graph for the other two.
THRESHOLD_SHARES = (1.0, 0.6, 0.3)
AHEAD_SHARES = (0.0, 0.05)
GROUPBY_SHARES = (0.0, 0.1, 1.0)


class LmsGrid:
    """The fastest of a grid. Cost: a list for each point, a simulation for those that may be it."""

    name = "lms-grid"

    def plan(self, question: Question) -> Plan:
        """See `Planner`. The minimum is that of the points the tuner starts with; a time limit ends
        the search.
        """
        trace, budget_bytes, granule = question.trace, question.budget_bytes, question.granule
        graph, curve = LevelGraph(trace), HeldCurve(trace, granule)
        lists: list[Candidate] = []
        for lms in _fitting(graph, curve, budget_bytes):
            lists.append(list_with(graph, lms, budget_bytes, granule))
            if question.effort.deadline.passed():
                lists = [replace(c, notes={**c.notes, "cut_short": True}) for c in lists]
                break
        if not lists:
            peaks = (curve.peak(graph.trips(lms)) for lms in starting_points(graph))
            raise infeasible(self.name, budget_bytes, *min(peaks))
        return fastest_list(self.name, question, lists)


def _fitting(graph: LevelGraph, curve: HeldCurve, budget_bytes: int) -> Iterator[Lms]:
    """The points of the grid that fit and lead to different lists, the tuner's own first."""

    def fits(lms: Lms) -> bool:
        return curve.peak(graph.trips(lms))[0] <= budget_bytes

    start = next((lms for lms in starting_points(graph) if fits(lms)), None)
    if start is None:
        return
    found = search(start, graph.height, fits)
    seen = set()
    for lms in (found, *_grid(found.swapout_threshold, graph.height)):
        trips = tuple(graph.trips(lms))
        if trips not in seen and fits(lms):
            yield lms
        seen.add(trips)


def _grid(threshold: int, height: int) -> Iterator[Lms]:
    for shares in itertools.product(THRESHOLD_SHARES, AHEAD_SHARES, GROUPBY_SHARES):
        yield Lms(
            max(1, round(threshold * shares[0])),
            round(height * shares[1]),
            round(height * shares[2]),
        )
