"""Planted bugs of kept calls: what is worked out once, though it changes from step to step.

`BUGS` is {name: (the operation and its inputs, a function that plants the bug)}. With each of them
the first step is right, and so is every eager call. Read next: `planting.py`, `test_kept_bugs.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from support.op_samples import SAMPLES
from zoo.planting import plant

from ooctrain.devices.cpu.launches import BoundOperation
from ooctrain.layers.batch_norm import BatchNormGradApply
from ooctrain.layers.instance_norm import InstanceNormApply
from ooctrain.layers.kernels.cpu import batch_norm, update
from ooctrain.layers.kernels.cpu import losses as kernels
from ooctrain.layers.kernels.cpu.runtime.kept import KernelRecorder
from ooctrain.layers.losses import MeanErrorGrad
from ooctrain.layers.reduction import ChannelSum
from ooctrain.layers.update import ClipValue, SGDUpdate
from ooctrain.step.op import Op

Plant = Callable[[pytest.MonkeyPatch], Any]
Case = tuple[Op, tuple[Any, ...]]


def numpy_computes_once(patch: pytest.MonkeyPatch) -> None:
    """A function that computes by itself does not say so."""
    plant(patch, update, "clip_value", "pool.every_time()", "pass")


def a_gradient_is_looked_at_once(patch: pytest.MonkeyPatch) -> None:
    """The kernels get the number that the first step's loss had."""
    plant(patch, kernels, "mean_error_grad", "pool.every_time()", "pass")


def zeros_are_written_once(patch: pytest.MonkeyPatch) -> None:
    """They lie in the workspace, where the next call writes."""
    plant(patch, batch_norm, "grad_apply", "fill(pool, dgamma, 0.0)", "dgamma[:] = 0")


def numbers_stay(patch: pytest.MonkeyPatch) -> None:
    """A changed learning rate is not seen."""
    plant(patch, BoundOperation, "_reads_the_same", "scalars[name] == value", "name in scalars")


def parts_begin_where_their_array_does(patch: pytest.MonkeyPatch) -> None:
    """How far within an array a part lies is forgotten."""
    plant(patch, KernelRecorder, "_within", "number, address - start", "number, 0")


def arrays_stay_where_they_were(patch: pytest.MonkeyPatch) -> None:
    """Of arrays that begin where an array of the operation does, the address is not filled in."""
    plant(patch, KernelRecorder, "_within", "start <= address", "start < address")


def sample(kind: type[Op], **attributes: Any) -> Case:
    """The first sample of an operation that has these attributes."""
    wanted = attributes.items()
    return next(
        case for case in SAMPLES
        if type(case[0]) is kind and all(getattr(case[0], k) == v for k, v in wanted)
    )  # fmt: skip


BUGS: dict[str, tuple[Case, Plant]] = {
    bug.__name__: (case, bug)
    for case, bug in (
        (sample(ClipValue), numpy_computes_once),
        (sample(MeanErrorGrad), a_gradient_is_looked_at_once),
        (sample(BatchNormGradApply, batch_stats=False), zeros_are_written_once),
        (sample(SGDUpdate), numbers_stay),
        (sample(InstanceNormApply), parts_begin_where_their_array_does),
        (sample(ChannelSum), arrays_stay_where_they_were),
    )
}
