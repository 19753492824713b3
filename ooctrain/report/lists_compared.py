"""Two lists compared: where they part, which line of one corresponds to which of the other.

The first instruction that differs says where two planners decided otherwise. Behind it equal
positions mean little, since one instruction more shifts all that follow. So a line is matched with
the line of the same text in the other list: the third `run conv1.fwd` here is the third one there.
Read next: `page.py` and `../cli/diff_command.py`, which show both.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

NO_MATE = -1


def first_difference_at(ours: Sequence[str], theirs: Sequence[str]) -> int | None:
    """The first place at which two lists differ; None: they are equal."""
    for place, (one, other) in enumerate(zip(ours, theirs, strict=False)):
        if one != other:
            return place
    return None if len(ours) == len(theirs) else min(len(ours), len(theirs))


def mates(ours: Sequence[str], theirs: Sequence[str]) -> list[int]:
    """For each line of ours the place of the same one in theirs, or `NO_MATE`."""
    place = {line: at for at, line in enumerate(_numbered(theirs))}
    return [place.get(line, NO_MATE) for line in _numbered(ours)]


def only_in(ours: Sequence[str], theirs: Sequence[str]) -> Counter[str]:
    """{text: how many more of it ours has}."""
    return Counter(ours) - Counter(theirs)


def _numbered(lines: Iterable[str]) -> Iterator[tuple[str, int]]:
    """(text, how often it stood before) of each line."""
    seen: Counter[str] = Counter()
    for line in lines:
        yield line, seen[line]
        seen[line] += 1
