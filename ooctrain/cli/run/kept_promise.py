"""A memory budget beside what the operating system counted, as `train --memory` prints it.

The promise is printed with its parts before the first step. The count is taken from the first plan
to the last test: the steps run in-core for `--verify` come after it, since they need what in-core
needs. A promise that was not kept is said by its code, and the command fails. Read next:
`ooctrain/execution/promise.py`; `ooctrain/devices/cpu/process_memory.py`, which counts.
"""

from __future__ import annotations

from ooctrain.cli.run.run_record import RunRecord
from ooctrain.execution.promise import Promise
from ooctrain.report.text import share
from ooctrain.units import format_bytes

Rows = list[tuple[str, str]]


def promise_rows(promise: Promise | None) -> Rows:
    """What is promised, and its parts; nothing where nothing is."""
    if promise is None:
        return []
    return [
        ("memory", f"{format_bytes(promise.memory_bytes)} for the process: {promise.divided()}"),
        ("", promise.besides()),
    ]


def counted_rows(promise: Promise | None, record: RunRecord) -> Rows:
    """What was counted, beside the promise."""
    watch = record.watch
    if promise is None or watch is None:
        return []
    most, promised = watch.most_bytes, promise.memory_bytes
    group = watch.group_most_bytes
    by_group = "" if group is None else f", its control group {format_bytes(group)}"
    part = share(most, promised)
    text = f"promised {format_bytes(promised)}, counted {format_bytes(most)} at most ({part}, Pss)"
    rows = [("memory", text + by_group)]
    if not is_kept(promise, record):
        over = format_bytes(most - promised)
        rows.append(
            ("PROMISE BROKEN", f"[OOC-125] {over} more than --memory; `ooctrain explain OOC-125`")
        )
    return rows


def is_kept(promise: Promise | None, record: RunRecord) -> bool:
    """Whether the process held at most what was promised."""
    if promise is None or record.watch is None:
        return True
    return record.watch.most_bytes <= promise.memory_bytes
