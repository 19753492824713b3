"""Planted bugs of functions, arithmetic with repeated operands, sums over axes, softmax, losses.

`BUGS` is {name: (the law that bites, a function that plants the bug)}. With each of them tensors of
one shape, or summed as a whole, or in order of their memory, still give right results. Read next:
`planting.py`, `test_operation_bugs.py`.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from zoo.planting import plant

from ooctrain import functional
from ooctrain.functional import activations, norm
from ooctrain.layers import arithmetic, reduction
from ooctrain.layers.arithmetic import Arithmetic
from ooctrain.layers.extremes import MaxAlong
from ooctrain.layers.function import Elementwise
from ooctrain.layers.kernels import walks
from ooctrain.layers.kernels.cpu import reduction as kernels
from ooctrain.layers.kernels.cpu import strided
from ooctrain.layers.linear import MatMul
from ooctrain.layers.losses import LabelLikelihoodGrad, ValueLoss
from ooctrain.layers.permute import Permute
from ooctrain.layers.reduction import Spread
from ooctrain.layers.regions import StridedSlice
from ooctrain.layers.softmax import SoftmaxAlong

Plant = Callable[[pytest.MonkeyPatch], None]


def slopes_are_taken_at_the_output(patch: pytest.MonkeyPatch) -> None:
    """As ReLU and tanh may."""
    plant(patch, Elementwise, "vjp", "ins[0]", "outs[0]")


def only_axes_that_are_missing_are_summed(patch: pytest.MonkeyPatch) -> None:
    """The gradient of an operand with extents of 1 keeps the others' extents."""
    piece = "(axis < more or of.shape[axis - more] == 1)"
    plant(patch, reduction, "sum_to", piece, "axis < more")
    patch.setattr(arithmetic, "sum_to", reduction.sum_to)


def a_spreading_forgets_its_factor_in_backward(patch: pytest.MonkeyPatch) -> None:
    """Right for sums, wrong for means of means."""
    plant(patch, Spread, "vjp", "ins[0], self.factor", "ins[0]")


def the_divisor_gets_the_gradient_of_a_factor(patch: pytest.MonkeyPatch) -> None:
    """d(a / b) with the wrong sign."""
    plant(patch, Arithmetic, "vjp", "return da, _negative_sum", "return da, sum_to")


def what_is_taken_away_gets_what_is_added(patch: pytest.MonkeyPatch) -> None:
    """The gradient of a difference, its sign forgotten where the operand is repeated."""
    plant(
        patch,
        arithmetic,
        "_negative_sum",
        "Scale(-1.0)",
        "Scale(float(found is gradient) * -2 + 1)",
    )


def the_smaller_one_gets_the_gradient(patch: pytest.MonkeyPatch) -> None:
    """A minimum has the gradient of a maximum; nobody sees it where both are the same tensor."""
    piece = "_share_sum(tape, dy, b, a, a), _share_sum(tape, dy, a, b, b)"
    instead = "_share_sum(tape, dy, a, b, a), _share_sum(tape, dy, b, a, b)"
    plant(patch, Arithmetic, "vjp", piece, instead)


def what_is_kept_is_what_is_dropped(patch: pytest.MonkeyPatch) -> None:
    """The gradient of a choice goes to the other one."""
    plant(patch, Arithmetic, "vjp", "self.function, dy, b, a), None", "'keep', dy, b, a), None")


def a_product_of_matrices_forgets_to_turn_one(patch: pytest.MonkeyPatch) -> None:
    """The gradient of a^T b; where b has the shape of y, nothing is refused."""
    plant(patch, MatMul, "vjp", 'MatMul("nt"), (b, dy)', 'MatMul("nt"), (dy, b)')


def every_largest_one_gets_all(patch: pytest.MonkeyPatch) -> None:
    """Right where none are equal."""
    plant(patch, MaxAlong, "vjp", 'Arithmetic("divide"), (dy', 'Arithmetic("keep"), (dy')


