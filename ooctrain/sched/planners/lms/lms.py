"""lms: TensorFlow Large Model Support: long edges of the graph go through the host.

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
Read next: `lms_auto.py`, `lms_grid.py`.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

from ooctrain.errors import ConfigError
from ooctrain.sched.planners.lms.lms_peak import HeldCurve
from ooctrain.sched.planning.decisions import BEFORE_THE_STEP
from ooctrain.sched.planning.fastest import Candidate, fastest_list
from ooctrain.sched.planning.list_writer import ListWriter, writer_with_resident_parameters
from ooctrain.sched.planning.parameters import check_whole_numbers
from ooctrain.sched.planning.planner import infeasible
from ooctrain.sched.planning.question import Question
from ooctrain.sched.schedule import BYTES, Granule, Plan
from ooctrain.step.machine import Machine
from ooctrain.step.trace import Trace

Rule = Literal["paper", "code"]


class Trip(NamedTuple):
    """A variable is away from the end of one call to the end of another.

    Args:
        var: the variable.
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

    def plan(
        self, trace: Trace, budget_bytes: int, machine: Machine, *, granule: Granule = BYTES,
        host_budget_bytes: int | None = None, seed: int = 0, time_limit_s: float | None = None,
    ) -> Plan:  # fmt: skip
        """See `Planner`. The minimum is the peak of its list if every swap-out is waited for at
        once.
        """
        graph = LevelGraph(trace)
        least, witness = peak(graph, granule, self)
        if least > budget_bytes:
            raise infeasible(self.name, budget_bytes, least, witness)
        found = list_with(graph, self, budget_bytes, granule)
        question = Question(trace, budget_bytes, machine, granule, host_budget_bytes)
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
