"""Planted bugs of a step's surroundings: its inputs, counts, bad losses, parts, schedules.

They concern what a step depends on, how it is counted, what a bad loss may touch, the loss of a
batch that is processed in parts, and how schedules go on. `BUGS` is {name: (the law that bites,
where it looks, a function that plants the bug)}. With each of them a training in whole batches,
undisturbed between its steps, goes on to the same bits. Read next: `test_step_bugs.py`.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from zoo.planting import plant

from ooctrain import functional, train
from ooctrain.engine import draws, fingerprint, parts, seeds
from ooctrain.engine.module import Module
from ooctrain.engine.tensor import Tensor
from ooctrain.execution import checkpoint, evaluation, executor, guard, seen, sessions
from ooctrain.functional import loss_functions, pointwise
from ooctrain.layers.kernels.cpu import losses as kernels
from ooctrain.optim import LRScheduler, Optimizer, SequentialLR
from ooctrain.optim.schedules import plateau

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
    piece = "not isinstance(one, fixed) and one[0] not in _FIXED"
    plant(patch, fingerprint, "_is_loose", piece, "False")


def only_dictionaries_hold_attributes(patch: pytest.MonkeyPatch) -> None:
    """An object's slots are not looked at."""
    plant(patch, fingerprint, "slots_of", '"__slots__" not in own', "True")


def private_slots_are_called_as_they_are_written(patch: pytest.MonkeyPatch) -> None:
    """Their names have the class's in them, so none of these is found."""
    piece = "tuple(name for name, it in own.items() if isinstance(it, types.MemberDescriptorType))"
    plant(patch, fingerprint, "slots_of", piece, 'tuple(own["__slots__"])')


def what_a_class_says_stays(patch: pytest.MonkeyPatch) -> None:
    """An object that gets an attribute of its own, where its class had one, has not changed."""
    piece = "{*held, *(name for kind in kinds if self._is_own(kind) for name in vars(kind))}"
    plant(patch, fingerprint.Content, "_of_object", piece, "set(held)")


def global_names_are_nobodys(patch: pytest.MonkeyPatch) -> None:
    """What a function reads of its module is not looked at."""
    piece = "sorted(name for name in names if name in there)"
    plant(patch, fingerprint.Content, "_of_function", piece, "()")


def a_draw_is_what_differs(patch: pytest.MonkeyPatch) -> None:
    """Generators are not compared, only traces are; a rare draw is not noticed."""
    plant(patch, draws.Generators, "drawn", "self._states() != self._before", "False")


def other_threads_may_not_draw(patch: pytest.MonkeyPatch) -> None:
    """Whoever draws while a step is traced is taken for the step."""
    plant(patch, draws.Generators, "drawn", "return _Hooks(held).line_of(record)", "return 'here'")


def counters_are_settings(patch: pytest.MonkeyPatch) -> None:
    """What a trace changes itself makes each step another one."""
    plant(patch, train.Trainer, "_repeat", "self._apart |= changed", "pass")


def two_traces_may_differ(patch: pytest.MonkeyPatch) -> None:
    """The first of them is taken."""
    planted = plant(patch, draws, "expect_the_same", "first == again or", "True or")
    patch.setattr(train, "expect_the_same", planted)


def a_counter_is_looked_at_once(patch: pytest.MonkeyPatch) -> None:
    """Two equal traces are taken for all that come."""
    plant(patch, draws, "_same_at_other_counts", "return False", "return True")


def samples_are_drawn_by_their_place_in_a_part(patch: pytest.MonkeyPatch) -> None:
    """Each part of a batch drops the same samples."""
    piece = 'tape.parts is None or mode == "batch"'
    planted = plant(patch, pointwise, "stochastic_depth", piece, "True")
    patch.setattr(functional, "stochastic_depth", planted)


def every_thread_is_the_first(patch: pytest.MonkeyPatch) -> None:
    """Threads and tasks draw the same numbers."""
    plant(patch, seeds.Seeds, "take", "self._others += 1", "self._others = 1")


def labels_are_as_they_were(patch: pytest.MonkeyPatch) -> None:
    """Smoothed class probabilities keep the share that is to be spread."""
    piece = "target * (1.0 - label_smoothing)"
    plant(patch, loss_functions, "_of_probabilities", piece, "target")


def histories_are_copied(patch: pytest.MonkeyPatch) -> None:
    """A pickled tensor takes all along that it was computed from."""
    plant(patch, Tensor, "__reduce__", '{"source": None,', "{")


def whoever_is_frozen_stays_trained(patch: pytest.MonkeyPatch) -> None:
    """`requires_grad` belongs to tensors, which count nothing."""
    plant(patch, seen.Seen, "_now", "list(map(_trained, self._parameters))", "[]")


def clipping_is_no_part_of_the_key(patch: pytest.MonkeyPatch) -> None:
    """The change is seen, and the old plan found again."""
    plant(
        patch,
        seen.Seen,
        "key",
        "(now.accumulate, now.clip, now.shared)",
        "(now.accumulate, now.shared)",
    )


