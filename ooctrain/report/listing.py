"""The list of a step as a reader steps through it: each line, its bytes, its waits.

A timeline shows when an instruction ran. The list shows why it could not run earlier: the table of
`sched/ledger.py` says for which earlier instructions it waits, and what lies between the two says
for what: data that comes in, memory that a `free` gives back, a place on the host. `listing` puts
both into lines of plain data, which a file can keep. Read next: `record.py`, the file; `page.py`,
which hands the lines to the page.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import Any, Literal, get_args

from ooctrain.sched.instructions import describe_instruction
from ooctrain.sched.ledger import LANES, Issued, slot_of, walk
from ooctrain.sched.schedule import End, Fence, Free, Plan, Run, Schedule, SwapIn, SwapOut
from ooctrain.sched.timeline import Timeline
from ooctrain.step.trace import Trace

#: What is waited for. "data": what the other instruction makes or brings. "storage": a copy must
#: have left the bytes that an output takes over. "memory": bytes that are given back once the other
#: one is done. "use": the end of the last use of what is given back. "host": a place on the host.
#: "fence": a fence between the two.
Why = Literal["data", "storage", "memory", "use", "host", "fence"]
WHYS: tuple[str, ...] = get_args(Why)
NO_LINE = -1


@dataclass(frozen=True, slots=True)
class ListedWait:
    """An earlier instruction that must be done before a line begins.

    Args:
        index: its place in the list.
        why: one of `WHYS`.
        giver: for "memory" the line that gives the bytes back when `index` is done: a free, or a
            run as it ends; else `NO_LINE`.
    """

    index: int
    why: Why
    giver: int = NO_LINE


@dataclass(frozen=True, slots=True)
class ListedLine:
    """An instruction of a list, with its bytes and its waits.

    Args:
        text: as the list has it: "out conv1.out[0:64K]".
        name: name of the call that runs, or of the variable; "" for a fence.
        stream: "C", "D", "H", or "" for what runs nowhere.
        claim_bytes: what it claims on the device.
        ledger_bytes, host_ledger_bytes: both ledgers after it.
        waits: without the line before it on its stream.
    """

    text: str
    name: str
    stream: str
    claim_bytes: int
    ledger_bytes: int
    host_ledger_bytes: int
    waits: tuple[ListedWait, ...] = ()


def listing(trace: Trace, schedule: Schedule) -> tuple[ListedLine, ...]:
    """Every line of a legal list. Cost: as `sched.ledger.walk`."""
    reader = _Reader(trace, schedule)
    rows = walk(trace, schedule)
    return tuple(line for row in rows for line in reader.read(row))


class _Reader:
    """Remembers what has been given back, and by which line, while the lines pass."""

    def __init__(self, trace: Trace, schedule: Schedule):
        self.trace, self.instructions = trace, schedule.instructions
        self.last_run = NO_LINE
        self.giver: dict[int, int] = {}  # {instruction that was in use: line that gives back}
        self.last_copies: set[int] = set()  # whose bytes on the host no later copy touches

    def read(self, row: Issued) -> Iterable[ListedLine]:
        """The line of a row; an implied End has no line, as its bytes belong to the next one."""
        if not row.implied:
            yield self._line(row)
        if row.host_last_bytes:
            self.last_copies.add(row.index)
        if isinstance(row.instruction, Run):
            self.last_run = row.index
        elif isinstance(row.instruction, End | Free):
            giver = self.last_run if row.implied else row.index
            used = [index for index in row.waits if self._touches(row, index)]
            self.giver.update(dict.fromkeys(used, giver))

    def _line(self, row: Issued) -> ListedLine:
        return ListedLine(
            describe_instruction(row.instruction, self.trace), self._name(row), row.stream,
            row.claim_bytes, row.ledger_bytes, row.host_ledger_bytes,
            tuple(self._wait(row, index) for index in row.waits),
        )  # fmt: skip

    def _name(self, row: Issued) -> str:
        match row.instruction:
            case Run(call) | End(call):
                return self.trace.calls[call].name
            case SwapOut(variable) | SwapIn(variable) | Free(variable):
                return self.trace.variables[variable].name
        return ""

    def _wait(self, row: Issued, index: int) -> ListedWait:
        if isinstance(row.instruction, Fence):
            return ListedWait(index, "fence")
        if isinstance(row.instruction, End | Free):
            return ListedWait(index, "use" if self._touches(row, index) else "fence")
        reason = self._reason(row, index)
        if reason:
            return ListedWait(index, reason)
        if row.claim_bytes and index in self.giver:
            return ListedWait(index, "memory", self.giver[index])
        if row.host_claim_bytes and index in self.last_copies:
            return ListedWait(index, "host")
        return ListedWait(index, "fence")

    def _reason(self, row: Issued, index: int) -> Why | None:
        """What the line itself needs of the other one, if anything."""
        other = self.instructions[index]
        match row.instruction:
            case Run(call):
                needed, replaced = self.trace.calls[call].ins, self.trace.calls[call].reuse
                if isinstance(other, SwapIn) and other.var in needed:
                    return "data"
                if isinstance(other, SwapOut) and other.var in replaced.values():
                    return "storage"
            case SwapIn(variable) if isinstance(other, SwapOut):
                return "data" if self._shares_slot(variable, other.var) else None
            case SwapOut(variable):
                return self._reason_of_copy(variable, index)
        return None

    def _reason_of_copy(self, variable: int, index: int) -> Why | None:
        match self.instructions[index]:
            case Run(call):
                return "data" if variable in self.trace.calls[call].outs else None
            case SwapIn(other):
                if other == variable:
                    return "data"
                return "host" if self._shares_slot(variable, other) else None
        return None

    def _shares_slot(self, one: int, other: int) -> bool:
        """Whether two variables have the same place on the host."""
        return slot_of(self.trace, one) == slot_of(self.trace, other)

    def _touches(self, row: Issued, index: int) -> bool:
        """Whether the other instruction uses what this line gives back."""
        if isinstance(row.instruction, End):
            return index == self.last_run
        assert isinstance(row.instruction, Free), "nothing else gives back"
        variable, other = row.instruction.var, self.instructions[index]
        if isinstance(other, Run):
            call = self.trace.calls[other.call]
            return variable in (*call.ins, *call.outs)
        return isinstance(other, SwapOut | SwapIn) and other.var == variable


def earliest_us(lines: Sequence[ListedLine], done_us: dict[int, float]) -> list[float]:
    """For each line the time at which the last of its waits is done; `done_us` of those that run
    somewhere. A line that runs nowhere is done at that time, too.
    """
    done, earliest = dict(done_us), []
    for place, line in enumerate(lines):
        earliest.append(max((done.get(wait.index, 0.0) for wait in line.waits), default=0.0))
        done.setdefault(place, earliest[-1])
    return earliest


# The list in the file of `--json`. The key `list` holds what a reader needs to step through the
# list without the network: its lines, the variables that each call reads and writes, and, for a
# measured step, the times that the simulator had predicted.

Times = tuple[float, float]  # start and end in us


@dataclass(frozen=True, slots=True)
class ListedStep:
    """A list that can be stepped through.

    Args:
        lines: in list order.
        uses: {call: (variables that it reads, variables that it writes)}, by name.
        predicted: {place in the list: (start_us, end_us)} of a measured step; else empty.
    """

    lines: tuple[ListedLine, ...]
    uses: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]]
    predicted: Mapping[int, Times]


def list_to_json(plan: Plan, predicted: Timeline | None) -> dict[str, Any]:
    """What stands under `list` in the file."""
    names = [variable.name for variable in plan.trace.variables]
    times = predicted.events if predicted else ()
    return {
        "lines": [_row(line) for line in listing(plan.trace, plan.schedule)],
        "uses": {
            call.name: [[names[v] for v in ids] for ids in (call.ins, call.outs)]
            for call in plan.trace.calls
        },
        "predicted": [
            [event.index, event.start_us, event.end_us] for event in times if event.stream != "N"
        ],
    }


def list_from_json(data: Mapping[str, Any]) -> ListedStep:
    """The list of a file. Raises KeyError, TypeError or ValueError if it holds no list."""
    rows = data["lines"]
    uses = {
        str(call): (tuple(map(str, reads)), tuple(map(str, writes)))
        for call, (reads, writes) in data["uses"].items()
    }
    predicted = {}
    for index, start_us, end_us in data["predicted"]:
        if not start_us <= end_us < math.inf:
            raise ValueError(f"{start_us} to {end_us} us is not a stretch of time")
        predicted[_place(index, len(rows))] = (float(start_us), float(end_us))
    return ListedStep(tuple(_line(place, row) for place, row in enumerate(rows)), uses, predicted)


def _row(line: ListedLine) -> list[Any]:
    *fields, waits = astuple(line)
    return [*fields, [list(wait) for wait in waits]]


def _line(place: int, row: Any) -> ListedLine:
    text, name, stream, claim, held, host, waits = row
    if stream and stream not in LANES:
        raise ValueError(f"no stream is called {stream!r}")
    claim, held, host = (_place(size, math.inf) for size in (claim, held, host))
    found = tuple(_wait(place, *wait) for wait in waits)
    return ListedLine(str(text), str(name), stream, claim, held, host, found)


def _wait(place: int, index: Any, why: Any, giver: Any) -> ListedWait:
    if why not in WHYS:
        raise ValueError(f"nothing waits for {why!r}")
    return ListedWait(
        _place(index, place), why, NO_LINE if giver == NO_LINE else _place(giver, place)
    )


def _place(value: Any, behind: float) -> int:
    """A whole number from 0 to below `behind`."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < behind:
        raise ValueError(f"{value!r} is neither a place in the list nor a number of bytes")
    return value
