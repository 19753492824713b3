"""The explanation of one error code.

An `Explanation` holds four texts: title, meaning, example and fix. Read next: `arguments.py`, the
first of the tables.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Explanation:
    """What a code means.

    Args:
        title: in a few words.
        meaning: in a few sentences.
        example: the smallest thing that raises it; of a law, the command that checks it.
        fix: what mends it; "" for rules and laws.
    """

    title: str
    meaning: str
    example: str
    fix: str
