"""Planted bugs of the engine: each is what a competent developer might have written.

`BUGS` is {name: (the law that bites, a function that plants the bug)}. With each of them small
networks still train, traces are whole and shapes are right; only the numbers, and often only some
of them, show the bug. Read next: `test_engine_bugs.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from importlib import import_module

import pytest

from ooctrain.engine import backward
from ooctrain.engine.tensor import Tape
from ooctrain.functional import norm
from ooctrain.layers import layout
from ooctrain.layers.batch_norm import BatchNormGradApply, BatchNormUpdate
from ooctrain.layers.combine import AddMasked, Concat, Constant
from ooctrain.layers.dropout import Dropout
from ooctrain.layers.kernels.cpu import batch_norm, losses

Plant = Callable[[pytest.MonkeyPatch], None]
# The package's attributes of these names are the functions.
fuse_module = import_module("ooctrain.rewrite.fuse")
share_module = import_module("ooctrain.rewrite.share_storage")


def batch_norm_forgets_that_the_variance_depends_on_x(patch: pytest.MonkeyPatch) -> None:
    """Drops the term xhat * dgamma / P; a uniform cotangent does not see it."""
    call = Tape.call

    def wrong(self, op, ins, **rest):
        if isinstance(op, BatchNormGradApply) and op.batch_stats:
            (zero,) = call(self, Constant(0.0, ins[5].shape), (), of=(ins[5],))
            ins = (*ins[:5], zero, *ins[6:])
        return call(self, op, ins, **rest)

    patch.setattr(Tape, "call", wrong)


def dropout_draws_anew_in_backward(patch: pytest.MonkeyPatch) -> None:
    """The gradient's mask has the number of another call."""
    patch.setattr(
        Dropout,
        "vjp",
        lambda self, tape, ins, outs, grads: tape.call(
            replace(self, call=tape.next_dropout()), grads, of=ins
        ),
    )


def the_last_branch_wins_at_a_fork(patch: pytest.MonkeyPatch) -> None:
    """Gradients that meet are replaced instead of added."""
    right = backward._Pass._sum

    def wrong(self, a, b, of):
        return right(self, a, b, of) if of.source is None else b

    patch.setattr(backward._Pass, "_sum", wrong)


def a_shared_parameter_is_complete_after_its_last_use(patch: pytest.MonkeyPatch) -> None:
    """Uses are counted once for each parameter instead of once for each call."""
    patch.setattr(backward, "Counter", lambda leaves: dict.fromkeys(leaves, 1))


def the_mean_counts_ignored_labels(patch: pytest.MonkeyPatch) -> None:
    """Divides by all rows."""
    patch.setattr(losses, "valid_rows", lambda labels, ignore_index=-100: labels.size)


def running_variance_is_biased(patch: pytest.MonkeyPatch) -> None:
    """Keeps the variance that normalises, where PyTorch keeps the unbiased one."""
    patch.setattr(
        norm,
        "BatchNormUpdate",
        lambda momentum, rows, counted: BatchNormUpdate(momentum, 10**9, counted),
    )


def flatten_is_free(patch: pytest.MonkeyPatch) -> None:
    """Takes channels-last memory for logical order: networks train, but not PyTorch's weights."""
    patch.setattr(layout, "logical_in_memory", lambda shape: True)


def the_third_of_a_concat_overlaps_the_second(patch: pytest.MonkeyPatch) -> None:
    """The start of each part is the extent before it, not the sum of all."""
    patch.setattr(Concat, "starts", lambda self, extents: [0, *extents][: len(extents)])


def the_mask_falls_on_the_other_gradient(patch: pytest.MonkeyPatch) -> None:
    """Fusing a ReLU's gradient into a sum masks the wrong term."""
    right = fuse_module._masked

    def wrong(reader, dz, dy, y):
        call = right(reader, dz, dy, y)
        if call is not None and isinstance(call.op, AddMasked):
            other, dy, y = call.ins
            return replace(call, ins=(dy, other, y))
        return call

    patch.setattr(fuse_module, "_masked", wrong)


def the_residual_is_added_after_the_relu(patch: pytest.MonkeyPatch) -> None:
    """Fusing takes ReLU(BN(x)) + r for ReLU(BN(x) + r)."""
    right = batch_norm.apply

    def wrong(pool, x, mean, inv_std, gamma, beta, y, residual, relu):
        if relu and residual is not None:
            right(pool, x, mean, inv_std, gamma, beta, y, None, relu)
            y += residual
        else:
            right(pool, x, mean, inv_std, gamma, beta, y, residual, relu)

    patch.setattr(batch_norm, "apply", wrong)


def results_are_overwritten_in_place(patch: pytest.MonkeyPatch) -> None:
    """Sharing storage forgets what the trace hands out."""
    right = share_module._reuse

    def wrong(trace, call, lasting):
        return right(trace, call, lasting - set(trace.outputs.values()))

    patch.setattr(share_module, "_reuse", wrong)


BUGS: dict[str, tuple[str, Plant]] = {
    plant.__name__: (law, plant)
    for law, plant in [
        ("gradients", batch_norm_forgets_that_the_variance_depends_on_x),
        ("gradients", dropout_draws_anew_in_backward),
        ("gradients", the_last_branch_wins_at_a_fork),
        ("gradients", a_shared_parameter_is_complete_after_its_last_use),
        ("kernels", the_mean_counts_ignored_labels),
        ("state", running_variance_is_biased),
        ("kernels", flatten_is_free),
        ("kernels", the_third_of_a_concat_overlaps_the_second),
        ("rewrites", the_mask_falls_on_the_other_gradient),
        ("rewrites", the_residual_is_added_after_the_relu),
        ("rewrites", results_are_overwritten_in_place),
    ]
}
