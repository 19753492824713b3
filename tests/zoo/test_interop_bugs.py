"""The laws of imported networks bite: each planted bug breaks its law, which holds without it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from zoo.planting import plant, plant_everywhere, with_bug

from ooctrain.errors import OoctrainError
from ooctrain.interop import (
    applied,
    aten,
    definitions,
    exported,
    graph,
    optimizers,
    saved_tensors,
    storages,
)
from ooctrain.interop import importing as doors

pytest.importorskip("torch", reason="torch is not installed")
from peers import test_applied_plans as APPLIED
from peers import test_from_torch as LAWS

pytestmark = pytest.mark.peers
READER, CALL = exported.ListReader, graph.GraphCall


def _in_place(number: int) -> Callable[[], None]:
    forward = LAWS.IN_PLACE[number]
    return lambda: LAWS.test_operations_in_place_are_read_as_pytorch_reads_them(forward)


def _operation(name: str) -> Callable[[], None]:
    return lambda: LAWS.test_an_operation_has_pytorch_s_value_and_gradient(name)


def _both_ways(name: str) -> Callable[[], None]:
    return lambda: LAWS.test_a_run_begun_in_pytorch_goes_on_here_and_back(name)


def _no_bit(planner: str, budget: str) -> Callable[[], None]:
    return lambda: APPLIED.test_a_plan_changes_no_bit(planner, budget)


def _whatever() -> None:
    for seed in range(8):
        APPLIED.test_whatever_is_swapped_and_computed_again_no_bit_changes(seed)


KILLED = (AssertionError, OoctrainError, TypeError, ValueError, RuntimeError, pytest.fail.Exception)
#: {bug: (owner, function, line as it is, line with the bug, law)}
BUGS: dict[str, tuple[Any, str, str, str, Callable[[], None]]] = {
    "recomputed in another type": (
        saved_tensors.RerunRegion, "_computed", ", self._pass.autocast.again()", "",
        lambda: APPLIED.test_under_autocast_a_plan_changes_no_bit("combined", "10%"),
    ),
    "what is under no_grad has gradients": (
        definitions._Writer, "_inline", "if under_no_grad:", "if False:",
        _operation("without gradients"),
    ),
    "an autocast is written out as if it were off": (
        definitions._Writer, "_inline", "== _IN_AUTOCAST and settings[2]", "== _IN_AUTOCAST and 0",
        lambda: LAWS.test_what_cannot_be_imported_is_one_error("an autocast"),
    ),
    "a refusal names an operation of a definition": (
        READER, "_read_call", "node.meta.get(STANDS_FOR, name)", "name",
        LAWS.test_a_refusal_names_the_user_s_operation,
    ),
    "a definition is written out wherever it leads": (
        definitions._Writer, "_is_known", "return _is_constant(node) or", "return True or",
        LAWS.test_a_refusal_names_the_user_s_operation,
    ),
    "an argument that stands twice is given once": (
        definitions, "_list_of", "places.setdefault(leaf, []).append(place)",
        "places[leaf] = [place]", _operation("between"),
    ),
    "momentum stays here": (
        optimizers, "optimizer_to_torch", 'if name != "step" or counts',
        'if name not in ("step", "momentum")', _both_ways("momentum"),
    ),
    "momentum stays there": (
        optimizers, "_state_here", 'and k != "step"', 'and k not in ("step", "momentum_buffer")',
        _both_ways("nesterov"),
    ),
    "steps are counted anew": (
        optimizers, "_state_here", 'int(_plain(slots.get("step", 1)))', "1", _both_ways("adam"),
    ),
    "each group has the settings of the first": (
        optimizers, "optimizer_from_torch", "given[k]", "settings[0][k]",
        LAWS.test_groups_keep_their_settings,
    ),
    "running statistics swapped": (
        aten, "batch_norm", "input, running_mean, running_var, *settings",
        "input, running_var, running_mean, *settings", LAWS.test_one_import_trains_and_evaluates,
    ),
    "a shared parameter copied": (
        doors, "_tree", "value is not None and value not in values", "value is not None",
        LAWS.test_what_is_shared_stays_shared_and_what_is_frozen_frozen,
    ),
    "a frozen parameter updated": (
        doors, "_tree", "value.detach().numpy(), value.requires_grad", "value.detach().numpy()",
        LAWS.test_what_is_shared_stays_shared_and_what_is_frozen_frozen,
    ),
    "evaluation imported as training": (
        doors, "exported_list", "net.train(training)", "net.train()",
        LAWS.test_one_import_trains_and_evaluates,
    ),
    "training where a part is in evaluation": (
        CALL, "result", "part.training", "True", LAWS.test_parts_keep_their_mode,
    ),
    "batches are not counted": (
        READER, "_read_call", "self._counted.add(target.name)", "pass",
        LAWS.test_one_import_trains_and_evaluates,
    ),
    "sides of a padding in another order": (
        aten, "pad", "return F.pad(input, sides, mode, value)",
        "return F.pad(input, (*sides[2:], *sides[:2]), mode, value)", _operation("pad"),
    ),
    "rounding up forgotten": (
        aten, "max_pool2d", "*settings, ceil_mode", "*settings, False", _operation("max pool"),
    ),
    "transposed convolution with the arguments of the other": (
        aten, "conv_transpose2d", "stride, padding, more, groups, dilation",
        "stride, padding, more, dilation, groups", _operation("transposed"),
    ),
    "a read of what was there before the change": (
        storages.Storages, "change", "self._now[self._tensor[of]] = result", "pass", _in_place(0),
    ),
    "a view swapped for its base": (
        storages.Storages, "others_are_read", "if first in others", "if False",
        lambda: LAWS.test_a_change_that_a_view_would_see_is_refused(LAWS._view_read_later),
    ),
    "a part that is called twice, once": (
        doors, "_tree", "first.setdefault(module, path)", "path",
        LAWS.test_a_part_that_is_called_twice_is_one_part,
    ),
    "the batch of the example, for ever": (
        READER, "_read_inputs", "(None, *self._shape[1:])", "self._shape",
        LAWS.test_any_batch_and_no_other_size,
    ),
    "the first that is missing, alone": (
        graph.ImportedModule, "_recorded", "if call.shape is None:", "if True:",
        LAWS.test_all_that_is_missing_is_listed_at_once,
    ),
    "a gradient of one's own passed over": (
        doors, "_own_gradients", 'found.add(f"{kind.__qualname__}.backward")', "pass",
        lambda: LAWS.test_a_gradient_of_its_own_is_refused("a function"),
    ),
    "PyTorch left changed": (
        doors, "_own_gradients",
        "torch.autograd.Function.apply, torch.Tensor.register_hook = function, hook", "pass",
        lambda: LAWS.test_a_gradient_of_its_own_is_refused("a hook"),
    ),
    "a view as its base": (
        saved_tensors.ForwardPass, "_settle",
        "made is None or (tensor.shape, tensor.stride()) != (made.shape, made.stride())",
        "made is None", _whatever,
    ),
    "dropout drawn anew": (
        saved_tensors.RerunRegion, "_computed", "self.generators[node].set()", "pass",
        _no_bit("combined", "10%"),
    ),
    "the generator left where it was set": (
        saved_tensors.RerunRegion, "_computed", "before.set()", "pass",
        _no_bit("combined", "10%"),
    ),
    "statistics move twice": (
        saved_tensors.RerunRegion, "_computed", "a.clone() if", "a if", _no_bit("combined", "10%"),
    ),
    "what is changed in place is computed again from what it has become": (
        applied.PlannedCalls, "_regions", "if can_run_again(node, region_of)", "if True",
        _whatever,
    ),
    "a copy for each time that a tensor is saved": (
        saved_tensors.ForwardPass, "_source", "self._copies.get(key)", "None",
        APPLIED.test_what_is_swapped_is_moved_once_and_no_more_than_planned,
    ),
    "the network keeps the plan": (
        applied, "applied", "del net.forward", "pass", APPLIED.test_the_block_ends,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BUGS)
def test_killed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, function, piece, wrong, law = BUGS[name]
    law()
    if owner is aten:  # its functions are known by the table
        right = getattr(aten, function)
        changed = with_bug(right, piece, wrong)
        table = {k: changed if f is right else f for k, f in aten.ATEN.items()}
        monkeypatch.setattr(doors, "ATEN", table)
    elif isinstance(owner, type):
        plant(monkeypatch, owner, function, piece, wrong)
    else:
        plant_everywhere(monkeypatch, owner, function, piece, wrong)
    with pytest.raises(KILLED):
        law()
