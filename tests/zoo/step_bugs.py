"""Planted bugs around the step: what it depends on, how it is counted, what a bad loss may touch.

In: nothing. Out: `BUGS`, {name: (the law that bites, a function that plants the bug)}. The one
idea: with each of them a training that nobody touches between its steps goes on to the same bits.
Read next: `test_step_bugs.py`.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from zoo.planting import plant

from ooctrain import train
from ooctrain.engine import fingerprint
from ooctrain.engine.module import Module
from ooctrain.execution import checkpoint, executor, guard, seen
from ooctrain.optim import Optimizer

Plant = Callable[[pytest.MonkeyPatch], None]


def modes_are_not_counted(patch: pytest.MonkeyPatch) -> None:
    """`model.eval()` sets the attribute past `__setattr__`, and tells nobody."""
    plant(patch, Module, "train", "module._changed()", "pass")


def only_plain_attributes_are_counted(patch: pytest.MonkeyPatch) -> None:
    """Buffers, parameters and parts return before the count."""
    plant(patch, Module, "__setattr__", "self._changed()\n", "pass\n")
    right = Module.__setattr__

    def wrong(self, name, value):
        right(self, name, value)
        if name in self.__dict__:
            self._changed()

    patch.setattr(Module, "__setattr__", wrong)


def lists_are_looked_at_once(patch: pytest.MonkeyPatch) -> None:
    """A list in a module changes without its module being told."""
    piece = "np.ndarray) or _parts(value) is not None"
    plant(patch, fingerprint.Watch, "__init__", piece, "np.ndarray)")


def whoever_is_frozen_stays_trained(patch: pytest.MonkeyPatch) -> None:
    """`requires_grad` belongs to tensors, which count nothing."""
    piece = "list(map(_trained, self.parameters)) == self._trained"
    plant(patch, fingerprint.Watch, "unchanged", piece, "True")


def clipping_is_no_part_of_the_key(patch: pytest.MonkeyPatch) -> None:
    """The change is seen, and the old plan found again."""
    plant(patch, seen.Seen, "key", "(now.accumulate, now.clip)", "(now.accumulate,)")


def slots_are_taken_for_granted(patch: pytest.MonkeyPatch) -> None:
    """An optimizer whose state is thrown away goes on with it."""
    plant(patch, seen, "_rest", "list(optimizer.state.values())", "None")


def values_are_read_once(patch: pytest.MonkeyPatch) -> None:
    """Class weights are constants of a trace, but a buffer can be another one."""
    piece = "value = _bits(tensor) if tensor in self._read else b''"
    plant(patch, fingerprint.Watch, "_seen", piece.replace("''", '""'), 'value = b""')


def who_is_replaced_keeps_its_place(patch: pytest.MonkeyPatch) -> None:
    """The old layer's values are still looked for where the new one's are."""
    only_new = "{**tensors, **self._adopted}"
    plant(patch, train.Trainer, "_look", "adopt(tensors)", f"adopt({only_new})")


def every_parameter_counts_every_step(patch: pytest.MonkeyPatch) -> None:
    """Whoever was frozen meanwhile has the count of those that were not."""
    piece = "self.steps.get(parameter, 0) + 1"
    plant(patch, Optimizer, "count", piece, "self.steps_done")


def one_count_for_all_calls(patch: pytest.MonkeyPatch) -> None:
    """The executor hands out the step's own number."""
    piece = "self._own.get(call.id, self._scalars)"
    plant(patch, executor.Session, "_run", piece, "self._scalars")


def a_file_forgets_the_counts(patch: pytest.MonkeyPatch) -> None:
    """A resumed run corrects the bias of all by the same number."""
    plant(patch, checkpoint, "_as_json", "if not run.updates:", "if True:")


def updates_run_whatever_the_loss(patch: pytest.MonkeyPatch) -> None:
    """What was said of a bad loss until there was a guard."""
    plant(patch, guard.Guard, "lets", "return False", "return True")


def statistics_keep_the_bad_batch(patch: pytest.MonkeyPatch) -> None:
    """Parameters are saved, but evaluation gives NaN."""
    plant(patch, guard.Guard, "to_restore", "self._kept", "{}")


def infinity_is_a_number(patch: pytest.MonkeyPatch) -> None:
    """Looks for NaN alone."""
    plant(patch, guard.Guard, "look", "np.isfinite(value)", "~np.isnan(value)")


def a_stopped_step_counts(patch: pytest.MonkeyPatch) -> None:
    """The next step's bias correction and masks are those after it."""
    piece = "loss = float(result.outputs[variable])"
    plant(patch, train.Trainer, "step", piece, f"{piece}; self.optimizer.count(())")


BUGS: dict[str, tuple[str, Plant]] = {
    plant.__name__: (law, plant)
    for law, plant in [
        ("seen", modes_are_not_counted),
        ("seen", only_plain_attributes_are_counted),
        ("seen", lists_are_looked_at_once),
        ("seen", whoever_is_frozen_stays_trained),
        ("seen", clipping_is_no_part_of_the_key),
        ("seen", slots_are_taken_for_granted),
        ("seen", values_are_read_once),
        ("seen", who_is_replaced_keeps_its_place),
        ("counts", every_parameter_counts_every_step),
        ("counts", one_count_for_all_calls),
        ("counts", a_file_forgets_the_counts),
        ("bad losses", updates_run_whatever_the_loss),
        ("bad losses", statistics_keep_the_bad_batch),
        ("bad losses", infinity_is_a_number),
        ("bad losses", a_stopped_step_counts),
    ]
}
