"""`ooctrain diff A B`: the first instruction in which two lists differ, in text.

A and B are two files of `--json`, two plan files, or two lists as text. Below the first difference
stand the sums of both steps, and how many instructions only one of the lists has. The same with a
picture is `ooctrain report A --html FILE --against B`. Read next: `report/lists_compared.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any, Literal

import click
from rich.table import Table

from ooctrain.cli import DONE, FAILED
from ooctrain.cli.options import json_option
from ooctrain.cli.terminal import make_console
from ooctrain.cli.values import UserPath
from ooctrain.errors import ConfigError, reason
from ooctrain.report.lists_compared import first_difference_at, only_in
from ooctrain.report.numbers_file import write_numbers
from ooctrain.report.record import Record, read_record
from ooctrain.report.text import facts, plain_table, timeline_rows
from ooctrain.sched.instructions import WORDS
from ooctrain.sched.list_text import first_difference
from ooctrain.sched.schedule import Schedule
from ooctrain.step.schema import parse_json

JSON_VERSION = 1
Kind = Literal["record", "plan file", "text"]


#: Words with which a line of a list in text begins.
VERBS = ("device", "host", "granule", *WORDS.values())


@dataclass(frozen=True, slots=True)
class ListToCompare:
    """A list from a file.

    Args:
        path: path of the file.
        kind: kind of file; only lists from files of one kind are comparable.
        lines: an instruction each; for a plan file and a text also what holds before the first one.
        record: the step of which it is the list, where the file has one.
    """

    path: str
    kind: Kind
    lines: tuple[str, ...]
    record: Record | None = None


@click.command()
@click.argument("a_path", metavar="A", type=UserPath())
@click.argument("b_path", metavar="B", type=UserPath())
@click.option("--exit-code", is_flag=True, help="Exit with status 1 if the lists differ.")
@json_option
def diff(a_path: str, b_path: str, exit_code: bool, json_path: str | None) -> int:
    """Show the first instruction in which the lists of A and B differ.

    A and B are files that plan, simulate or train wrote with --json, or files of plan --save.
    """
    one, other = _read(a_path), _read(b_path)
    if one.kind != other.kind:
        raise ConfigError(
            f"{a_path} is a {one.kind} and {b_path} a {other.kind}: their lines do not compare",
            code="OOC-118", fix="two files of --json, which have the names",
        )  # fmt: skip
    at = first_difference_at(one.lines, other.lines)
    console = make_console()
    console.print(facts([(letter, _title(x)) for letter, x in (("A", one), ("B", other))]))
    console.print()
    if at is None:
        console.print(f"the lists are equal: {len(one.lines)} lines")
    else:
        console.print(first_difference("\n".join(one.lines), "\n".join(other.lines)))
        console.print(facts(_lonely_rows(one, other)))
    if one.record and other.record:
        console.print()
        console.print(_sums(one.record, other.record))
    if json_path:
        write_numbers(json_path, _as_json(one, other, at))
    return FAILED if exit_code and at is not None else DONE


def _read(path: str) -> ListToCompare:
    try:
        text = Path(path).read_text(encoding="utf-8")
        data = parse_json(text) if text.lstrip().startswith("{") else None
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{path} cannot be read: {reason(error)}", code="OOC-118",
            fix="a file of `ooctrain simulate MODEL --json FILE`, or of `ooctrain plan --save`",
        ) from error  # fmt: skip
    if data is None:
        stripped = (line.strip() for line in text.splitlines())
        lines = tuple(line for line in stripped if line and not line.startswith("#"))
        strange = [
            line for line in lines if line.strip("; ").split(" ")[0].rstrip(";") not in VERBS
        ]
        if strange or not lines:
            why = f"{strange[0]!r} is not an instruction" if strange else "it is empty"
            raise ConfigError(
                f"{path} is not a list: {why}",
                code="OOC-118", numbers=f"lines begin with {', '.join(VERBS)}",
                fix="a file of `ooctrain simulate MODEL --json FILE`, or of `ooctrain plan --save`",
            )  # fmt: skip
        return ListToCompare(path, "text", lines)
    if "schedule" in data:
        listed = Schedule.from_json(data["schedule"])
        return ListToCompare(path, "plan file", tuple(str(listed).splitlines()))
    record = read_record(path)
    if record.listed is None:
        raise ConfigError(
            f"{path} says when each instruction ran, and has no list", code="OOC-118",
            fix="write it again with this version of `ooctrain simulate MODEL --json FILE`",
        )  # fmt: skip
    return ListToCompare(path, "record", tuple(x.text for x in record.listed.lines), record)


def _title(one: ListToCompare) -> str:
    return f"{one.path}: {one.record.title}" if one.record else one.path


def _lonely_rows(one: ListToCompare, other: ListToCompare) -> list[tuple[str, str]]:
    """How many instructions only one of them has, by their verbs."""
    pairs = (("only in A", one.lines, other.lines), ("only in B", other.lines, one.lines))
    return [(name, _counted(only_in(ours, theirs))) for name, ours, theirs in pairs]


def _counted(lonely: Mapping[str, int]) -> str:
    verbs: Counter[str] = Counter()
    for text, count in lonely.items():
        verbs[text.partition(" ")[0]] += count
    counted = ", ".join(f"{count} {verb}" for verb, count in verbs.most_common())
    return f"{sum(verbs.values())} lines" + (f": {counted}" if counted else ": the order differs")


def _sums(ours: Record, theirs: Record) -> Table:
    table = plain_table("", "A", "B", left=("",))
    pairs = zip_longest(
        timeline_rows(ours.timeline), timeline_rows(theirs.timeline), fillvalue=("", "")
    )
    for (name, value), (other_name, other_value) in pairs:
        table.add_row(name or other_name, value, other_value)
    return table


def _as_json(one: ListToCompare, other: ListToCompare, at: int | None) -> dict[str, Any]:
    def line(found: ListToCompare) -> str | None:
        return found.lines[at] if at is not None and at < len(found.lines) else None

    return {
        "version": JSON_VERSION, "a": one.path, "b": other.path, "kind": one.kind,
        "equal": at is None, "first": at, "a_line": line(one), "b_line": line(other),
        "a_lines": len(one.lines), "b_lines": len(other.lines),
        "only_in_a": sum(only_in(one.lines, other.lines).values()),
        "only_in_b": sum(only_in(other.lines, one.lines).values()), "error": None,
    }  # fmt: skip
