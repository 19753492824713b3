"""The memory that decisions take, before there is any time: the tables that `lower.py` plays with.

From `Decisions` and a trace comes a `Table`: the bytes that each Run claims and releases, the bytes
resident during it if every gap is used to the full, and the `GapPiece`s that go out and come back.
If `resident_bytes` stays within the budget, some list of these decisions does too; if not, none
does. Read next: `lower.py`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from operator import sub

from ooctrain.sched.planning.decisions import (
    BEFORE_THE_STEP,
    Decisions,
    Gap,
    Life,
    check_gaps,
    lives,
)
from ooctrain.sched.planning.residency import Liveness
from ooctrain.sched.schedule import Granule, Range, Run
from ooctrain.sched.spans import held_during
from ooctrain.step.machine import Machine, call_durations_ns
from ooctrain.step.trace import Trace


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
        duration_ns, claim_bytes: of each Run.
        end_bytes: workspace and scratch outputs, which its End releases.
        dead: (variable, bytes, granted bytes) to be freed after it; `BEFORE_THE_STEP`: before the
            first.
        resident_bytes: what is on the device during it if every gap is used to the full.
        pieces: what goes out and comes back, by the Run after which its gap begins.
        start_device, start_host: as of `Schedule`.
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
