"""The LP bound: a makespan that no legal list beats, with or without recomputation.

The bound ignores which byte moves when. At the start and the end of each call it looks at sums
only: bytes sent out so far, bytes fetched so far, bytes released so far, bytes made up for by
computing again. Every legal list has such sums, and they obey the rows of the program; so the least
idle time that the rows allow is a bound, the `FluidBound`. The relaxation permits more than a list
can do: values move and are computed again in fractions, in any order, without latency, and
computing again takes no room for the values that it reads. Bytes are shares of the budget, times
shares of the compute time of the step, so that no number is huge.

Class of schedules covered: the first runs of the calls come in trace order. Any pure call may run
again; to get all of its largest output back takes its whole time, and that of the calls before it
whose outputs have no other reader, and none of it before the first call has begun. Any bytes may
move at any time. Persistent variables may start the step on either side, as long as they end it
there.

Sources: paper 002's relaxed model for the offload part; recomputation is ours. Read next:
`linear_program.py`, which solves the program; `closed.py` for bounds without an LP.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from ooctrain.sched.bounds.linear_program import LinearProgram, LpSolution, Term
from ooctrain.sched.budget import input_bytes
from ooctrain.sched.planning.decisions import BEFORE_THE_STEP, Life, lives, runs_once
from ooctrain.sched.planning.residency import Liveness
from ooctrain.sched.schedule import BYTES, LowerBound
from ooctrain.step.machine import Machine, call_durations_ns
from ooctrain.step.trace import Trace
from ooctrain.units import format_bytes

#: HiGHS is exact to about 1e-7 of the largest number; the bound gives this share away.
TOLERANCE = 1e-6


@dataclass(frozen=True, slots=True)
class FluidBound:
    """What the LP proves.

    Args:
        makespan_us: the bound: the dual value, less `TOLERANCE` of it.
        primal_us, dual_us: both sides of the LP.
        recompute: whether it covers lists that run calls again.
        resident: whether it covers only lists in which persistent variables stay where they are.
        host_budget_bytes: limit of these lists; None: unlimited host memory.
        memory_prices: {call: us that a byte more while it runs would save}, where that is anything.
    """

    makespan_us: float
    primal_us: float
    dual_us: float
    recompute: bool
    resident: bool
    host_budget_bytes: int | None = None
    memory_prices: Mapping[int, float] = field(default_factory=dict)

    @property
    def covers(self) -> str:
        """The class of schedules, in words."""
        again = "any pure call may run again" if self.recompute else "every call runs once"
        moves = "any bytes but persistent variables'" if self.resident else "any bytes"
        host = self.host_budget_bytes
        room = "" if host is None else f", at most {format_bytes(host)} are on the host"
        return f"{again}, {moves} may move at any time{room}, calls first run in trace order"

    def lower_bound(self) -> LowerBound:
        """As other bounds are given."""
        kind = "LP with recomputation" if self.recompute else "LP of offloading"
        return LowerBound(self.makespan_us, kind)


def fluid_bound(
    trace: Trace, budget_bytes: int, machine: Machine, *, recompute: bool = True,
    resident: bool = False, host_budget_bytes: int | None = None,
) -> FluidBound | None:  # fmt: skip
    """The LP bound; None where no list fits the budget at all.

    Args:
        budget_bytes: device budget, to the byte (a coarser granule only makes plans slower).
        machine: durations and the link; latencies count as nothing.
        recompute: whether calls may run again.
        resident: only lists that leave parameters and optimizer slots on the device.
        host_budget_bytes: limit of inputs and host copies; less than the inputs means the inputs
            and nothing else, as for plans; None: unlimited.

    Cost: an LP of some 15 rows for each call and 3 columns for each gap: 0.5 s for 600 calls.
    """
    if host_budget_bytes is not None:
        host_budget_bytes = max(host_budget_bytes, input_bytes(trace))
    covered = Covered(recompute, resident, host_budget_bytes)
    fluid = FluidProgram(trace, budget_bytes, machine, covered)
    solution = fluid.write().solve()
    if solution is None:
        return None
    compute = fluid.compute_us / fluid.unit_us
    primal, dual = ((compute + idle) * fluid.unit_us for idle in (solution.primal, solution.dual))
    proved = max(fluid.compute_us, min(primal, dual) * (1 - TOLERANCE))
    prices = _memory_prices(fluid, solution)
    return FluidBound(proved, primal, dual, recompute, resident, host_budget_bytes, prices)


def _memory_prices(fluid: FluidProgram, solution: LpSolution) -> dict[int, float]:
    """{call: us saved by a byte more}, of the calls that have a price."""
    per_byte = fluid.unit_us / fluid.budget_bytes
    prices = {
        call: -sum(solution.prices[row] for row in rows) * per_byte
        for call, rows in fluid.fits.items()
    }
    return {call: price for call, price in prices.items() if price > 0}


# The program, row by row: the inequalities that the sums of every legal list obey. Any share of an
# item may be away; items raise cumulated sums of bytes sent, fetched, released and made again, and
# the rows for each call compare those sums at its start and its end.


@dataclass(frozen=True, slots=True)
class _Resting:
    """Columns of a persistent variable at the border of two steps.

    Args:
        hosted: the share of it of which the host has a valid copy.
        away: the share of it that is not on the device.
    """

    hosted: int
    away: int


class _Instant(NamedTuple):
    """Columns of a point in time: what has been sent out, fetched, and released on the device."""

    sent: int
    fetched: int
    released: int


class FluidProgram:
    """Writes the LP. Bytes are shares of the budget, times shares of `unit_us`.

    The columns of an item are shares of it: `away` from the device, sent out for it (`new`), or
    dropped and computed `again`. The rows of a call see only sums of these up to its start:

    * "ready": bytes to be sent that exist by then, so that no more can have been sent;
    * "open": bytes to be away whose use before is over, so that no more can have been released;
    * "clean": those of them of which the host has had a copy from an earlier trip or from the
      start, so that they can be released without being sent;
    * "due": bytes that were away and have been needed again, so that no less has been fetched;
    * "work": compute time of all that has been computed again;
    * "cover": bytes that are dropped at the moment, on neither side, to be computed again later.

    Attributes:
        unit_us: the compute time of the step, or 1 where that is nothing.
        inputs_away: {call: what of inputs may be away once more, as terms}.
        fits: {call: the rows that say that memory suffices as it starts, and as it ends}.
        rises: {name of a sum: {call: the columns that it rises by at the start of the call}}.
    """

    def __init__(self, trace: Trace, budget_bytes: int, machine: Machine, covered: Covered):
        self.trace, self.machine = trace, machine
        self.budget_bytes = max(1, budget_bytes)
        host_bytes = covered.host_budget_bytes
        self.host = None if host_bytes is None else host_bytes / self.budget_bytes
        durations = call_durations_ns(trace, machine)
        self.compute_us = sum(durations) / 1000
        self.unit_us = self.compute_us or 1.0
        self.duration = [ns / 1000 / self.unit_us for ns in durations]
        per_share = self.unit_us / self.budget_bytes
        self.out_rate = machine.out_bytes_per_us * per_share
        self.in_rate = machine.in_bytes_per_us * per_share
        found = FluidItems(trace, self.budget_bytes, self.duration)
        self.lives, self.items = found.lives, list(found.of(covered))
        self.program = LinearProgram()
        self._inputs = {v for v in trace.initial if not trace.variables[v].persistent}
        self.inputs_away: dict[int, list[Term]] = defaultdict(list)
        self.fits: dict[int, list[int]] = defaultdict(list)
        self.rises: dict[str, dict[int, list[Term]]] = {
            name: defaultdict(list) for name in ("ready", "open", "clean", "due", "work", "cover")
        }

    def write(self) -> LinearProgram:
        """All columns and rows."""
        self._write_items()
        sums = {name: self._cumulate(rises) for name, rises in self.rises.items()}
        self._write_calls(sums)
        return self.program

    # What may be away, and when.

    def _write_items(self) -> None:
        """Columns: the share of each item that is away, sent for it and not before, computed
        again.
        """
        by_life: dict[int, list[Item]] = defaultdict(list)
        for item in self.items:
            by_life[item.life].append(item)
        resting = self._write_resting()
        for items in by_life.values():
            var = items[0].var
            initial = self.trace.producer[var] is None
            # Of initial values the host may have had bytes before.
            hosted = resting[var].hosted if var in resting else self._one()
            sent: list[Term] = [(hosted, -1.0)] if initial else []
            for item in items:
                self._write_item(item, resting, sent)

    def _write_resting(self) -> dict[int, _Resting]:
        """What of each persistent variable is on the host when a step begins.

        It has to be there again in the end: where the variable is updated, that is a way out.
        """
        last_use = {life.var: life.uses[-2] for life in self.lives if len(life.uses) > 1}
        found = {}
        for old, new in self.trace.end_variables.items():
            size = self.trace.variables[old].nbytes / self.budget_bytes
            if size:
                hosted, away = self.program.column(upper=1.0), self.program.column(upper=1.0)
                self.program.at_most([(away, 1.0), (hosted, -1.0)])
                if new != old:
                    self._rise("ready", last_use.get(new, BEFORE_THE_STEP) + 1, hosted, size)
                found[old] = _Resting(hosted, away)
        return found

    def _write_item(self, item: Item, resting: dict[int, _Resting], sent: list[Term]) -> None:
        """One item; `sent` collects what earlier items of its life have sent out."""
        program, calls = self.program, len(self.trace.calls)
        rest = resting.get(self.trace.carries.get(item.var, item.var))
        at_border = rest is not None and (item.opens == 0 or item.needed == calls)
        if rest is not None and at_border:
            away = rest.away
        else:
            away = program.column(upper=1.0, lower=float(item.fixed))
        self._rise("open", item.opens, away, item.size)
        self._rise("due", item.needed, away, item.size)
        if item.var in self._inputs and not item.fixed:
            for call in range(item.opens, item.needed):
                self.inputs_away[call].append((away, -item.size))
        updated = item.var in self.trace.carries
        if item.fixed or (at_border and not updated):
            self._rise("clean", item.opens, away, item.size)  # the host has had them before
        elif not at_border:
            self._write_sent(item, away, sent)
        if item.again is not None and item.needed < calls:
            again = program.column(upper=1.0)
            program.at_most([(away, 1.0), (again, 1.0)], 1.0)
            self._rise("work", item.needed, again, item.again)
            self._rise("cover", item.opens, again, item.size)
            self._rise("cover", item.needed, again, -item.size)

    def _write_sent(self, item: Item, away: int, sent: list[Term]) -> None:
        """Bytes leave only once they have been sent: for this item, or before."""
        new = self.program.column(upper=1.0)
        self._rise("ready", item.ready, new, item.size)
        if sent:
            self._rise("clean", item.opens, away, item.size)
            self._rise("clean", item.opens, new, -item.size)
        sent.append((new, -1.0))
        self.program.at_most([(away, 1.0), *sent])
        self.program.at_most([(new, 1.0), (away, -1.0)])

    def _one(self) -> int:
        """A column that is 1: the host has all of an input."""
        return self.program.column(lower=1.0, upper=1.0)

    def _rise(self, name: str, call: int, column: int, amount: float) -> None:
        if amount:
            self.rises[name][call].append((column, amount))

    def _cumulate(self, rises: dict[int, list[Term]]) -> list[int]:
        """Columns that hold, for each call, the sum of all that has risen up to its start."""
        columns: list[int] = []
        for call in range(len(self.trace.calls) + 1):
            column = self.program.column(lower=-float("inf"))
            terms = [(column, 1.0), *((c, -amount) for c, amount in rises.get(call, ()))]
            if columns:
                terms.append((columns[-1], -1.0))
            self.program.equal(terms)
            columns.append(column)
        return columns

    # What the flow obeys.

    def _write_calls(self, sums: dict[str, list[int]]) -> None:
        """Rows for the start and the end of each call, and for the end of the step."""
        program = self.program
        resident, fetched = self._resident(), self._inputs_fetched()
        before: _Instant | None = None  # the end of the call before
        idle_so_far: int | None = None
        for call, duration in enumerate([*self.duration, 0.0]):
            idle = program.column(cost=1.0)
            start = self._instant(call, sums)
            self._flow(before, start, idle, 0.0)
            idle_sum = program.column()
            # While the first call waits for its inputs there is nothing to compute again.
            rose = [(idle, -1.0)] if call else []
            rest = [] if idle_so_far is None else [(idle_so_far, -1.0)]
            program.equal([(idle_sum, 1.0), *rose, *rest])
            program.at_most([(sums["work"][call], 1.0), (idle_sum, -1.0)])
            idle_so_far = idle_sum
            if call == len(self.duration):
                program.at_most([(sums["ready"][call], 1.0), (start.sent, -1.0)])
                break
            program.at_most([(sums["due"][call], 1.0), (start.fetched, -1.0)])
            end = self._instant(call, sums)
            self._flow(start, end, None, duration)
            for instant in (start, end):
                self._fits(call, instant, sums, resident[call])
                self._fits_host(call, instant, fetched[call])
            before = end

    def _instant(self, call: int, sums: dict[str, list[int]]) -> _Instant:
        """New columns of a point during a call, and the rows that hold among them."""
        sent, fetched, released = (self.program.column() for _ in range(3))
        self.program.at_most([(sent, 1.0), (sums["ready"][call], -1.0)])
        self.program.at_most([(released, 1.0), (sums["open"][call], -1.0)])
        self.program.at_most([(released, 1.0), (sent, -1.0), (sums["clean"][call], -1.0)])
        self.program.at_most([(fetched, 1.0), (released, -1.0)])
        return _Instant(sent, fetched, released)

    def _flow(
        self, before: _Instant | None, after: _Instant, idle: int | None, duration: float
    ) -> None:
        """Between two instants the link carries no more than time allows, and no sum falls."""
        sent, fetched, released = (
            [(column, 1.0), *([] if before is None else [(before[kind], -1.0)])]
            for kind, column in enumerate(after)
        )
        for terms in (sent, fetched, released):
            self.program.at_most([(column, -amount) for column, amount in terms])
        time_out = [(column, amount / self.out_rate) for column, amount in sent]
        time_in = [(column, amount / self.in_rate) for column, amount in fetched]
        waits = [] if idle is None else [(idle, -1.0)]
        if self.machine.link == "shared":
            self.program.at_most([*time_out, *time_in, *waits], duration)
        else:
            self.program.at_most([*time_out, *waits], duration)
            self.program.at_most([*time_in, *waits], duration)

    def _fits(
        self, call: int, instant: _Instant, sums: dict[str, list[int]], resident: float
    ) -> None:
        """What would be resident, less what is away, is at most the budget, which is 1."""
        self.fits[call].append(len(self.program.row_uppers))
        self.program.at_most(
            [(instant.released, -1.0), (instant.fetched, 1.0), (sums["cover"][call], -1.0)],
            1.0 - resident,
        )

    def _fits_host(self, call: int, instant: _Instant, inputs_fetched: float) -> None:
        """What has been released after it was sent, and has not been fetched, is on the host; so
        are the inputs, throughout, those that have been fetched too. One that is away again, to
        come a second time, lies where it was.
        """
        if self.host is not None:
            away = [(instant.released, 1.0), (instant.fetched, -1.0), *self.inputs_away[call]]
            self.program.at_most(away, self.host - inputs_fetched)

    def _inputs_fetched(self) -> Sequence[float]:
        """For each call, the inputs that it or a call before it reads."""
        return [
            sum(item.size for item in self.items if item.fixed and item.needed <= call)
            for call in range(len(self.trace.calls))
        ]

    def _resident(self) -> Sequence[float]:
        """What is on the device during each call if nothing moves, inputs from the start."""
        sizes = Liveness(self.trace, BYTES).resident_bytes(runs_once(self.trace))
        resident = [size / self.budget_bytes for size in sizes]
        for item in self.items:
            if item.fixed:
                for call in range(item.needed):
                    resident[call] += item.size
        return resident


# Items: what may be away from the device. Each life of a value is cut at its uses into items; an
# item says during which calls its bytes may be away, from when on they can be sent out, and how
# long it would take to compute them again: at least the calls that must run whatever a list keeps.


@dataclass(frozen=True, slots=True)
class Covered:
    """The lists that a bound is about.

    Args:
        recompute: whether calls may run again.
        resident: only lists that leave persistent variables where they are.
        host_budget_bytes: only lists that keep to it; None: as much host memory as they like.
    """

    recompute: bool = True
    resident: bool = False
    host_budget_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Item:
    """A value between two of its uses, during which its bytes may be away from the device.

    Args:
        var, life: the variable, and the place of its life in `FluidItems.lives`.
        opens: the first call during which they may be away (0: from the start).
        needed: the call at which they must be back; the number of calls: never.
        size: as a share of the budget.
        ready: the first call during which they may be on their way out.
        again: compute time to get all of them back, as a share of the step's; None: impossible.
        fixed: whether they are away at the start, as inputs are.
    """

    var: int
    life: int
    opens: int
    needed: int
    size: float
    ready: int
    again: float | None
    fixed: bool = False


class FluidItems:
    """The items of a step.

    Args:
        budget_bytes: sizes are shares of it.
        duration: one for each call, as a share of the step's.

    Attributes:
        lives: lives of all values, where each call runs once.
    """

    def __init__(self, trace: Trace, budget_bytes: int, duration: Sequence[float]):
        self.trace, self.budget_bytes, self.duration = trace, budget_bytes, duration
        self.lives = lives(trace, runs_once(trace))
        self.lasting = frozenset(trace.end_variables.values())

    def of(self, covered: Covered) -> Iterator[Item]:
        """The items of the lists that a bound is about, life after life."""
        for number, life in enumerate(self.lives):
            size = self.trace.variables[life.var].nbytes / self.budget_bytes
            persistent = self.trace.variables[life.var].persistent
            if not size or (persistent and covered.resident):
                continue
            again = self._again(life) if covered.recompute else None
            # Bytes of a source may have been sent in place of the value's.
            written = min(self._chain(life.var)) if again else life.uses[0]
            for after, before in pairwise(life.uses):
                if before - after > 1 or after == BEFORE_THE_STEP:
                    fixed = after == BEFORE_THE_STEP and not persistent
                    opens = after + 1
                    yield Item(life.var, number, opens, before, size, written + 1, again, fixed)

    def _again(self, life: Life) -> float | None:
        """The share of compute time that a life's value takes to get back; None: impossible.

        A call that runs again makes all of its outputs, so only the largest is charged for it.
        """
        producer = self.trace.producer[life.var]
        if producer is None or not self.trace.calls[producer].pure:
            return None
        if self._largest(producer) != life.var:
            return 0.0
        return sum(self.duration[call] for call in self._chain(life.var))

    def _chain(self, var: int) -> list[int]:
        """The calls that must run if a value is computed again: its producer, and the producers
        of those of its sources that no other call reads.

        A list may instead have kept such a source, on the device or on the host. But the source is
        at least as large as the value, so keeping the value itself would have been no worse.
        """
        chain, values = [], [var]
        while values:
            producer = self.trace.producer[values.pop()]
            if producer is not None:
                chain.append(producer)
                sources = dict.fromkeys(self.trace.calls[producer].ins)
                values += [s for s in sources if self._stands_for(s, producer, var)]
        return chain

    def _stands_for(self, source: int, reader: int, var: int) -> bool:
        """Whether keeping a source is no better than keeping the value computed from it."""
        made = self.trace.producer[source]
        return (
            made is not None
            and self._largest(made) == source
            and set(self.trace.uses[source]) <= {made, reader}
            and source not in self.lasting
            and self.trace.variables[source].nbytes >= self.trace.variables[var].nbytes
        )

    def _largest(self, call: int) -> int:
        """The largest output of a call; the first of equals."""
        outs = self.trace.calls[call].outs
        return max(outs, key=lambda out: (self.trace.variables[out].nbytes, -out))
