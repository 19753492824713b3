"""Planted bugs of interrupts: values that are lost, half a step that stays, ranks that differ.

`BUGS` is {name: (law, (owner, function, piece as it is, piece with the bug), ...)}. Undisturbed,
a training with any of them is right. Read next: `test_interrupt_bugs.py`.
"""

from __future__ import annotations

from typing import Any

import pytest
from zoo import planting

from ooctrain.engine import eager, finished, module
from ooctrain.execution.executor import Session
from ooctrain.execution.guard import Guard
from ooctrain.optim import optimizer
from ooctrain.train import Trainer

BUGS: dict[str, tuple[Any, ...]] = {
    "an interrupt goes on while the step still runs": (
        "a signal", (finished._Job, "settle", "self.over.wait()", "pass"),
    ),
    "what comes after a second interrupt does not wait": (
        "a second signal", (finished.Finisher, "wait", "left.settle()", "pass"),
    ),
    "an operation that raises ends the session": (
        "an operation", (Session, "_failing", "self._guard.fail(error)", "raise"),
    ),
    "no copy is kept once the loss is known": (
        "backwards", (Guard, "_may_change", " or self._undoes", ""),
    ),
    "what was changed is not restored after an error": (
        "an operation", (Guard, "fail", ", self._sound = self.error or error, False",
                         " = self.error or error"),
    ),
    "a copy is skipped like a call": (
        "an instruction", (Session, "_copy_in", "self.device.copy_in(",
                           "self._guard.error or self.device.copy_in("),
    ),
    "a failed step counts": (
        "an operation", (Session, "run_step", "if failed is not None:", "if False:"),
    ),
    "a rank that leaves says nothing": (
        "ranks", (Trainer, "_leaves", "self.ranks.leave(repr(error))", "raise error"),
    ),
    "a rank that has failed sends what it has": (
        "ranks that fail", (Guard, "_tells_others", "np.nan if", "0.0 if"),
    ),
    "a rank that has failed sends nothing": (
        "ranks that fail", (Guard, "lets", " or self._tells_others(call, ins)", ""),
    ),
    "a gradient that is not finite is written where no copy is kept": (
        "gradients", (Guard, "_may_change", "return self", "return True or self"),
    ),
    "a schedule's step comes after the step": (
        "a schedule", (Trainer, "step", "return self._finished(both)",
                       "found = self._finished(partial(self._step, prepared, x, y))\n"
                       "    return found if then is None else then(found) or found"),
    ),
    "values are put in place where an interrupt comes": (
        "a state", (eager, "write_all", "finisher.do(partial(_write_all, list(values), then, "
                    "_line_outside_library()))",
                    "_write_all(list(values), then, _line_outside_library())"),
        (optimizer, "write_all", "finisher.do(partial(_write_all, list(values), then, "
         "_line_outside_library()))",
         "_write_all(list(values), then, _line_outside_library())"),
        (module, "write_all", "finisher.do(partial(_write_all, list(values), then, "
         "_line_outside_library()))",
         "_write_all(list(values), then, _line_outside_library())"),
    ),
    "what may fail comes last": (
        "an error", (eager, "_write_all", "-pair[0].may_fail", "pair[0].may_fail"),
    ),
    "what may fail is not taken back": (
        "an error", (eager, "_write_all", "reversed(undoing)", "()"),
    ),
    "what is written is not looked at": (
        "gradients", (Guard, "look_at_changes", "not is_finite(array)", "False"),
    ),
}  # fmt: skip


def plant(patch: pytest.MonkeyPatch, bug: str) -> None:
    """Puts the lines with the bug in place."""
    for piece in BUGS[bug][1:]:
        planting.plant(patch, *piece)
