"""Par, computed by the library's reference, or read where a course wheel has no reference.

Par is never a number in a rubric: it is computed when it is needed. In a course wheel the planner
or allocator that computes it is left out, so the maker of the wheel computes all par of the
assignment beforehand, and the numbers travel in the wheel. A student's `ooctrain grade` then shows
the same ratios as the teacher's. Read next: `handout.py`; `measures.py`, `replays.py`,
`footprints.py`, which compute.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from ooctrain.course.rubric import Compared
from ooctrain.errors import Withheld

#: In a course wheel, below the package: {part: par}.
FILE = "course/known_par.json"
_PATH = Path(__file__).resolve().parents[1] / FILE
Number = TypeVar("Number", int, float)
Part = TypeVar("Part", bound=Compared)


def known_par(part: Part, compute: Callable[[Part], Number]) -> Number:
    """What par needs for a part of a rubric. Raises Withheld: neither computed nor known."""
    try:
        return compute(part)
    except Withheld:
        known = json.loads(_PATH.read_text(encoding="utf-8")) if _PATH.is_file() else {}
        if _key(part) not in known:
            raise
        return known[_key(part)]


def written(numbers: Iterable[tuple[Compared, float]]) -> str:
    """The file for a wheel."""
    return json.dumps({_key(part): number for part, number in numbers}, indent=1)


def _key(part: Compared) -> str:
    """A part but for its points, which a teacher may change."""
    return repr(replace(part, points=0, full_ratio=1, none_ratio=2))


# A submission's result next to par. Points depend only on the ratio of the two numbers, which have
# the same unit, so a plan's microseconds and an allocator's bytes are judged alike.


@dataclass(frozen=True, slots=True)
class ParComparison:
    """A submission and par, both in microseconds (`measures.py`) or in bytes (`replays.py`).

    Args:
        needed: by the submission; None where its answer does not count.
        par: what par needs.
        why: its answer does not count.
        unsafe: because it is wrong: a list that is refused, blocks on each other, rows that are not
            there. Nobody passes with such an answer.
    """

    needed: float | None
    par: float
    why: str = ""
    unsafe: bool = False

    @property
    def ratio(self) -> float | None:
        """How many times par."""
        return None if self.needed is None else self.needed / self.par