def slots_are_taken_for_granted(patch: pytest.MonkeyPatch) -> None:
    """An optimizer whose state is thrown away goes on with it."""
    plant(patch, seen, "_held_by", "list(optimizer.state.values())", "[]")


def values_are_read_once(patch: pytest.MonkeyPatch) -> None:
    """Class weights are constants of a trace, and their tensor is the same one."""
    plant(patch, fingerprint, "_root", "isinstance(one, Tensor)", "False")


def arrays_change_by_assignment(patch: pytest.MonkeyPatch) -> None:
    """Their content is not looked at; who writes to a tensor by its own method makes a new one."""
    plant(patch, fingerprint, "_alone", "ascontiguousarray(one)", "empty(0)")


def what_is_registered_is_no_part_of_the_key(patch: pytest.MonkeyPatch) -> None:
    """Another buffer is noticed, and the step found again that had read the first one."""
    plant(patch, seen.Seen, "key", "(registered, groups,", "(groups,")


def who_is_deleted_is_not_counted(patch: pytest.MonkeyPatch) -> None:
    """A part that is gone goes on in the step."""
    plant(patch, Module, "__delattr__", "self._changed()", "pass")


def a_mode_that_was_set_is_a_change(patch: pytest.MonkeyPatch) -> None:
    """Who says `model.train()` before each step has everything described anew each time."""
    plant(patch, Module, "train", "if module.training != mode:", "if True:")


def keys_keep_what_they_are_of(patch: pytest.MonkeyPatch) -> None:
    """A replaced part stays in memory as long as a step is known that was traced with it."""
    plant(patch, fingerprint.Same, "__init__", "weakref.ref(what)", "partial(_itself, what)")


def a_step_begins_unannounced(patch: pytest.MonkeyPatch) -> None:
    """Only a model that is known to want it is told the number of its step."""
    plant(patch, train.Trainer, "_prepare_once", "step.training and self._seen.begins", "False")


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
    """Looks for NaN alone, and at no gradient."""
    plant(patch, guard.Guard, "look", "np.isfinite(value)", "~np.isnan(value)")
    plant(patch, guard.Guard, "_may_change", "return self.", "return True or self.")


def a_stopped_step_counts(patch: pytest.MonkeyPatch) -> None:
    """The next step's bias correction and masks are those after it."""
    piece = "loss, lr = float(result.outputs[variable])"
    plant(patch, train.Trainer, "_step", piece, f"self.optimizer.count(()); {piece}")


def parts_average_their_own_labels(patch: pytest.MonkeyPatch) -> None:
    """Mean of means: right as long as every label counts as much."""
    plant(
        patch, parts.Parts, "divisor", "return (weight if equal", "return () and (weight if equal"
    )


def sums_are_taken_for_means(patch: pytest.MonkeyPatch) -> None:
    """Halved where a batch goes through in two parts."""
    plant(patch, loss_functions, "_of_the_batch", "loss * parts.factor", "loss")


def parts_are_equal(patch: pytest.MonkeyPatch) -> None:
    """The divisor of a part is a share of the labels, which is another one where parts differ."""
    plant(patch, parts.Parts, "divisor", "weight * self.share", "weight * (1 / self.count)")


def ignored_labels_weigh_something(patch: pytest.MonkeyPatch) -> None:
    """The divisor is the number of labels."""
    piece = "valid_rows(labels, op.ignore_index)"
    plant(patch, kernels, "label_weight", piece, "labels.size")


def one_divisor_for_all_losses(patch: pytest.MonkeyPatch) -> None:
    """Two losses of one target with other weights share what they are divided by."""
    piece = "key = whole, ignore_index, values"
    plant(patch, parts.Parts, "divisor", piece, "key = whole, ignore_index, None")


def likelihoods_average_their_own_labels(patch: pytest.MonkeyPatch) -> None:
    """As `parts_average_their_own_labels`, where a mean is made of operations."""
    planted = plant(patch, loss_functions, "nll_loss", "parts is None", "True")
    patch.setattr(functional, "nll_loss", planted)


def sums_of_values_are_taken_for_means(patch: pytest.MonkeyPatch) -> None:
    """As `sums_are_taken_for_means`, where a sum is an operation of its own."""
    plant(patch, loss_functions, "_reduced", "_of_the_batch(each.sum(), reduction)", "each.sum()")


def losses_of_operations_count_by_samples(patch: pytest.MonkeyPatch) -> None:
    """What a loss that is made of operations averages over is not told to the evaluation."""
    plant(patch, evaluation, "_terms", "MeanError | ValueLoss", "MeanError")


def labels_of_parts_are_trusted(patch: pytest.MonkeyPatch) -> None:
    """Only a target that a loss reads as it comes is checked."""
    plant(patch, sessions, "value_on_host", "Slice | Reshape", "Reshape")


def batches_count_by_their_samples(patch: pytest.MonkeyPatch) -> None:
    """As an average over batches of a mean is made first."""
    piece = "weights if terms else (float(len(target)),)"
    plant(patch, evaluation.Averages, "add", piece, "(float(len(target)),)")


