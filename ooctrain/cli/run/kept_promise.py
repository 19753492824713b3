"""A memory budget next to the operating system's count, as `train --memory` prints it.

The promise is printed with its parts before the first step (`../step_limits.py`). The count is
taken from the first plan to the last test: the steps run in-core for `--verify` come after it,
since they need what in-core needs. A promise that was not kept is said by its code, and the command
fails. Read next: `ooctrain/execution/promise.py`; `ooctrain/devices/cpu/process_memory.py`, which
counts.
"""

from __future__ import annotations

from ooctrain.cli.run.run_record import RunRecord
from ooctrain.errors import OoctrainError
from ooctrain.execution.promise import Promise
from ooctrain.report.text import share
from ooctrain.units import format_bytes

Rows = list[tuple[str, str]]


def counted_rows(promise: Promise | None, record: RunRecord) -> Rows:
    """What was counted, next to the promise."""
    watch = record.watch
    if promise is None or watch is None:
        return []
    most, promised = watch.most_bytes, promise.memory_bytes
    group = watch.group_most_bytes
    by_group = "" if group is None else f", its control group {format_bytes(group)}"
    part = share(most, promised)
    text = f"promised {format_bytes(promised)}, counted {format_bytes(most)} at most ({part}, Pss)"
    rows = [("memory", text + by_group)]
    if most > promised:
        rows.append(("PROMISE BROKEN", f"{format_bytes(most - promised)} more than --memory"))
    return rows


def expect_kept(promise: Promise | None, record: RunRecord) -> None:
    """Raises OoctrainError: the process held more than was promised. What was learned is kept."""
    if promise is None or record.watch is None:
        return
    most, promised = record.watch.most_bytes, promise.memory_bytes
    if most > promised:
        raise OoctrainError(
            "the process held more than --memory promised", code="OOC-125",
            numbers=f"promised {format_bytes(promised)}, counted {format_bytes(most)}; "
            f"{promise.divided()}, {promise.besides()}",
            fix="a smaller --memory leaves room for what the library does not know of; what was "
            "learned is in the checkpoint as ever",
        )  # fmt: skip
