"""The LP of the bound, row by row: the inequalities that the sums of every legal list obey.

The result is a `LinearProgram` whose optimum is the least idle time of a trace within a budget on a
machine. A value between two of its uses is an item, of which any share may be away from the device
(`fluid_items.py`). Items raise cumulated sums of bytes sent, fetched, released and made again, and
the rows for each call compare those sums at its start and its end. Bytes are given as shares of the
budget, times as shares of the compute time of the step, so that no number is huge. Read next:
`lp.py`, which solves it and says what is proved; `linear.py`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ooctrain.sched.bounds.fluid_items import Covered, FluidItems, Item
from ooctrain.sched.bounds.linear import LinearProgram, Term
from ooctrain.sched.planning.decisions import BEFORE_THE_STEP, runs_once
from ooctrain.sched.planning.residency import Liveness
from ooctrain.sched.schedule import BYTES
from ooctrain.step.machine import Machine, call_durations_ns
from ooctrain.step.trace import Trace


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
