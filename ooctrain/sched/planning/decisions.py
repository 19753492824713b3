"""A planner's decisions, apart from time: which calls run, and which gaps go to the host.

The life of a value is a row of uses. Between two of them each byte either stays, or goes to the
host (a `Gap`), or the value is dropped and its producer runs again (a second `Run` that keeps it
starts a new life). GREEDY, DYNPROG, Belady, Chen, rotor and their mixtures differ in nothing else.
`lower.py` turns `Decisions` into a list. Read next: `lower.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from ooctrain.errors import ConfigError
from ooctrain.sched.schedule import Granule, Run
from ooctrain.step.trace import Trace

BEFORE_THE_STEP = -1


@dataclass(frozen=True, slots=True)
class Gap:
    """Bytes [lo, hi) of a variable are on the host between two uses, transfers aside.

    Args:
        lo, hi: bytes, multiples of the granule except at the end.
        after: position in `Decisions.runs` of the use before; `BEFORE_THE_STEP` for a persistent
            variable that starts the step on the host.
        before: position of the next use.
    """

    var: int
    lo: int
    hi: int
    after: int
    before: int

    def in_pieces(self, piece_bytes: int, granule: Granule) -> Iterator[Gap]:
        """The gap cut at multiples of `piece_bytes`, rounded up to the granule.

        Where the allocator has no ranges, variables move as a whole, and the gap stays one.
        """
        step = granule.granted(max(1, piece_bytes)) if granule.ranges else self.hi
        for lo in range(self.lo, self.hi, step):
            yield Gap(self.var, lo, min(lo + step, self.hi), self.after, self.before)


@dataclass(frozen=True, slots=True)
class Decisions:
    """A planner's choices.

    Inputs come from the host whether a gap says so or not. What persists rests on the device
    between steps, except those bytes of it that have a gap with `after=BEFORE_THE_STEP`: these go
    back to the host at the end of the step by themselves (in the case of a parameter: the same
    bytes of its update).

    Args:
        runs: the calls in order; a call may run again, and `keep` says which outputs live on.
        gaps: in any order; those of one variable do not overlap in time and bytes.
    """

    runs: tuple[Run, ...]
    gaps: tuple[Gap, ...] = ()


@dataclass(frozen=True, slots=True)
class Life:
    """One life of a variable: from a Run that keeps it (or the start of the step) to its last use.

    Args:
        uses: positions in `Decisions.runs`, ascending. The first is the Run that writes it, or
            `BEFORE_THE_STEP`; the last is the number of runs if the next step needs it.
        taken_over: whether the last use gives its storage to an output (`Call.reuse`).
        takes_over: whether it begins on the storage of an input.
    """

    var: int
    uses: tuple[int, ...]
    taken_over: bool = False
    takes_over: bool = False


def runs_once(trace: Trace) -> tuple[Run, ...]:
    """Every call once, every output kept: no recomputation."""
    return tuple(Run(call.id) for call in trace.calls)


def lives(trace: Trace, runs: Sequence[Run]) -> list[Life]:
    """All lives of all variables, by their beginning. An input that no call reads has none.

    Raises:
        ConfigError: a Run reads what is not alive, or keeps what is.
    """
    return _Lives(trace, runs).collect()


def possible_gaps(trace: Trace, runs: Sequence[Run]) -> list[Gap]:
    """Every gap between two consecutive uses, each of a whole variable, by life.

    Those at the end of the step are left out: they follow from the gaps at the start (`Decisions`).
    """
    end = len(runs)
    return [
        Gap(life.var, 0, trace.variables[life.var].nbytes, after, before)
        for life in lives(trace, runs)
        for after, before in pairwise(life.uses)
        if before < end and trace.variables[life.var].nbytes
    ]


def movable_gaps(trace: Trace, runs: Sequence[Run]) -> list[Gap]:
    """All gaps that a whole variable may spend on the host, for any runs.

    Left out are gaps before the first use, those between two neighbouring runs, and a parameter's
    new value, whose host slot is the old one's.

    Cost: O(uses by the runs).
    """
    return [
        gap
        for gap in possible_gaps(trace, runs)
        if gap.after >= 0 and gap.before - gap.after > 1 and gap.var not in trace.carries
    ]


def check_gaps(
    trace: Trace, decisions: Decisions, all_lives: Iterable[Life], granule: Granule
) -> None:
    """Raises ConfigError for a gap that lies between no two uses, is misaligned, or overlaps
    another.

    Args:
        all_lives: `lives(trace, decisions.runs)`.
    """
    moved = {gap.var for gap in decisions.gaps}
    between = {
        (life.var, pair) for life in all_lives if life.var in moved for pair in pairwise(life.uses)
    }
    taken: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for gap in sorted(decisions.gaps, key=lambda gap: gap.lo):
        variable = trace.variables[gap.var]
        row = taken.setdefault((gap.var, gap.after), [(0, 0)])
        if (gap.var, (gap.after, gap.before)) not in between:
            raise _wrong(trace, gap, "is not between two consecutive uses")
        if not 0 <= gap.lo < gap.hi <= variable.nbytes or row[-1][1] > gap.lo:
            raise _wrong(trace, gap, "is empty, outside the variable, or overlaps another gap")
        if gap.lo % granule.size_bytes or (
            gap.hi % granule.size_bytes and gap.hi < variable.nbytes
        ):
            raise _wrong(trace, gap, f"is not aligned to {granule.size_bytes} bytes")
        if not granule.ranges and (gap.lo, gap.hi) != (0, variable.nbytes):
            raise _wrong(trace, gap, "is a part, but the allocator moves whole variables")
        if gap.before == len(decisions.runs) and gap.after != BEFORE_THE_STEP:
            raise _wrong(trace, gap, "is at the end, where gaps follow from those at the start")
        row.append((gap.lo, gap.hi))


def _wrong(trace: Trace, gap: Gap, why: str) -> ConfigError:
    name = trace.variables[gap.var].name
    return ConfigError(
        f"the gap of {name!r} {why}",
        code="OOC-109",
        numbers=f"bytes [{gap.lo}, {gap.hi}), after run {gap.after}, before run {gap.before}",
        fix="gaps as `possible_gaps(trace, runs)` gives them",
    )


class _Lives:
    """Walks the runs once and cuts the uses of each variable into lives."""

    def __init__(self, trace: Trace, runs: Sequence[Run]):
        self.trace, self.runs = trace, runs
        self.uses: dict[int, list[int]] = {v: [BEFORE_THE_STEP] for v in trace.initial}
        self.takes_over: set[int] = set()
        self.done: list[Life] = []

    def collect(self) -> list[Life]:
        for position, run in enumerate(self.runs):
            self._read(position, run)
            self._write(position, run)
        for variable in self.trace.end_variables.values():
            if variable not in self.uses:
                raise ConfigError(
                    f"{self.trace.variables[variable].name!r} is not alive at the end",
                    code="OOC-109",
                    fix="keep only what is alive after the last call",
                )
            self.uses[variable].append(len(self.runs))
        for variable in list(self.uses):
            self._close(variable, taken_over=False)
        return sorted(self.done, key=lambda life: (life.uses[0], life.var))

    def _read(self, position: int, run: Run) -> None:
        for variable in dict.fromkeys(self.trace.calls[run.call].ins):
            if variable not in self.uses:
                call, name = self.trace.calls[run.call].name, self.trace.variables[variable].name
                raise ConfigError(f"run {position} of {call!r} reads {name!r}, which is not alive",
                                  code="OOC-109", fix="run its producer again before")  # fmt: skip
            self.uses[variable].append(position)

    def _write(self, position: int, run: Run) -> None:
        call = self.trace.calls[run.call]
        for source in call.reuse.values():
            self._close(source, taken_over=True)
        for out in call.outs if run.keep is None else run.keep:
            if out in self.uses:
                self._close(out, taken_over=False)
            self.uses[out] = [position]
            if out in call.reuse:
                self.takes_over.add(out)

    def _close(self, variable: int, *, taken_over: bool) -> None:
        uses = tuple(self.uses.pop(variable))
        persistent = self.trace.variables[variable].persistent
        if persistent or uses != (BEFORE_THE_STEP,):
            begins = variable in self.takes_over
            self.takes_over.discard(variable)
            self.done.append(Life(variable, uses, taken_over, begins))
