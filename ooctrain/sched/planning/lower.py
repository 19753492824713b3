"""From decisions to a list: everything as soon as it is safe.

Decisions say which calls run, and during which gaps between its uses a value may leave the device.
An engine plays them through in time; the result is a legal `Schedule`, with the engine's own times,
or the plan of it. What cannot fit, since the decisions themselves keep too much on the device, is
refused before anything is played.

Sources: paper 002's no-wait schedules (its proposition 1 needs a total order of claims, which the
order of the list is). Read next: `sched/ledger.py` for what the list then means,
`sched/bounds/closed.py`.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from operator import sub
from typing import Any

import numpy as np

from ooctrain.sched.planning.decisions import (
    BEFORE_THE_STEP,
    Decisions,
    Gap,
    Life,
    check_gaps,
    lives,
)
from ooctrain.sched.planning.host_gaps import HostMargin
from ooctrain.sched.planning.planner import check_host, infeasible, make_plan
from ooctrain.sched.planning.question import Question
from ooctrain.sched.planning.residency import Liveness
from ooctrain.sched.schedule import (
    BYTES,
    End,
    Free,
    Granule,
    Instruction,
    Plan,
    Range,
    Run,
    Schedule,
    SwapIn,
    SwapOut,
)
from ooctrain.sched.spans import held_during
from ooctrain.step.machine import Machine, call_durations_ns
from ooctrain.step.trace import Trace


@dataclass(frozen=True, slots=True)
class Lowered:
    """A list with the engine's own times.

    Args:
        start_ns: by list position, when the instruction starts (a Free or End: when it takes
            effect).
        makespan_ns: when the last one is done.
    """

    schedule: Schedule
    start_ns: tuple[int, ...]
    makespan_ns: int


def lower(
    decisions: Decisions,
    trace: Trace,
    budget_bytes: int,
    machine: Machine,
    granule: Granule = BYTES,
) -> Schedule:
    """The as-soon-as-possible list of some decisions.

    Args:
        budget_bytes: device budget, in granted bytes.
        machine: gives durations, the link, how much copies slow calls down, and what issuing takes:
            the engine's times are the simulator's.

    Raises:
        Infeasible: a call does not fit together with what the decisions keep on the device;
            `minimum_bytes` is the least budget for these decisions.
        ConfigError: the decisions contradict the trace.

    Cost: O((runs + pieces) log + swap-ins x calls between prefetch and use).
    """
    return lower_timed(decisions, trace, budget_bytes, machine, granule).schedule


def lower_timed(
    decisions: Decisions,
    trace: Trace,
    budget_bytes: int,
    machine: Machine,
    granule: Granule = BYTES,
) -> Lowered:
    """`lower`, with the times at which the engine starts each instruction."""
    return lower_within(decisions, Question(trace, budget_bytes, machine, granule))


def lower_within(decisions: Decisions, question: Question) -> Lowered:
    """`lower_timed` within both budgets: a copy out begins early only where it fits on the host.
    Decisions that need more host memory are lowered as if it were not limited.
    """
    trace, budget_bytes = question.trace, question.budget_bytes
    machine, granule = question.machine, question.granule
    table = tabulate(decisions, trace, machine, granule)
    _check_fits(table, decisions, trace, budget_bytes)
    engine = AsapEngine(table, budget_bytes, machine, _host_margin(table, question))
    engine.play()
    schedule = Schedule(tuple(engine.instructions), table.start_device, table.start_host, granule)
    return Lowered(schedule, tuple(engine.start_ns), engine.last_end_ns)


def plan_of(
    name: str, question: Question, decisions: Decisions, notes: Mapping[str, Any] | None = None
) -> Plan:
    """The as-soon-as-possible plan of some decisions.

    Raises:
        Infeasible: they do not fit the budget, or the host's.
    """
    schedule = lower_within(decisions, question).schedule
    plan = make_plan(schedule, question.trace, question.machine, notes)
    check_host(name, plan, question.host_budget_bytes)
    return plan


def _check_fits(table: Table, decisions: Decisions, trace: Trace, budget_bytes: int) -> None:
    most, position = max((most, position) for position, most in enumerate(table.resident_bytes))
    if max(most, table.start_bytes) > budget_bytes:
        name = trace.calls[decisions.runs[position].call].name
        raise infeasible("lower", budget_bytes, max(most, table.start_bytes), name)


def _host_margin(table: Table, question: Question) -> HostMargin | None:
    """What the copies of all pieces leave of the host budget; None where there is no limit, or
    where it cannot be kept.
    """
    if question.host_budget_bytes is None:
        return None
    there = {(var, lo, hi) for var, lo, hi in table.start_host}
    left_bytes = question.host_budget_bytes - sum(hi - lo for _, lo, hi in there)
    first, last = dict[Range, int](), dict[Range, int]()
    for piece in table.pieces:  # in the order of their gaps
        if piece.slot not in there:
            first.setdefault(piece.copy, piece.after + 1)
            last[piece.copy] = piece.before
    if sum(hi - lo for _, lo, hi in first) <= left_bytes:
        return None
    margin = HostMargin(left_bytes, len(table.runs))
    for copy, begin in first.items():
        _, lo, hi = copy
        margin.take(begin, min(last[copy], len(table.runs)), hi - lo)
    return margin if min(margin.left_bytes) >= 0 else None


# The engine plays a step in time and writes each instruction as it starts. A call starts when its
# inputs are there and its memory is free. Swap-outs go in order of production. Swap-ins go in order
# of next use, but only if the bytes fit now and in every call up to that use, so that no prefetch
# can block a call. A swap-out that has not begun when its value is due back is cancelled, where the
# bytes can stay. On a shared link swap-outs go first, unless the next call waits for data. The
# clock goes from one end of something to the next.


NEVER = 1 << 62
#: A budget beyond it limits nothing; numbers up to it can be counted in 64 bits.
AMPLE_BYTES = 1 << 62


class AsapEngine:
    """Plays the step in time and writes the list down.

    Attributes:
        now_ns: the clock.
        slowdown: how many times as long a call takes while a copy runs.
        position: the Run that is running, or next.
        run_left_ns: what is left of it, undisturbed; `NEVER` where none runs.
        unpaid_ns: issue of what has been listed since the last Run, which the next one begins with.
        held_bytes: the device ledger.
        room_bytes: for each Run, the budget less all that must or will be there by then.
        ended: position of the latest Run that has ended.
        awaited: for each Run, how many pieces have yet to arrive (or stay) before it can start.
        returning: for each host copy, how many pieces have yet to arrive from it (or stay).
        opening: for each Run, the pieces whose gap begins when it ends.
        outgoing, incoming: pieces whose copy has not started, in the order in which they start.
        copies: {host copy: when it is done, in ns}, of those that have started.
        going, coming: the pieces that are being copied, out and in.
        host: host bytes left for copies; None: enough for all.
    """

    def __init__(
        self, table: Table, budget_bytes: int, machine: Machine, host: HostMargin | None = None
    ):
        self.table, self.budget_bytes, self.host = table, budget_bytes, host
        self.shared_link, self.slowdown = machine.link == "shared", machine.slowdown
        self.issue_ns = round(machine.issue_us * 1000)
        self.copy_issue_ns = round(machine.copy_issue_us * 1000)
        self.unpaid_ns = 0
        self.now_ns = self.last_end_ns = self.position = 0
        self.held_bytes = table.start_bytes
        self.room_bytes = min(budget_bytes, AMPLE_BYTES) - np.array(table.resident_bytes, np.int64)
        self.ended = BEFORE_THE_STEP
        self.awaited = [0] * (len(table.runs) + 1)
        self.returning: dict[Range, int] = defaultdict(int)
        self.opening: dict[int, list[GapPiece]] = defaultdict(list)
        for piece in table.pieces:
            self._await(piece, piece.returns)
            self.opening[piece.after].append(piece)
        self.outgoing = deque(sorted(table.pieces, key=lambda piece: (piece.queued, piece.after)))
        self.incoming = deque(
            sorted((p for p in table.pieces if p.returns), key=lambda piece: piece.before)
        )
        self.copies = {p.copy: 0 for p in table.pieces if p.after == BEFORE_THE_STEP}  # done, in ns
        self.run_left_ns = self.out_ends_ns = self.in_ends_ns = NEVER
        self.going: GapPiece | None = None
        self.coming: GapPiece | None = None
        self.instructions: list[Instruction] = []
        self.start_ns: list[int] = []

    def play(self) -> None:
        """Until every Run has ended and every copy is done."""
        for piece in self.opening[BEFORE_THE_STEP]:
            piece.is_out = True
        self._free_dead(BEFORE_THE_STEP)
        while self._start_something() or self._clock_moves():
            pass

    def _start_something(self) -> bool:
        """Starts a call or a copy that can start now; False where none can."""
        if self._start_run():
            return True
        waits_for_data = self.run_left_ns == NEVER and self.awaited[self.position] > 0
        if self.shared_link and waits_for_data:
            return self._start_in() or self._start_out()
        return self._start_out() or self._start_in()

    def _start_run(self) -> bool:
        position, table = self.position, self.table
        if self.run_left_ns != NEVER or position == len(table.runs) or self.awaited[position]:
            return False
        if self.held_bytes + table.claim_bytes[position] > self.budget_bytes:
            return False
        self.held_bytes += table.claim_bytes[position]
        self._write(table.runs[position])
        self.run_left_ns, self.unpaid_ns = table.duration_ns[position] + self.unpaid_ns, 0
        return True

    def _start_out(self) -> bool:
        while self.outgoing and (self.outgoing[0].stays or self.outgoing[0].copy in self.copies):
            self.outgoing.popleft()
        if self.going or (self.shared_link and self.coming) or not self.outgoing:
            return False
        piece = self._next_out()
        if piece is None:
            return False
        self.outgoing.remove(piece)
        self.going, self.out_ends_ns = piece, self.now_ns + piece.out_ns
        self.copies[piece.copy] = self.out_ends_ns
        self._write(SwapOut(piece.var, piece.lo, piece.hi))
        return True

    def _next_out(self) -> GapPiece | None:
        """The first piece that may leave. Where it does not fit on the host yet, another may go
        before: one whose gap has begun, and which the device may wait for.
        """
        for piece in self.outgoing:
            if piece.written > self.ended:
                return None
            waits = piece.slot != piece.copy and self.returning[piece.slot]
            if self.host is None:
                return None if waits else piece
            done = piece.stays or piece.copy in self.copies
            if not (waits or done) and self._host_takes(self.host, piece):
                return piece
        return None

    def _host_takes(self, host: HostMargin, piece: GapPiece) -> bool:
        """Whether the piece fits on the host until its gap begins; after that it fits anyway."""
        size_bytes, slot = piece.hi - piece.lo, self.position + (self.run_left_ns != NEVER)
        if host.least(slot, piece.after) < size_bytes:
            return False
        host.take(slot, piece.after, size_bytes)
        return True

    def _start_in(self) -> bool:
        """Brings in the piece that is needed next, or lets it stay if it has not left."""
        if not self.incoming:
            return False
        piece = self.incoming[0]
        settled = self._bring_in(piece) if piece.is_out else self._let_stay(piece)
        if settled:
            self.incoming.popleft()
        return settled

    def _bring_in(self, piece: GapPiece) -> bool:
        """Starts a swap-in where the link is free and the bytes fit, now and up to their use."""
        if not self._may_copy_in() or self.held_bytes + piece.size_bytes > self.budget_bytes:
            return False
        if not self._reserve(piece):
            return False
        self.held_bytes += piece.size_bytes
        self.coming, self.in_ends_ns = piece, self.now_ns + piece.in_ns
        self._write(SwapIn(piece.var, piece.lo, piece.hi))
        return True

    def _let_stay(self, piece: GapPiece) -> bool:
        """Cancels a swap-out when its way back would start: the copy out has not, the bytes fit."""
        due = self.run_left_ns == NEVER and piece.before == self.position
        if not (due or self._may_copy_in()):
            return False
        if piece.after > self.ended or piece.copy in self.copies or not self._reserve(piece):
            return False
        piece.stays = True
        self._await(piece, -1)
        return True

    def _may_copy_in(self) -> bool:
        """Whether the link is free for a copy to the device."""
        return not self.coming and not (self.shared_link and self.going)

    def _reserve(self, piece: GapPiece) -> bool:
        """Whether the bytes fit in every call up to their use; if so, takes them from its room."""
        first = self.position + (self.run_left_ns != NEVER)
        room = self.room_bytes[first : piece.before]
        if room.size and room.min() < piece.size_bytes:
            return False
        room -= piece.size_bytes
        return True

    def _clock_moves(self) -> bool:
        """Goes to the next end of something; False if nothing is under way."""
        # While `pass_ns` go by, `work_ns` of a call's work are done.
        pass_ns, work_ns = self.slowdown.as_integer_ratio() if self.going or self.coming else (1, 1)
        run_ends_ns = NEVER
        if self.run_left_ns != NEVER:
            run_ends_ns = self.now_ns - (-self.run_left_ns * pass_ns // work_ns)
        next_ns = min(run_ends_ns, self.out_ends_ns, self.in_ends_ns)
        if next_ns == NEVER:
            return False
        if self.run_left_ns != NEVER:
            self.run_left_ns -= (next_ns - self.now_ns) * work_ns // pass_ns
        self.now_ns = self.last_end_ns = next_ns
        if self.out_ends_ns == next_ns:
            self._end_out()
        if self.in_ends_ns == next_ns:
            self._end_in()
        if run_ends_ns == next_ns:
            self._end_run()
        return True

    def _end_out(self) -> None:
        piece, self.going, self.out_ends_ns = self.going, None, NEVER
        if piece is not None and piece.after <= self.ended:
            self._release(piece)

    def _end_in(self) -> None:
        piece, self.coming, self.in_ends_ns = self.coming, None, NEVER
        if piece is not None:
            self._await(piece, -1)

    def _await(self, piece: GapPiece, change: int) -> None:
        self.awaited[piece.before] += change
        self.returning[piece.copy] += change

    def _end_run(self) -> None:
        self.ended, self.run_left_ns = self.position, NEVER
        self.position += 1
        self._write(End(self.table.runs[self.ended].call))
        self.held_bytes -= self.table.end_bytes[self.ended]
        self._free_dead(self.ended)
        for piece in self.opening[self.ended]:
            if self.copies.get(piece.copy, NEVER) <= self.now_ns:
                self._release(piece)

    def _free_dead(self, position: int) -> None:
        for variable, size_bytes, granted_bytes in self.table.dead[position]:
            self._write(Free(variable, 0, size_bytes))
            self.held_bytes -= granted_bytes

    def _release(self, piece: GapPiece) -> None:
        piece.is_out = True
        self._write(Free(piece.var, piece.lo, piece.hi))
        self.held_bytes -= piece.size_bytes

    def _write(self, instruction: Instruction) -> None:
        self.instructions.append(instruction)
        self.start_ns.append(self.now_ns)
        self.unpaid_ns += self.issue_ns
        if isinstance(instruction, SwapIn | SwapOut):
            self.unpaid_ns += self.copy_issue_ns


# The tables that the engine looks up: the bytes that each Run claims and releases, the bytes
# resident during it if every gap is used to the full, and the `GapPiece`s that go out and come
# back. If `resident_bytes` stays within the budget, some list of these decisions does too; if not,
# none does.


@dataclass(slots=True)
class GapPiece:
    """Bytes of a gap, on their way out and back.

    Args:
        size_bytes: granted.
        written: position of the Run that writes them.
        queued: their place among the swap-outs: `written`, or later where W' waits for W to return.
        after, before: the uses around the gap.
        out_ns, in_ns: duration of the copies.
        slot: names the host bytes that the copy takes.
        returns: whether they come back (not at the end of the step).
        is_out: they have left the device.
        stays: its swap-out was cancelled.
    """

    var: int
    lo: int
    hi: int
    size_bytes: int
    written: int
    queued: int
    after: int
    before: int
    out_ns: int
    in_ns: int
    slot: Range
    returns: bool
    is_out: bool = False
    stays: bool = False

    @property
    def copy(self) -> Range:
        """Names the host copy: two gaps with the same bytes share it."""
        return (self.var, self.lo, self.hi)


@dataclass(frozen=True, slots=True)
class Table:
    """What the engine looks up, by position in the runs.

    Args:
        duration_ns, claim_bytes: one for each Run.
        end_bytes: workspace and scratch outputs, which its End releases.
        dead: (variable, bytes, granted bytes) to be freed after it; `BEFORE_THE_STEP`: before the
            first.
        resident_bytes: what is on the device during it if every gap is used to the full.
        pieces: what goes out and comes back, by the Run after which its gap begins.
        start_device, start_host: see `Schedule`.
        start_bytes: granted bytes of `start_device`.
    """

    runs: tuple[Run, ...]
    duration_ns: list[int]
    claim_bytes: list[int]
    end_bytes: list[int]
    dead: Mapping[int, list[tuple[int, int, int]]]
    resident_bytes: list[int]
    pieces: list[GapPiece]
    start_device: tuple[Range, ...]
    start_host: tuple[Range, ...]
    start_bytes: int


def tabulate(decisions: Decisions, trace: Trace, machine: Machine, granule: Granule) -> Table:
    """The static tables of some decisions. Cost: O((runs + gaps) log)."""
    runs, all_lives = decisions.runs, lives(trace, decisions.runs)
    liveness = Liveness(trace, granule)
    check_gaps(trace, decisions, all_lives, granule)
    gaps = cut([*decisions.gaps, *_implied_gaps(trace, decisions, all_lives)], trace)
    pieces = _pieces(Decisions(runs, tuple(gaps)), all_lives, trace, machine, granule)
    away = held_during(_moved_away(trace, pieces), len(runs))
    durations = call_durations_ns(trace, machine)
    on_host = {(gap.var, gap.lo, gap.hi) for gap in gaps if gap.after == BEFORE_THE_STEP}
    # An input that no call reads has no life and no gap, but it is on the host too.
    on_host |= {(v, 0, trace.variables[v].nbytes) for v in trace.initial if not trace.readers[v]
                and not trace.variables[v].persistent}  # fmt: skip
    start_device = tuple(_on_device(trace, on_host))
    return Table(
        runs=runs,
        duration_ns=[durations[run.call] for run in runs],
        claim_bytes=[liveness.claim_bytes[run.call] for run in runs],
        end_bytes=[liveness.end_bytes(run) for run in runs],
        dead=_dead(trace, all_lives, len(runs), granule),
        resident_bytes=list(map(sub, liveness.resident_bytes(runs), away)),
        pieces=pieces,
        start_device=start_device,
        start_host=tuple(sorted(on_host)),
        start_bytes=sum(granule.granted(hi - lo) for _, lo, hi in start_device),
    )


def _implied_gaps(trace: Trace, decisions: Decisions, all_lives: Iterable[Life]) -> Iterator[Gap]:
    """The gaps that `Decisions` leaves unsaid.

    Inputs are on the host until their first use, and what persists and starts there is there again
    after its last use.
    """
    at_start: dict[int, list[Gap]] = defaultdict(list)
    for gap in sorted(decisions.gaps, key=lambda gap: gap.lo):
        if gap.after == BEFORE_THE_STEP:
            at_start[gap.var].append(gap)
    end = len(decisions.runs)
    for life in all_lives:
        size = trace.variables[life.var].nbytes
        if life.uses[0] == BEFORE_THE_STEP and not trace.variables[life.var].persistent:
            for lo, hi in complement([(g.lo, g.hi) for g in at_start[life.var]], size):
                yield Gap(life.var, lo, hi, BEFORE_THE_STEP, life.uses[1])
        if life.uses[-1] == end and life.uses[-2] != BEFORE_THE_STEP:
            for gap in at_start[trace.carries.get(life.var, life.var)]:
                yield Gap(life.var, gap.lo, gap.hi, life.uses[-2], end)


def complement(ranges: Iterable[tuple[int, int]], size: int) -> Iterator[tuple[int, int]]:
    """The parts of [0, size) outside disjoint ranges, ascending."""
    reached = 0
    for lo, hi in sorted(ranges):
        if lo > reached:
            yield reached, lo
        reached = hi
    if reached < size:
        yield reached, size


def cut(gaps: Iterable[Gap], trace: Trace) -> list[Gap]:
    """Gaps cut so that any two of one host slot concern the same bytes or disjoint ones."""
    gaps = list(gaps)
    borders: dict[int, set[int]] = defaultdict(set)
    for gap in gaps:
        borders[trace.carries.get(gap.var, gap.var)].update((gap.lo, gap.hi))
    return [
        Gap(gap.var, lo, hi, gap.after, gap.before)
        for gap in gaps
        for lo, hi in pairwise(sorted(borders[trace.carries.get(gap.var, gap.var)]))
        if gap.lo <= lo and hi <= gap.hi
    ]


def _pieces(
    decisions: Decisions, all_lives: Iterable[Life], trace: Trace, machine: Machine,
    granule: Granule,
) -> list[GapPiece]:  # fmt: skip
    """A piece for each gap, except where W' must wait for W so long that nothing of it is left."""
    gaps, end = decisions.gaps, len(decisions.runs)
    moved = {gap.var for gap in gaps}
    begins = {
        (life.var, use): life.uses[0]
        for life in all_lives
        if life.var in moved
        for use in life.uses
    }
    last_return = _last_returns(trace, gaps)
    pieces = []
    for gap in sorted(gaps, key=lambda gap: (gap.after, gap.before, gap.var, gap.lo)):
        waits_for = last_return.get(gap.var, BEFORE_THE_STEP)
        written = begins[gap.var, gap.after]
        queued = max(written, waits_for)
        after = max(gap.after, queued)
        if after < gap.before:
            size = gap.hi - gap.lo
            pieces.append(
                GapPiece(
                    gap.var, gap.lo, gap.hi, granule.granted(size),
                    written=written, queued=queued, after=after, before=gap.before,
                    out_ns=machine.transfer_ns(size, "out"), in_ns=machine.transfer_ns(size, "in"),
                    slot=(trace.carries.get(gap.var, gap.var), gap.lo, gap.hi),
                    returns=gap.before < end,
                )
            )  # fmt: skip
    return pieces


