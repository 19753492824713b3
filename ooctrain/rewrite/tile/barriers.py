"""Barriers: calls that can begin only when a sum over all rows is complete.

The calls of a segment are sorted into levels by their row rules. Bands follow each other through
the calls of one level; a call that reads a sum over all rows belongs to the next level, which
starts when all bands have gone through this one. Between two levels all bands of a tensor exist,
and a planner decides which of them are kept, swapped or computed again. A norm in training mode is
such a sum going forward, and another going backward. Recomputation knows the statistics and has no
barrier. Source: ours; docs/tiling.md. Read next: `bands.py`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from ooctrain.rewrite.tile.row_rules import RowRule
from ooctrain.step.trace import Call

#: Calls through which bands run together.
Level = tuple[Call, ...]


def levels_of(calls: Iterable[Call], rules: Mapping[int, RowRule]) -> tuple[Level, ...]:
    """The calls, level by level, in their order."""
    at: dict[int, int] = {}  # variable: the first level in which it can be read
    levels: list[list[Call]] = []
    for call in calls:
        level = max((at[v] for v in call.ins if v in at), default=0)
        at |= dict.fromkeys(call.outs, level + rules[call.id].reduces)
        while len(levels) <= level:
            levels.append([])
        levels[level].append(call)
    return tuple(map(tuple, levels))


def crossing(levels: Sequence[Level]) -> set[int]:
    """Variables that are made in one level and read in a later one: bands of them wait there."""
    made: set[int] = set()
    found: set[int] = set()
    for level in levels:
        found.update(v for call in level for v in call.ins if v in made)
        made.update(v for call in level for v in call.outs)
    return found


def leading_to(calls: Sequence[Call], wanted: Iterable[int], there: Collection[int]) -> list[Call]:
    """Those of the calls that compute what is wanted from what is there."""
    needed, found = set(wanted).difference(there), list[Call]()
    for call in reversed(calls):
        if needed.intersection(call.outs):
            needed.update(set(call.ins).difference(there))
            found.append(call)
    return found[::-1]
