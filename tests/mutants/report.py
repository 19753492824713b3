"""The kill rate by room, the survivors, and the mutants that no test can notice.

A mutant that computes the same for everybody is called equivalent in `equivalent.csv`, with the
reason. An entry is named by the function and the statement before and after, so it outlives moves
of lines; one that no longer applies is an error, as is one whose mutant a test kills. The rate is
that of the others. Read next: `test_mutants.py`.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path

from mutants.court import KILLED, NOT_HERE, UNFINISHED, UNREACHED, Verdict
from mutants.operators import ROOMS, Mutant, files, mutants_of, sources

TABLE = Path(__file__).with_name("equivalent.csv")
COLUMNS = ("function", "before", "after", "which", "reason")
Key = tuple[str, str, str, int]


def equivalents(table: Path = TABLE) -> dict[Key, str]:
    """{key of a mutant: why it computes the same}; no key stands twice, none without a reason."""
    found: dict[Key, str] = {}
    with table.open(encoding="utf-8", newline="") as lines:
        for row in csv.DictReader(lines, fieldnames=None):
            assert tuple(row) == COLUMNS, f"{table.name} has columns {tuple(row)}"
            place, before, after, which, reason = (row[name] for name in COLUMNS)
            key = place, before, after, int(which)
            assert key not in found, f"{table.name} has an entry twice: {key}"
            assert reason.strip(), f"{table.name} has an entry without a reason: {key}"
            found[key] = reason
    return found


def outdated(entries: Iterable[Key]) -> list[Key]:
    """Entries whose function or statement is no longer there."""
    entries = list(entries)
    places = {place for place, *_ in entries}
    there = {
        m.key for file in files() if places & set(sources(file)) for m in mutants_of(file, places)
    }
    return [key for key in entries if key not in there]


def tried_of(verdicts: Sequence[Verdict], drawn: int) -> str:
    """How many mutants have been tried, how many of them not by all tests, and how many cannot be
    judged here.
    """
    begun = sum(v.outcome == UNFINISHED for v in verdicts)
    missing = [v.by for v in verdicts if v.outcome == NOT_HERE]
    tried = f"{len(verdicts) - begun - len(missing)} of {drawn} mutants tried"
    if begun:
        tried += f", {begun} begun and counted as not killed when time was up,"
    if missing:
        reasons = "; ".join(sorted(set(missing)))
        tried += f", {len(missing)} not judged here ({reasons}) and not counted,"
    return tried


def table_of(verdicts: Sequence[Verdict], reasons: dict[Key, str]) -> str:
    """Rows by room, as Markdown."""
    lines = [
        "| room | sampled | not judged here | equivalent | killed | not killed | rate |",
        "|---|---|---|---|---|---|---|",
    ]
    for room in (*ROOMS, "all"):
        own = [v for v in verdicts if room in (v.mutant.room, "all")]
        if not own:
            continue
        here = [v for v in own if v.outcome != NOT_HERE]
        judged = [v for v in here if v.mutant.key not in reasons]
        killed = sum(v.outcome == KILLED for v in judged)
        rate = f"{100 * killed / len(judged):.1f} %" if judged else "-"
        lines.append(
            f"| {room} | {len(own)} | {len(own) - len(here)} | {len(here) - len(judged)} |"
            f" {killed} | {len(judged) - killed} | {rate} |"
        )
    return "\n".join(lines) + "\n"


def rate_of(verdicts: Sequence[Verdict], reasons: dict[Key, str]) -> float:
    """The killed ones' share of those that are judged here and not called equivalent."""
    here = [v for v in verdicts if v.outcome != NOT_HERE]
    judged = [v for v in here if v.mutant.key not in reasons]
    return sum(v.outcome == KILLED for v in judged) / max(1, len(judged))


def wrongly_equivalent(verdicts: Sequence[Verdict], reasons: dict[Key, str]) -> list[Verdict]:
    """Mutants that are called equivalent, and yet a test notices them."""
    return [v for v in verdicts if v.mutant.key in reasons and v.outcome == KILLED]


def difference(mutant: Mutant) -> str:
    """Where a mutant stands, and its statement before and after, as in a review."""
    where = f"{mutant.file}:{mutant.line} {mutant.place} ({mutant.operator})"
    return f"{where}\n- {_short(mutant.before)}\n+ {_short(mutant.after)}\n"


def survivors_of(verdicts: Sequence[Verdict], reasons: dict[Key, str]) -> str:
    """Those that live without a reason, then those with one, by file."""
    alive = sorted(
        (v for v in verdicts if v.outcome not in (KILLED, NOT_HERE)),
        key=lambda v: (v.mutant.file, v.mutant.line),
    )
    texts = []
    for verdict in sorted(alive, key=lambda v: v.mutant.key in reasons):
        text = difference(verdict.mutant)
        if verdict.mutant.key in reasons:
            text += f"  equivalent: {reasons[verdict.mutant.key]}\n"
        elif verdict.outcome == UNREACHED:
            text += "  no test reaches it\n"
        elif verdict.outcome == UNFINISHED:
            text += f"  {verdict.tests} tests reach it and pass; time ended before the others\n"
        else:
            text += f"  {verdict.tests} tests reach it and pass\n"
        texts.append(text)
    return "\n".join(texts)


def _short(text: str, most: int = 300) -> str:
    line = " ".join(text.split())
    return line if len(line) <= most else f"{line[:most]} ..."