def _last_returns(trace: Trace, gaps: Iterable[Gap]) -> dict[int, int]:
    """{W': the last Run for which bytes of W come in}.

    Before that, W' may not be copied out, for its host slot is that of W.
    """
    last: dict[int, int] = {}
    for gap in gaps:
        if gap.var in trace.carried_from:
            new = trace.carried_from[gap.var]
            last[new] = max(last.get(new, BEFORE_THE_STEP), gap.before)
    return last


def _on_device(trace: Trace, on_host: Iterable[Range]) -> Iterator[Range]:
    """What persists and does not start on the host."""
    away: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for variable, lo, hi in on_host:
        away[variable].append((lo, hi))
    for variable in trace.initial:
        if trace.variables[variable].persistent:
            for lo, hi in complement(away[variable], trace.variables[variable].nbytes):
                yield variable, lo, hi


def _dead(
    trace: Trace, all_lives: Iterable[Life], end: int, granule: Granule
) -> Mapping[int, list[tuple[int, int, int]]]:
    """What is freed after each Run: lives that end with it and are not taken over by an output."""
    dead: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
    for life in all_lives:
        size = trace.variables[life.var].nbytes
        if life.uses[-1] < end and not life.taken_over and size:
            dead[life.uses[-1]].append((life.var, size, granule.granted(size)))
    return dead


def _moved_away(trace: Trace, pieces: Iterable[GapPiece]) -> Iterator[tuple[int, int, int]]:
    """(first Run, last Run, bytes) that pieces are away. Inputs are not there before their first
    use in any case.
    """
    for piece in pieces:
        if piece.after != BEFORE_THE_STEP or trace.variables[piece.var].persistent:
            yield piece.after + 1, piece.before - 1, piece.size_bytes
