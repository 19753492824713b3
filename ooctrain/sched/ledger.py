"""The table of `docs/schedule.md` as code: what each instruction claims, releases and waits for.

For each instruction of a schedule there is one `Issued`: the bytes it claims and releases, both
ledgers, and the instructions that must be done before it starts. Each stream works in list order,
so "wait for all of these" is always "wait for the latest of them on each stream": at most three
indices, even for "every release listed before". Verifier, simulator and executor all read this one
table. The planners keep their own books, and `testing/interpreter.py` derives the same laws again,
byte by byte, so that a mistake here cannot stay hidden. Source: docs/schedule.md. Read next:
`verify.py`, `simulate.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from ooctrain.sched.schedule import End, Fence, Free, Instruction, Run, Schedule, SwapIn, SwapOut
from ooctrain.sched.spans import Spans
from ooctrain.step.trace import Trace


@dataclass(frozen=True, slots=True)
class Issued:
    """One instruction with what the table says of it.

    Args:
        index: its position in the list; for an implied End the position of the Run before which it
            happens (at the very end: the length of the list).
        stream: "C", "D", "H", or "" for what runs nowhere (End, Free, Fence).
        claim_bytes, release_bytes: change of the device ledger at issue, in granted bytes.
        ledger_bytes: the device ledger after it.
        host_claim_bytes: what a SwapOut claims on the host.
        host_last_bytes: host bytes that no later copy touches. They count as released from the
            first later instruction that has to wait for this one in any case.
        host_ledger_bytes: the host ledger after such releases and its own claim.
        waits: indices of listed instructions that must be done first, at most one a stream. Besides
            these it waits for its stream's previous. For Free and End: what it gives back is
            released when these are done.
        implied: an End that the list does not spell out.
    """

    index: int
    instruction: Instruction
    stream: Stream
    claim_bytes: int
    release_bytes: int
    ledger_bytes: int
    host_claim_bytes: int
    host_last_bytes: int
    host_ledger_bytes: int
    waits: tuple[int, ...]
    implied: bool = False


def walk(trace: Trace, schedule: Schedule) -> list[Issued]:
    """The whole list through the table, implied Ends included, each at its place.

    The schedule must be legal (`verify`); of an illegal one the numbers mean nothing.
    Cost: O(instructions), times the chunks of the variable concerned.
    """
    ledger = Ledger(trace, schedule)
    issued: list[Issued] = []
    for index, instruction in enumerate(schedule.instructions):
        issued += ledger.issue(index, instruction)
    return issued + ledger.close()


def start_bytes(schedule: Schedule) -> tuple[int, int]:
    """(device, host) ledger before the first instruction."""
    granule = schedule.granule
    device = sum(granule.granted(hi - lo) for _, lo, hi in schedule.start_device)
    return granule.fixed_bytes + device, sum(hi - lo for _, lo, hi in schedule.start_host)


def peaks(issued: Sequence[Issued], schedule: Schedule) -> tuple[int, int]:
    """(device, host) peak bytes: the largest ledger values, the start included."""
    device, host = start_bytes(schedule)
    return (
        max([device, *(i.ledger_bytes for i in issued)]),
        max([host, *(i.host_ledger_bytes for i in issued)]),
    )


class Ledger:
    """Walks a list: residency, host copies, both ledgers, and which instruction waits for which.

    Attributes:
        device: for each variable its resident ranges; the value is (the Run that wrote it, the
            latest SwapOut that read it, the SwapIn that filled it), each an index or -1.
        host: for each variable its valid host copies; the value is the SwapOut's index, -1: start.
        ledger_bytes, host_ledger_bytes: both ledgers now.
        host_released_at: {index of a copy: list position at which its `host_last_bytes` were given
            back}.
        open_call: the call whose Run is not ended yet, or None.
    """

    def __init__(self, trace: Trace, schedule: Schedule):
        self.trace, self.granule = trace, schedule.granule
        variables = range(len(trace.variables))
        self.device: list[Spans[Waits]] = [Spans() for _ in variables]
        self.host: list[Spans[int]] = [Spans() for _ in variables]
        self.ledger_bytes, self.host_ledger_bytes = start_bytes(schedule)
        self.open_call: int | None = None
        self._open_bytes, self._open_index = 0, NOTHING
        # The latest Run that read a variable, or wrote it to keep; the latest SwapIn of any part.
        self._last_run = [NOTHING for _ in variables]
        self._last_in = [NOTHING for _ in variables]
        self._mate = {**trace.carries, **trace.carried_from}  # the other tenant of its host slot
        self._slot_reads: dict[int, Spans[int]] = {}  # by slot and range: the latest SwapIn from it
        self._host_life = host_life(trace, schedule)
        self._issued = list(NONE)  # by stream: the latest instruction
        self._fence = list(NONE)
        self._released = list(NONE)  # when these are done, so is every release listed so far
        # (stream, index) of copies whose `host_last_bytes` have not been given back yet
        self._host_pending: list[tuple[int, int]] = []
        self.host_released_at: dict[int, int] = {}
        self._host_released = list(NONE)
        self._length = len(schedule.instructions)
        for variable, lo, hi in schedule.start_device:
            self.device[variable].put(lo, hi, NONE)
        for variable, lo, hi in schedule.start_host:
            self.host[variable].put(lo, hi, NOTHING)

    def missing(self, variable: int) -> list[tuple[int, int]]:
        """The ranges of a variable that are not resident."""
        return self.device[variable].gaps(0, self.trace.variables[variable].nbytes)

    def issue(self, index: int, instruction: Instruction) -> list[Issued]:
        """Takes the next instruction of the list; before a Run an implied End comes first."""
        match instruction:
            case Run():
                return [*self._implied_end(index), self._run(index, instruction)]
            case SwapIn():
                return [self._swap_in(index, instruction)]
            case SwapOut():
                return [self._swap_out(index, instruction)]
            case Free():
                return [self._free(index, instruction)]
            case End():
                return [self._end(index, instruction)]
            case Fence():
                self._fence = list(self._issued)
                return [self._record(index, instruction, "", self._fence)]

    def close(self) -> list[Issued]:
        """The End that the end of the list implies, if the last Run has none."""
        return self._implied_end(self._length)

    def _implied_end(self, index: int) -> list[Issued]:
        if self.open_call is None:
            return []
        return [self._end(index, End(self.open_call), implied=True)]

    def _run(self, index: int, run: Run) -> Issued:
        call, granted = self.trace.calls[run.call], self.granule.granted
        kept = call.outs if run.keep is None else run.keep
        waits = self._fence.copy()
        for variable in call.ins:
            # The latest SwapIn of a variable stands for all of them: stream H works in order.
            waits[H] = max(waits[H], self._last_in[variable])
            self._last_run[variable] = index
        claim = self._open_bytes = granted(call.workspace_bytes)
        for out in call.outs:
            size = self.trace.variables[out].nbytes
            if out in call.reuse:
                self._take_over(call.reuse[out], waits)
            else:
                claim += granted(size)
            if out in kept:
                self.device[out].put(0, size, (index, NOTHING, NOTHING))
                self._last_run[out], self._last_in[out] = index, NOTHING
            else:
                self._open_bytes += granted(size)
        if claim:
            _raise_to(waits, self._released)
        self.ledger_bytes += claim
        self.open_call, self._open_index = run.call, index
        return self._record(index, run, "C", waits, claim=claim)

    def _take_over(self, source: int, waits: list[int]) -> None:
        """An output moves into the storage of `source`, once the listed copies of it are done."""
        size = self.trace.variables[source].nbytes
        for _, _, (_, swap_out, _) in self.device[source].over(0, size):
            waits[D] = max(waits[D], swap_out)
        self.device[source].drop(0, size)
        # Nothing is released here: a SwapIn of the old value has not waited for this Run.
        self._last_run[source] = NOTHING

    def _end(self, index: int, end: End, *, implied: bool = False) -> Issued:
        waits, released = self._fence.copy(), self._open_bytes
        waits[C] = max(waits[C], self._open_index)
        self.ledger_bytes -= released
        self.open_call, self._open_bytes = None, 0
        _raise_to(self._released, waits)
        return self._record(index, end, "", waits, release=released, implied=implied)

    def _swap_in(self, index: int, swap: SwapIn) -> Issued:
        waits = self._fence.copy()
        for _, _, swap_out in self.host[swap.var].over(swap.lo, swap.hi):
            waits[D] = max(waits[D], swap_out)
        _raise_to(waits, self._released)
        self.device[swap.var].put(swap.lo, swap.hi, (NOTHING, NOTHING, index))
        self._last_in[swap.var] = index
        self._reads_of_slot(swap.var).put(swap.lo, swap.hi, index)
        claim = self.granule.granted(swap.hi - swap.lo)
        self.ledger_bytes += claim
        return self._record(index, swap, "H", waits, claim=claim)

    def _swap_out(self, index: int, swap: SwapOut) -> Issued:
        waits, spans = self._fence.copy(), self.device[swap.var]
        for lo, hi, (run, _, swap_in) in spans.over(swap.lo, swap.hi):
            waits[C], waits[H] = max(waits[C], run), max(waits[H], swap_in)
            spans.put(lo, hi, (run, index, swap_in))
        for _, _, swap_in in self._reads_of_slot(swap.var).over(swap.lo, swap.hi):
            # All readers of this host range must be done before it is written again.
            waits[H] = max(waits[H], swap_in)
        self._give_back_host(index, "D", waits)
        if index in self._host_life.claims:
            _raise_to(waits, self._host_released)
        self.host[swap.var].put(swap.lo, swap.hi, index)
        if swap.var in self._mate:
            self.host[self._mate[swap.var]].drop(swap.lo, swap.hi)
        return self._record(index, swap, "D", waits)

    def _free(self, index: int, free: Free) -> Issued:
        # A Run touches whole variables, so the variable's latest one stands for the range's. Where
        # the range came in after that Run, its SwapIn has waited for the release that waited for
        # the Run.
        waits = self._fence.copy()
        waits[C] = max(waits[C], self._last_run[free.var])
        for _, _, (_, swap_out, swap_in) in self.device[free.var].over(free.lo, free.hi):
            waits[D], waits[H] = max(waits[D], swap_out), max(waits[H], swap_in)
        self.device[free.var].drop(free.lo, free.hi)
        released = self.granule.granted(free.hi - free.lo)
        self.ledger_bytes -= released
        _raise_to(self._released, waits)
        return self._record(index, free, "", waits, release=released)

    def _reads_of_slot(self, variable: int) -> Spans[int]:
        return self._slot_reads.setdefault(slot_of(self.trace, variable), Spans())

    def _record(
        self, index: int, instruction: Instruction, stream: Stream, waits: Sequence[int], *,
        claim: int = 0, release: int = 0, implied: bool = False,
    ) -> Issued:  # fmt: skip
        """The finished row; applies the host ledger, which has no instructions of its own."""
        self._give_back_host(index, stream, waits)
        host_claim = last = 0
        if stream:
            lane = LANES[stream]
            host_claim = self._host_life.claims.get(index, 0) if lane == D else 0
            last = self._host_life.last.get(index, 0) if lane != C else 0
            if last:
                self._host_pending.append((lane, index))
            self._issued[lane] = index
        self.host_ledger_bytes += host_claim
        return Issued(
            index, instruction, stream, claim, release, self.ledger_bytes, host_claim, last,
            self.host_ledger_bytes, tuple(w for w in waits if w >= 0), implied,
        )  # fmt: skip

    def _give_back_host(self, index: int, stream: Stream, waits: Sequence[int]) -> None:
        """Releases the host bytes of last copies that are done before this instruction starts.

        It waits for them by `waits`, or stands behind them on its stream. So no SwapOut waits for a
        host release that no instruction has had to wait for, and theorem 2 holds for the host too.
        """
        if not self._host_pending:
            return
        done = list(waits)
        if stream:
            done[LANES[stream]] = self._issued[LANES[stream]]
        kept = []
        for lane, copy in self._host_pending:
            if copy > done[lane]:
                kept.append((lane, copy))
                continue
            self.host_ledger_bytes -= self._host_life.last[copy]
            self.host_released_at[copy] = index
            self._host_released[lane] = max(self._host_released[lane], copy)
        self._host_pending = kept


def _raise_to(waits: list[int], others: Sequence[int]) -> None:
    """Waits for the others too."""
    for lane, other in enumerate(others):
        if other > waits[lane]:
            waits[lane] = other


def lane_of(row: Issued, shared_link: bool) -> str:
    """The queue an instruction stands in: on a shared link both directions are one."""
    return "link" if shared_link and row.stream != "C" else row.stream


# Host memory of a schedule: which copy claims which bytes, and which is the last to touch them.
#
# `HostLife` records how long each byte of host memory is held. A byte of a host slot is held from
# the first SwapOut that writes it (or from the start) to the last listed copy that touches it. A
# byte that the start of the next step needs is held throughout. Both variables of a carry (W and
# its update W') share one slot. Source: docs/schedule.md, "Ledgers".


@dataclass(frozen=True, slots=True)
class HostLife:
    """What the copies of a list claim on the host, and where it ends.

    Args:
        claims: {index of a SwapOut: bytes that it claims at issue}.
        last: {index of a copy: bytes that no later copy touches}.
    """

    claims: Mapping[int, int]
    last: Mapping[int, int]


def host_life(trace: Trace, schedule: Schedule) -> HostLife:
    """Claims and ends of host bytes. Cost: O(copies), times the chunks of a variable."""
    claims: dict[int, int] = {}
    ends: dict[int, int] = {}
    for pieces in lives(trace, schedule).values():
        for lo, hi, (first, last) in pieces.items:
            if first >= 0:
                claims[first] = claims.get(first, 0) + hi - lo
                ends[last] = ends.get(last, 0) + hi - lo
    return HostLife(claims, ends)


def slot_of(trace: Trace, variable: int) -> int:
    """The variable that names the host slot: the older one of a carry."""
    return trace.carries.get(variable, variable)


def copies(trace: Trace, schedule: Schedule) -> Iterator[tuple[int, int, int, int]]:
    """(slot, index, lo, hi) of all start ranges (index ~position, below 0) and copies, in order."""
    for position, (variable, lo, hi) in enumerate(schedule.start_host):
        yield slot_of(trace, variable), ~position, lo, hi
    for index, instruction in enumerate(schedule.instructions):
        if type(instruction) is SwapOut or type(instruction) is SwapIn:
            yield slot_of(trace, instruction.var), index, instruction.lo, instruction.hi


def lives(trace: Trace, schedule: Schedule) -> dict[int, Spans[tuple[int, int]]]:
    """By slot: ranges with (first, last) index of the copies that touch them; -1: the start."""
    lives: dict[int, Spans[tuple[int, int]]] = {}
    end = len(schedule.instructions)
    for slot, index, lo, hi in copies(trace, schedule):
        spans = lives.setdefault(slot, Spans())
        known = spans.over(lo, hi)
        for start, stop in spans.gaps(lo, hi):
            spans.put(start, stop, (max(index, NOTHING), end if index < 0 else index))
        for start, stop, (first, last) in known:
            spans.put(start, stop, (first, max(last, index)))
    return lives


Stream = Literal["C", "D", "H", "N", ""]
C, D, H = 0, 1, 2
LANES: Mapping[str, int] = {"C": C, "D": D, "H": H}
#: Stands for the index of an instruction where there is none: before all others.
NOTHING = -1
#: By stream C, D, H: the latest instruction to wait for.
Waits = tuple[int, int, int]
NONE: Waits = (NOTHING, NOTHING, NOTHING)
