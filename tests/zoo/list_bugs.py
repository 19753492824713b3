"""Planted bugs of the list: ledger, host slots, rules, simulator.

`BUGS` is {name: (owner, function, line as it is, line with the bug)}. Each is one line of the real
source, changed as a competent developer might have written it, and all of them still pass the
worked example of `docs/schedule.md` with its peak. Read next: `test_list_bugs.py`.
"""

from __future__ import annotations

from typing import Any

import pytest
from zoo import planting

from ooctrain.sched import host, ledger, rules, simulate
from ooctrain.sched.ledger import Ledger

BUGS: dict[str, tuple[Any, str, str, str]] = {
    "overwrites while a copy still reads": (
        Ledger, "_take_over", "waits[D] = max(waits[D], swap_out)", "pass",
    ),
    "a free forgets the copy out": (
        Ledger, "_free", "max(waits[D], swap_out), max(waits[H], swap_in)",
        "waits[D], max(waits[H], swap_in)",
    ),
    "a free forgets the copy in": (
        Ledger, "_free", "max(waits[D], swap_out), max(waits[H], swap_in)",
        "max(waits[D], swap_out), waits[H]",
    ),
    "a free waits for the last call, whoever that was": (
        Ledger, "_free", "max(waits[C], self._last_run[free.var])", "self._issued[C]",
    ),
    "an overwritten value remembers its last reader": (
        Ledger, "_take_over", "self._last_run[source] = NOTHING", "pass",
    ),
    "a call that claims nothing waits all the same": (
        Ledger, "_run", "if claim:", "if call.outs:",
    ),
    "scratch is released as small as it was asked for": (
        Ledger, "_run", "self._open_bytes += granted(size)", "self._open_bytes += size",
    ),
    "a scratch output in place releases nothing": (
        Ledger, "_run", "self._open_bytes += granted(size)",
        "self._open_bytes += 0 if out in call.reuse else granted(size)",
    ),
    "a swap-out waits for the last reader, not for the writer": (
        Ledger, "_swap_out", "max(waits[C], run)", "max(waits[C], self._last_run[swap.var])",
    ),
    "a host slot is written while it is read": (
        Ledger, "_swap_out", "in self._reads_of_slot(swap.var).over(swap.lo, swap.hi)", "in ()",
    ),
    "host memory is claimed without waiting": (
        Ledger, "_swap_out", "_raise_to(waits, self._host_released)", "pass",
    ),
    "a parameter and its update keep two host copies": (
        Ledger, "_swap_out", "if swap.var in self._mate:", "if swap.var in ():",
    ),
    "a fence holds back only what is on the same stream": (
        Ledger, "_swap_in", "waits = self._fence.copy()",
        "waits = [*NONE[:2], self._fence[H]]",
    ),
    "host bytes go with the copy, not after it": (
        Ledger, "_give_back_host", "if copy > done[lane]:", "if copy > index:",
    ),
    "a host slot is given away at its last copy": (
        host, "_slots", "released.get(last, len(schedule.instructions))", "last",
    ),
    "the host slot of an update is its own": (
        ledger, "slot_of", "trace.carries.get(variable, variable)", "variable",
    ),
    "only the first kept output is looked for": (
        rules, "outputs_absent", "for out in call.outs if run.keep is None else run.keep:",
        "for out in (call.outs if run.keep is None else run.keep)[:1]:",
    ),
    "an input is there if any of it is": (
        rules, "inputs_resident", "gaps = state.ledger.missing(variable)",
        "gaps = [] if state.ledger.device[variable].items else state.ledger.missing(variable)",
    ),
    "any call may run again": (rules, "pure_reruns", "if call.pure or", "if True or"),
    "a stale host copy does for the next step": (
        rules, "host_end", "state.trace.end_variables.get(variable)", "variable",
    ),
    "an untouched input may stay": (
        rules, "nothing_else_resident", "if spans.items and variable not in lasting:",
        "if spans.items and variable not in {*lasting, *state.trace.initial}:",
    ),
    "a shared link carries both directions at once": (
        ledger, "lane_of", '"link" if shared_link and row.stream != "C" else row.stream',
        "row.stream",
    ),
    "a slowed call works on as if alone": (
        simulate._Clock, "advance_to_next_end", "int(span / pace[lane])", "span",
    ),
}  # fmt: skip


def plant(patch: pytest.MonkeyPatch, bug: str) -> None:
    """Puts the line with the bug in place, wherever the function is known by its name."""
    owner, name, line, wrong = BUGS[bug]
    right = getattr(owner, name)
    plant_rule(patch, right, planting.plant_everywhere(patch, owner, name, line, wrong))


def plant_rule(patch: pytest.MonkeyPatch, right: Any, planted: Any) -> None:
    """The table of rules holds some functions too."""
    from ooctrain.sched import rules, verify

    table = {code: planted if rule is right else rule for code, rule in rules.RULES.items()}
    patch.setattr(verify, "RULES", table)
