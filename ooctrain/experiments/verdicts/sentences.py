"""Sentences with holes, filled with the figures of a run.

In: an experiment's sentences, and the facts of one run by name. Out: the sentences of which every
fact is known, as a `Verdict`. The one idea: what an experiment says beside a paper is true of one
run, so its figures come from this run; a sentence is left out where a figure was not computed (a
quick run computes few) or where what the sentence says of it does not hold. Read next: `table1.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from string import Formatter

from ooctrain.units import format_percent

#: {hole: its figure}; None, or missing: not computed, or what the sentence says does not hold.
Facts = Mapping[str, str | None]


@dataclass(frozen=True, slots=True)
class Verdict:
    """An experiment beside its paper, as sentences; with holes before `fill`, without them after.

    Args:
        agrees: what is as the paper says.
        differs: what is not, and why.
    """

    agrees: Sequence[str]
    differs: Sequence[str]


def fill(sentences: Verdict, facts: Facts) -> Verdict:
    """The sentences all of whose facts are known, with their figures in the holes."""
    return Verdict(_filled(sentences.agrees, facts), _filled(sentences.differs, facts))


def holes(sentence: str) -> list[str]:
    """The names of the facts that a sentence wants."""
    return [name for _, name, _, _ in Formatter().parse(sentence) if name]


def percent(share: float | None, decimals: int = 0) -> str | None:
    """0.704 as "70 %", with one decimal as "70.4 %"."""
    return None if share is None else format_percent(share, decimals)


def number(value: float | None, form: str = "g") -> str | None:
    """A number in a form of `format`."""
    return None if value is None else format(value, form)


def more(value: float | None, than: float | None) -> float | None:
    """A value that is more than another, else None: for sentences that say so."""
    return value if value is not None and than is not None and value > than else None


def _filled(sentences: Sequence[str], facts: Facts) -> list[str]:
    return [
        sentence.format_map(facts)
        for sentence in sentences
        if all(facts.get(name) is not None for name in holes(sentence))
    ]
