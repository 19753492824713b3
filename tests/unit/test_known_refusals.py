"""Arguments are taken and refused as they were: of layers, optimizers, schedules, transforms and
planners.

A range that ends one further is seen by nobody who stays inside. So every argument of every class
gets a handful of values, the others stay as they are in `MADE`, and a table says what becomes of
each: the code of the refusal, or a digest of what is made and of the step that it is recorded as.
`support/known.py` says why the answers are written down.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support import known
from support.known_steps import MACHINE, budget, row_of, step
from support.quick import every

import ooctrain as oc
from ooctrain import nn, optim
from ooctrain.data import transforms
from ooctrain.errors import OoctrainError
from ooctrain.execution.planners import PLANNERS
from ooctrain.optim import lr_scheduler
from ooctrain.sched.planning.effort import Effort
from ooctrain.sched.planning.question import Question
from ooctrain.sched.schedule import BYTES
from ooctrain.tracing import trace

VALUES = (-1, 0, 1, 2, 4, 0.5, 1.5, -0.25, math.nan, math.inf, True, "sum", "same", "valid", None,
          (1, 2), (2, 0.5), (0, 1, 2, 3))  # fmt: skip
SHAPE = 2, 4, 7, 10
#: {a layer: arguments that it cannot do without}; all others are as their defaults say.
LAYERS: Mapping[str, Mapping[str, Any]] = {
    "AdaptiveAvgPool2d": {"output_size": 3}, "AvgPool2d": {"kernel_size": 3},
    "MaxPool2d": {"kernel_size": 3}, "BatchNorm2d": {"num_features": 4},
    "ConstantPad2d": {"padding": 1, "value": 0.5}, "ReflectionPad2d": {"padding": 1},
    "ZeroPad2d": {"padding": 1}, "Dropout": {}, "Dropout2d": {}, "Flatten": {}, "GELU": {},
    "Conv2d": {"in_channels": 4, "out_channels": 4, "kernel_size": 3},
    "ConvTranspose2d": {"in_channels": 4, "out_channels": 4, "kernel_size": 3},
    "GroupNorm": {"num_groups": 2, "num_channels": 4}, "InstanceNorm2d": {"num_features": 4},
    "LayerNorm": {"normalized_shape": 10}, "LeakyReLU": {}, "PReLU": {}, "LogSoftmax": {"dim": 1},
    "Linear": {"in_features": 10, "out_features": 3}, "PixelShuffle": {"upscale_factor": 2},
    "Softmax": {"dim": 1}, "StochasticDepth": {"p": 0.5, "mode": "row"},
    "Upsample": {"scale_factor": 2}, "ELU": {}, "CELU": {}, "Softplus": {}, "Hardtanh": {},
    "GLU": {"dim": 1}, "Softmin": {"dim": 1}, "LocalResponseNorm": {"size": 3},
    "ReplicationPad2d": {"padding": 1}, "CircularPad2d": {"padding": 1},
    "AdaptiveMaxPool2d": {"output_size": 3}, "PixelUnshuffle": {"downscale_factor": 1},
    "ChannelShuffle": {"groups": 2},
}  # fmt: skip
LOSSES = ("BCEWithLogitsLoss", "CrossEntropyLoss", "L1Loss", "MSELoss", "NLLLoss", "SmoothL1Loss")
OPTIMIZERS = ("SGD", "Adam", "AdamW", "RMSprop")
SCHEDULES: Mapping[str, Mapping[str, Any]] = {
    "CosineAnnealingLR": {"T_max": 5}, "ExponentialLR": {"gamma": 0.5}, "LinearLR": {},
    "MultiStepLR": {"milestones": (2, 4)}, "OneCycleLR": {"max_lr": 0.5, "total_steps": 9},
    "ReduceLROnPlateau": {}, "StepLR": {"step_size": 2},
}  # fmt: skip
TRANSFORMS: Mapping[str, Mapping[str, Any]] = {
    "CenterCrop": {"size": 4}, "RandomCrop": {"size": 5}, "RandomHorizontalFlip": {},
    "RandomVerticalFlip": {}, "Normalize": {"mean": [0.5, 1, 2, 3], "std": [1.0, 2, 3, 4]},
}  # fmt: skip


def layer(name: str, **given: Any) -> object:
    """With a convolution, so that there is something to train."""
    net = nn.Sequential(nn.Conv2d(4, 4, 1), getattr(nn, name)(**given), nn.Flatten())
    return repr(net[1]), row_of(trace(net, SHAPE, threads=2))


def loss(name: str, **given: Any) -> object:
    criterion, net = getattr(nn, name)(**given), nn.Sequential(nn.Flatten(), nn.Linear(280, 4))
    if name in ("CrossEntropyLoss", "NLLLoss"):
        net.append(nn.LogSoftmax(1))
        return row_of(trace(net, SHAPE, loss=criterion, threads=2))
    return repr(criterion)


def optimizer(name: str, **given: Any) -> object:
    made = getattr(optim, name)([nn.Parameter(np.ones(2, np.float32))], **given)
    return made.settings(), made.scalars(), made.slot_names(made.param_groups[0])


def schedule(name: str, **given: Any) -> object:
    """Rates of some epochs, and momenta."""
    of = optim.SGD([nn.Parameter(np.ones(2, np.float32))], lr=0.25, momentum=0.5)
    made, found = getattr(lr_scheduler, name)(of, **given), []
    for epoch in range(8):
        found.append((of.param_groups[0]["lr"], of.param_groups[0]["momentum"]))
        made.step(*[1.0 + epoch % 3] * (name == "ReduceLROnPlateau"))
    return found


def transform(name: str, **given: Any) -> object:
    image = np.arange(4 * 8 * 9, dtype=np.uint8).reshape(4, 8, 9)
    made = getattr(transforms, name)(**given)
    return [np.asarray(made(image, transforms.Draws(3, number))).tolist() for number in range(3)]


#: They search for long, or have a solver do it: only what they refuse is looked at.
DEAR = {"auto", "banded", "checkmate", "checkmate-lp", "combined", "sft"}


def planner(name: str, **given: Any) -> object:
    made = PLANNERS[name](**given)
    if name in DEAR:
        return ""
    asked = Question(step("plain"), budget("plain", 0.9), MACHINE, BYTES, effort=Effort(10))
    plan = made.plan(asked)
    return plan.peak_bytes, plan.schedule.to_json()


#: {a kind: (module, what is made of a name and arguments, {name: arguments})}
KINDS: Mapping[str, tuple[Any, Callable[..., object], Mapping[str, Mapping[str, Any]]]] = {
    "layer": (nn, layer, LAYERS), "loss": (nn, loss, {name: {} for name in LOSSES}),
    "optimizer": (optim, optimizer, {name: {} for name in OPTIMIZERS}),
    "schedule": (lr_scheduler, schedule, SCHEDULES),
    "transform": (transforms, transform, TRANSFORMS),
    "planner": (SimpleNamespace(**PLANNERS), planner,
                {name: {} for name in PLANNERS if inspect.signature(PLANNERS[name]).parameters}),
}  # fmt: skip
CASES = [(kind, name) for kind, (_, _, names) in KINDS.items() for name in names]


def outcomes(kind: str, name: str, given: Mapping[str, Any]) -> Iterator[known.Row]:
    module, make, _ = KINDS[kind]

    def outcome(**changed: Any) -> str:
        oc.manual_seed(0)
        try:
            return known.digest(make(name, **{**given, **changed}))[:6]
        except OoctrainError as refusal:
            return f"{refusal.code} {known.digest(refusal.numbers)[:4]}"
        except Exception as error:  # a value of another kind than the annotation says
            return type(error).__name__

    yield "as it is", outcome()
    for argument in inspect.signature(getattr(module, name)).parameters:
        if argument not in ("params", "optimizer", "last_epoch"):
            yield argument, *(outcome(**{argument: value}) for value in VALUES)


@pytest.mark.parametrize(("kind", "name"), every(CASES, 2, names=2))
def test_arguments_are_taken_and_refused_as_they_were(kind, name):
    given = KINDS[kind][2][name]
    known.check_rows("refusals", f"{kind} {name}", outcomes(kind, name, given))


def test_every_row_is_of_a_class():
    assert known.whose("refusals") == {f"{kind} {name}" for kind, name in CASES}
