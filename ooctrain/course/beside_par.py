"""A submission's result next to par: a time or a number of bytes.

Points depend only on the ratio of the two numbers, which have the same unit, so a plan's
microseconds and an allocator's bytes are judged alike. Read next: `measures.py` for times,
`replays.py` for bytes; `grade.py`, which gives the points.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BesidePar:
    """A submission beside par, both in microseconds (`measures.py`) or in bytes (`replays.py`).

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
