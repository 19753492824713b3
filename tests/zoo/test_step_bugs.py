"""The laws around the step bite: each planted bug passes the plain tests and breaks its law.

The plain tests are the obvious ones: an untouched training, in-core and within a budget, gives the
same bits and a loss that falls. The laws are those of tests/properties, on a small sample.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256

import numpy as np
import pytest
from properties import test_bad_losses as bad
from properties import test_resumed_schedules as schedules
from properties import test_step_counts as counted
from properties import test_what_a_step_reads as reads
from properties import test_whole_batch as whole
from strangers import test_models_in_threads as threads
from strangers import test_pickles as pickles
from strangers import test_python_state as python
from strangers import test_targets as targets
from support.quick import quick
from unit import test_seen as watched
from unit import test_torch_face as face
from zoo.step_bugs import BUGS

import ooctrain as oc
from ooctrain import nn


def plain_training() -> None:
    """A loss that falls, whatever the budget."""
    losses: list[list[float]] = []
    values: list[dict[str, str]] = []
    for budget in (None, "70%"):
        model = bad.network("mse")
        optimizer = oc.optim.Adam(model.parameters(), lr=0.01)
        options = {"budget": budget, "planner": "naive", "threads": 1}
        with oc.Trainer(model, optimizer=optimizer, **options) as trainer:
            losses.append([trainer.step(*bad.batch(0)) for _ in range(3)])
            values.append({k: sha256(v).hexdigest() for k, v in trainer.state_arrays().items()})
    assert losses[0] == losses[1]
    assert values[0] == values[1]
    assert losses[0][-1] < losses[0][0]


def law_of_what_is_seen(change: str, _) -> None:
    """One change between two steps."""
    reads.check(reads.CHANGES[change or "Dropout:1.p"])


def law_of_counts(_, folder) -> None:
    """A parameter that joins late, one that is frozen for a while; a checkpoint in the middle."""
    everything = set(counted.PARAMETERS)
    history = [({"4.weight"}, 0), (everything, 1), (everything - {"4.bias"}, 0), (everything, 1)]
    eager = counted.Run("adam").eagerly(history)
    assert eager[1] == counted.expected_counts(history)
    assert counted.Run("adam").by_a_trainer(history) == eager
    assert counted.Run("adam").by_a_trainer(history, str(folder / "file")) == eager


def law_of_bad_losses(*_) -> None:
    """Bad batches leave no trace."""
    for kind, spoilt in (("adam", np.nan), ("mse", bad.LARGE)):
        events = [(0, None), (1, spoilt), (2, None)]
        found = bad.run(events, kind, {})
        assert found == bad.run([events[0], events[2]], kind, {})


def law_of_the_whole_batch(*_) -> None:
    """Parts without labels, sums, two losses of one target, a wrong label in the last part."""
    labels = [-100, -100, 0, 1, 2, 0]
    for loss in (nn.CrossEntropyLoss(), nn.CrossEntropyLoss(reduction="sum"), whole.several,
                 nn.NLLLoss(), nn.SmoothL1Loss(reduction="sum")):  # fmt: skip
        whole.check_parts(loss, labels, False, 3, "cpu")
    whole.test_a_wrong_label_is_named_in_whatever_part_it_is(2)


def law_of_evaluation(*_) -> None:
    """Batches of other sizes, with ignored labels."""
    for loss in (nn.CrossEntropyLoss(), nn.CrossEntropyLoss(reduction="sum"),
                 nn.BCEWithLogitsLoss(reduction="sum")):  # fmt: skip
        whole.check_evaluation(loss, [-100, -100, 0, 1, 2, 0], False, {3, 5})


def law_of_schedules(*_) -> None:
    """Stopped in a cooldown, before the next in a row, after others have changed the rate."""
    schedules.check(["plateau"], 4, {})
    schedules.check(["row"], 2, {})
    schedules.check(["cosine", "power"], 2, {1: 0.5})


def law_of_python_state(where: str, _) -> None:
    """What an object holds; a counter of a forward pass."""
    if where == "counter":
        python.test_what_a_forward_pass_notes_of_its_input_does_not_make_batches_thrash()
    elif where == "own counter":
        python.test_a_counter_that_changes_the_step_is_refused_with_its_line()
    elif where == "operations":
        python.test_operations_of_ones_own_that_differ_are_refused()
    elif where in python.RARELY:
        python.test_a_counter_that_changes_the_step_now_and_then_is_refused(where)
    else:
        python.test_what_a_model_holds_and_reads_is_seen(where or "an object")


def law_of_losses_that_read(where: str, _) -> None:
    """What a loss reads of its surroundings."""
    python.test_what_a_loss_reads_is_seen(where or "a closure")


def law_of_values(where: str, _) -> None:
    """A value that a trace has read is written to; a part goes, a mode is set, a step begins."""
    {
        "deleted": watched.test_a_layer_that_is_deleted_is_gone,
        "mode": watched.test_a_mode_that_a_model_is_in_already_is_no_change,
        "kept": watched.test_a_part_that_is_replaced_is_not_kept,
        "begins": watched.test_parts_are_told_the_number_of_a_step_that_begins,
    }.get(where, lambda: watched.test_values_that_a_trace_reads_are_seen(where or "copy_"))()


def law_of_draws(where: str, _) -> None:
    """A draw of the forward pass is refused, one beside it is not."""
    if where == "threads":
        python.test_draws_of_other_threads_are_nobodys_business()
    else:
        python.test_a_loss_that_draws_is_refused()


def law_of_depth(*_) -> None:
    """Parts of a batch drop what the whole does."""
    face.test_parts_of_a_batch_drop_what_the_whole_does("row")


def law_of_threads(*_) -> None:
    """Members of an ensemble differ."""
    threads.test_members_differ_and_the_seed_reaches_them("contexts")


def law_of_soft_labels(*_) -> None:
    """Class probabilities with smoothing."""
    targets.test_class_probabilities_are_a_target((4, 3), "mean", 0.1, None)


def law_of_pickles(*_) -> None:
    """A pickled tensor is its value."""
    pickles.test_tensors_leave_their_history_behind("pickle")


def law_of_unequal_parts(*_) -> None:
    """Six samples in four parts."""
    whole.check_parts(nn.CrossEntropyLoss(), [-100, -100, 0, 1, 2, 0], False, 4, "cpu")


LAWS: dict[str, Callable[..., None]] = {
    "python": law_of_python_state, "python loss": law_of_losses_that_read,
    "python draw": law_of_draws, "depth": law_of_depth, "threads": law_of_threads,
    "soft labels": law_of_soft_labels, "pickles": law_of_pickles,
    "unequal parts": law_of_unequal_parts,
    "seen": law_of_what_is_seen, "values": law_of_values, "counts": law_of_counts,
    "bad losses": law_of_bad_losses, "whole batch": law_of_the_whole_batch,
    "evaluation": law_of_evaluation, "schedules": law_of_schedules,
}  # fmt: skip


@pytest.mark.parametrize("law", LAWS)
def test_laws_hold_without_bugs(law, tmp_path):
    assert LAWS[law]("", tmp_path) is None


def test_plain_tests_pass_without_bugs():
    assert plain_training() is None


#: The first bug of each law is quick.
FIRST = {law: number for number, (law, _, _) in reversed([*enumerate(BUGS.values())])}


@pytest.mark.parametrize("name", quick([*BUGS], *FIRST.values()))
def test_the_bug_passes_plain_tests_and_breaks_its_law(name, monkeypatch, tmp_path):
    law, detail, plant = BUGS[name]
    plant(monkeypatch)
    plain_training()
    with pytest.raises((AssertionError, oc.OoctrainError, pytest.fail.Exception, RecursionError)):
        LAWS[law](detail, tmp_path)