def steps_begin_at_0(patch: pytest.MonkeyPatch) -> None:
    """The gradient of x[::2] is that of x[1::2]."""
    plant(patch, StridedSlice, "vjp", "self.start", "(0,) * len(self.start)")


def operands_lie_in_logical_order(patch: pytest.MonkeyPatch) -> None:
    """Channels-last is forgotten: right for rows and for whole images of one channel."""
    plant(patch, walks, "steps_of", "memory_order(shape)", "range(len(shape))")


def a_permutation_undoes_itself(patch: pytest.MonkeyPatch) -> None:
    """True of exchanges, not of cycles."""
    plant(patch, Permute, "vjp", "np.argsort(self.axes)", "self.axes")


def a_mean_of_one_chunk_is_a_sum(patch: pytest.MonkeyPatch) -> None:
    """Small tensors are summed without the pass that multiplies."""
    plant(patch, kernels, "sum_axes", "chunks > 1 or op.factor != 1", "chunks > 1")


def a_repetition_forgets_its_factor(patch: pytest.MonkeyPatch) -> None:
    """The gradient of a mean is that of a sum."""
    plant(patch, strided, "spread", "op.factor", "1.0")


def logarithms_go_back_as_probabilities(patch: pytest.MonkeyPatch) -> None:
    """log-softmax has softmax' gradient."""
    plant(patch, SoftmaxAlong, "vjp", "self.axis, self.log", "self.axis")


def the_target_gets_the_predictions_gradient(patch: pytest.MonkeyPatch) -> None:
    """Nobody asks for it, most of the time."""
    plant(patch, ValueLoss, "vjp", "of_target=True", "of_target=False")


def ignored_labels_have_a_slope(patch: pytest.MonkeyPatch) -> None:
    """Their loss is 0, their gradient that of class 0."""
    piece = "np.where(valid, -weights[chosen] * dy.reshape(-1), 0)"
    plant(patch, LabelLikelihoodGrad, "reference", piece, "-weights[chosen] * dy.reshape(-1)")


def slopes_of_prelu_lie_along_rows(patch: pytest.MonkeyPatch) -> None:
    """A slope for each channel is repeated as the last axis."""
    planted = plant(patch, activations, "prelu", "weight.shape[0] > 1 and", "False and")
    patch.setattr(functional, "prelu", planted)


def groups_are_those_of_the_batch(patch: pytest.MonkeyPatch) -> None:
    """A group norm over the images, not over the channels of each."""
    piece = "channels // num_groups * math.prod(input.shape[2:])"
    planted = plant(patch, norm, "group_norm", piece, "input.numel() // num_groups")
    patch.setattr(functional, "group_norm", planted)


BUGS: dict[str, tuple[str, Plant]] = {
    bug.__name__: (law, bug)
    for law, bug in (
        ("composed", slopes_are_taken_at_the_output),
        ("arithmetic", only_axes_that_are_missing_are_summed),
        ("axes", a_spreading_forgets_its_factor_in_backward),
        ("arithmetic", the_divisor_gets_the_gradient_of_a_factor),
        ("arithmetic", what_is_taken_away_gets_what_is_added),
        ("arithmetic", operands_lie_in_logical_order),
        ("axes", a_permutation_undoes_itself),
        ("axes", a_mean_of_one_chunk_is_a_sum),
        ("axes", a_repetition_forgets_its_factor),
        ("choices", the_smaller_one_gets_the_gradient),
        ("choices", what_is_kept_is_what_is_dropped),
        ("choices", every_largest_one_gets_all),
        ("matrices", a_product_of_matrices_forgets_to_turn_one),
        ("axes", steps_begin_at_0),
        ("losses", logarithms_go_back_as_probabilities),
        ("losses", the_target_gets_the_predictions_gradient),
        ("losses", ignored_labels_have_a_slope),
        ("composed", slopes_of_prelu_lie_along_rows),
        ("composed", groups_are_those_of_the_batch),
    )
}
