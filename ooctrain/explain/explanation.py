"""What there is to say about a code.

In: four texts. Out: one `Explanation`. Read next: `arguments.py`, the first of the tables.
"""

from __future__ import annotations

from typing import NamedTuple


class Explanation(NamedTuple):
    """What a code means.

    Args:
        title: in a few words.
        meaning: in a few sentences.
        example: the smallest thing that raises it.
        fix: what mends it.
    """

    title: str
    meaning: str
    example: str
    fix: str