def sums_over_batches_are_averaged(patch: pytest.MonkeyPatch) -> None:
    """A sum over the data set is the sum over its batches."""
    piece = "sum(batch.loss for batch in self._batches)"
    plant(patch, evaluation.Averages, "_loss", piece, f"{piece} / len(self._batches)")


def a_cycled_group_has_no_settings(patch: pytest.MonkeyPatch) -> None:
    """Its momentum is a step scalar, and so nothing of it is compared."""
    piece = 'kept["momentum"], kept["betas"] = name, kept.get("betas", ())[1:]'
    plant(patch, Optimizer, "_traced_settings", piece, "kept.clear()")


def rates_in_force_are_forgotten(patch: pytest.MonkeyPatch) -> None:
    """A rate is a function of the epoch, as long as nobody else changes it."""
    plant(patch, LRScheduler, "state_dict", ', "_last_lr": rates', "")


def what_is_loaded_counts_as_expected(patch: pytest.MonkeyPatch) -> None:
    """The rates in force are set, and taken for those of the formula."""
    piece = 'self._set(list(state_dict["_last_lr"]))'
    wrong = f'self._expected = list(state_dict["_last_lr"]); {piece}'
    plant(patch, LRScheduler, "load_state_dict", piece, wrong)


def a_plateau_forgets_its_cooldown(patch: pytest.MonkeyPatch) -> None:
    """Rate and best value are right."""
    counted = ("last_epoch", "best", "num_bad_epochs")
    patch.setattr(plateau, "_COUNTED", counted)


def a_row_keeps_its_own_epoch_alone(patch: pytest.MonkeyPatch) -> None:
    """The schedules in it have the first rates of the optimizer that goes on."""
    right = LRScheduler.load_state_dict
    patch.setattr(SequentialLR, "load_state_dict", right)


BUGS: dict[str, tuple[str, str, Plant]] = {
    plant.__name__: (law, detail, plant)
    for law, detail, plant in [
        ("seen", "BatchNorm2d:model.train", modes_are_not_counted),
        ("seen", "BatchNorm2d:1.running_mean", only_plain_attributes_are_counted),
        ("seen", "ModuleList:1.slopes[:]", lists_are_looked_at_once),
        ("python", "slots", only_dictionaries_hold_attributes),
        ("python", "a private slot", private_slots_are_called_as_they_are_written),
        ("python", "an attribute of the class", what_a_class_says_stays),
        ("python loss", "a global number", global_names_are_nobodys),
        ("python draw", "", a_draw_is_what_differs),
        ("python draw", "threads", other_threads_may_not_draw),
        ("python", "counter", counters_are_settings),
        ("python", "operations", two_traces_may_differ),
        ("python", "a warm-up", a_counter_is_looked_at_once),
        ("depth", "", samples_are_drawn_by_their_place_in_a_part),
        ("threads", "", every_thread_is_the_first),
        ("soft labels", "", labels_are_as_they_were),
        ("pickles", "", histories_are_copied),
        ("unequal parts", "", parts_are_equal),
        ("seen", "Identity:4.weight.requires_grad", whoever_is_frozen_stays_trained),
        ("seen", "Identity:trainer.clip", clipping_is_no_part_of_the_key),
        ("seen", "SGD:optimizer.state", slots_are_taken_for_granted),
        ("values", "copy_", values_are_read_once),
        ("values", "a view", arrays_change_by_assignment),
        ("seen", "CrossEntropyLoss:loss.weight", what_is_registered_is_no_part_of_the_key),
        ("values", "deleted", who_is_deleted_is_not_counted),
        ("values", "mode", a_mode_that_was_set_is_a_change),
        ("values", "kept", keys_keep_what_they_are_of),
        ("values", "begins", a_step_begins_unannounced),
        ("seen", "Identity:model.4", who_is_replaced_keeps_its_place),
        ("seen", "OneCycleLR:group.weight_decay", a_cycled_group_has_no_settings),
        ("counts", "", every_parameter_counts_every_step),
        ("counts", "", one_count_for_all_calls),
        ("counts", "", a_file_forgets_the_counts),
        ("bad losses", "", updates_run_whatever_the_loss),
        ("bad losses", "", statistics_keep_the_bad_batch),
        ("bad losses", "", infinity_is_a_number),
        ("bad losses", "", a_stopped_step_counts),
        ("whole batch", "", parts_average_their_own_labels),
        ("whole batch", "", sums_are_taken_for_means),
        ("whole batch", "", ignored_labels_weigh_something),
        ("whole batch", "", one_divisor_for_all_losses),
        ("whole batch", "", likelihoods_average_their_own_labels),
        ("whole batch", "", sums_of_values_are_taken_for_means),
        ("whole batch", "", labels_of_parts_are_trusted),
        ("evaluation", "", batches_count_by_their_samples),
        ("evaluation", "", sums_over_batches_are_averaged),
        ("schedules", "", rates_in_force_are_forgotten),
        ("schedules", "", what_is_loaded_counts_as_expected),
        ("schedules", "", a_plateau_forgets_its_cooldown),
        ("schedules", "", a_row_keeps_its_own_epoch_alone),
        ("evaluation", "", losses_of_operations_count_by_samples),
    ]
}
