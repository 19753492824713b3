"""Sentences with holes, filled with the figures of a run.

In: sentences, facts by name. Out: the sentences of which every fact is known. The one idea: what an
experiment says beside a paper is true of one run, so its figures come from this run; what was not
computed (a quick run asks little) or does not hold is not said. Read next: `table1.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from string import Formatter

#: By the name of the hole. Missing or None: not computed, or what the sentence says of it does not
#: hold.
Facts = Mapping[str, str | None]


@dataclass(frozen=True, slots=True)
class Verdict:
    """A run beside a paper.

    Args:
        agrees: what is as the paper says.
        differs: what is not, and why.
    """

    agrees: Sequence[str]
    differs: Sequence[str]


def verdict(agrees: Sequence[str], differs: Sequence[str], facts: Facts) -> Verdict:
    """The sentences that can be said, with their figures."""
    return Verdict(_told(agrees, facts), _told(differs, facts))


def holes(sentence: str) -> list[str]:
    """The names of the facts that a sentence wants."""
    return [name for _, name, _, _ in Formatter().parse(sentence) if name]


def percent(share: float | None) -> str | None:
    """0.704 as "70 %"."""
    return None if share is None else f"{100 * share:.0f} %"


def percent_1(share: float | None) -> str | None:
    """0.0351 as "3.5 %"."""
    return None if share is None else f"{100 * share:.1f} %"


def number(value: float | None, form: str = "g") -> str | None:
    """A number in a form of `format`."""
    return None if value is None else format(value, form)


def more(value: float | None, than: float | None) -> float | None:
    """A value that is more than another, else None: for sentences that say so."""
    known = value is not None and than is not None
    return value if known and value > than else None  # type: ignore[operator]


def _told(sentences: Sequence[str], facts: Facts) -> list[str]:
    return [
        sentence.format_map(facts)
        for sentence in sentences
        if all(facts.get(name) is not None for name in holes(sentence))
    ]
