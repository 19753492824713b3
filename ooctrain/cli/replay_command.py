"""`ooctrain replay`: one allocation log replayed on several allocators, side by side.

The log is one that `plan --allocation-log` or `train --allocation-log` wrote. The table has peaks,
holes, mapping changes and, under a budget, the place where each allocator failed; a picture shows
the arenas. An allocator that raises is left out, and said to be. Status 3 means that none serves
the log. Nothing is executed. Read next: `ooctrain/alloc/replay.py`.
"""

from __future__ import annotations

import time
from typing import Any

import click
from rich.table import Table

from ooctrain.alloc import AllocationLog, Replayed
from ooctrain.alloc.replay import replay as run_replay
from ooctrain.alloc.replay import snapshot_at_peak
from ooctrain.cli import DOES_NOT_FIT, DONE
from ooctrain.cli.options import ALLOCATORS_TEXT, file_option, json_option, list_option
from ooctrain.cli.terminal import make_console
from ooctrain.cli.values import UserPath
from ooctrain.errors import ConfigError, OoctrainError, failing_as
from ooctrain.plugins import fault_of_own_code
from ooctrain.report.arena import arena_svg
from ooctrain.report.numbers_file import write_file, write_numbers
from ooctrain.report.text import facts, plain_table
from ooctrain.units import format_bytes, parse_bytes

JSON_VERSION = 1
DEFAULT_ALLOCATORS = "best-fit,first-fit,va"


@click.command()
@click.argument("log_path", metavar="LOG", type=UserPath())
@list_option("--allocator", "names", text=ALLOCATORS_TEXT, default=DEFAULT_ALLOCATORS)
@click.option("--budget", metavar="SIZE", help="Of the arena; default: as much as each needs.")
@file_option("--picture", "picture_path", text="Draw each arena when it needs most, as SVG.")
@json_option
def replay(
    log_path: str, names: list[str], budget: str | None, picture_path: str | None,
    json_path: str | None,
) -> int:  # fmt: skip
    """Ask allocators for all that LOG holds, without running anything."""
    console = make_console()
    log = AllocationLog.load(log_path)
    budget_bytes = None if budget is None else parse_bytes(budget, what="budget")
    rows: list[Replayed] = []
    shown: list[dict[str, Any]] = []
    broken: dict[str, OoctrainError] = {}
    for name in names:
        started = time.perf_counter()
        try:
            with failing_as(f"allocator {name!r}"):
                rows.append(run_replay(log, name, budget=budget_bytes))
        except ConfigError:
            raise  # of the command
        except OoctrainError as error:
            if len(names) == 1:
                raise
            broken[name] = fault_of_own_code(error, [name]) or error
            shown.append({"allocator": name, "error": str(broken[name])})
        else:
            took_us = (time.perf_counter() - started) * 1e6
            shown.append({**_row(rows[-1], took_us), "error": None})
    if json_path:
        write_numbers(json_path, _as_json(log_path, log, shown, budget_bytes))
    if not rows:
        raise next(iter(broken.values()))
    if picture_path:
        shots = {row.allocator: _shot(log, row, budget_bytes) for row in rows}
        write_file(picture_path, arena_svg(shots))
    console.print(facts(_facts(log, budget_bytes)))
    console.print()
    console.print(replay_table(rows))
    for name, fault in broken.items():
        console.print(f"\n{name} is left out:\n{fault}", soft_wrap=True, markup=False)
    for row in rows:
        if row.failure:
            console.print(f"\n{row.allocator} fails at request {row.failure.place} of "
                          f"{len(log.requests)}, step {row.failure.step}:")  # fmt: skip
            console.print(row.failure.text, soft_wrap=True)
    for row in rows:
        if row.misbooked:
            console.print(f"\n{row.misbooked}", style="yellow", soft_wrap=True, markup=False)
    if any(row.held_whole for row in rows):
        console.print("\n* has no ranges: blocks of which the log moves parts were held whole")
    return DOES_NOT_FIT if all(row.failure for row in rows) else DONE


def replay_table(rows: list[Replayed]) -> Table:
    """A line for each allocator."""
    table = plain_table(
        "allocator", "granted", "reserved", "in holes", "rounding", "maps", "last step", "served",
        left=("allocator",),
    )  # fmt: skip
    for row in rows:
        stats = row.stats
        table.add_row(
            row.allocator + "*" * row.held_whole,
            format_bytes(row.granted_bytes), format_bytes(row.reserved_bytes),
            f"{row.external_share:.1%}", f"{row.internal_share:.1%}",
            str(stats.maps), str(row.maps_by_step[-1]),
            "all" if row.failure is None else f"{row.served}",
        )  # fmt: skip
    return table


def _shot(log: AllocationLog, row: Replayed, budget_bytes: int | None) -> dict[str, Any]:
    """The arena when it needs most; where none was requested it ends with what was reserved."""
    shot = snapshot_at_peak(log, row)
    return shot if budget_bytes else {**shot, "budget": row.reserved_bytes}


def _facts(log: AllocationLog, budget_bytes: int | None) -> list[tuple[str, str]]:
    steps = sum(request.op == "step" for request in log.requests)
    count = f"{len(log.requests):,}" + (f" in {steps} steps" if steps else "")
    planned = log.allocator or "no allocator in particular"
    return [
        ("log", log.about or "nothing is said about it"),
        ("requests", count),
        ("planned for", f"{planned}, {format_bytes(log.budget_bytes)}"),
        ("arena", "as much as it takes" if budget_bytes is None else format_bytes(budget_bytes)),
    ]


def _as_json(
    path: str, log: AllocationLog, rows: list[dict[str, Any]], budget_bytes: int | None
) -> dict[str, Any]:  # fmt: skip
    return {
        "version": JSON_VERSION,
        "log": path,
        "about": log.about,
        "requests": len(log.requests),
        "budget_bytes": budget_bytes,
        "rows": rows,
        "error": None,
    }


def _row(row: Replayed, replay_us: float) -> dict[str, Any]:
    stats, failure = row.stats, row.failure
    return {
        "allocator": row.allocator,
        "arena_bytes": row.budget_bytes,
        "peak_requested_bytes": row.requested_bytes,
        "peak_granted_bytes": row.granted_bytes,
        "peak_reserved_bytes": row.reserved_bytes,
        "misbooked": row.misbooked,
        "external_share": row.external_share,
        "internal_share": row.internal_share,
        "maps": stats.maps,
        "unmaps": stats.unmaps,
        "maps_by_step": row.maps_by_step,
        "held_whole": row.held_whole,
        "served": row.served,
        "failed_at": failure.place if failure else None,
        "failed_step": failure.step if failure else None,
        "failure": failure.text if failure else None,
        "replay_us": replay_us,
    }
