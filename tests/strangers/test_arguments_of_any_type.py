"""Whatever is given for an argument of a public callable: a right result, or an error of ours.

`DOORS` has what strangers call, each with arguments that are right and a use of what comes out.
Each argument in turn is replaced by everything people put there by mistake: text, None, a truth, a
number that is negative, broken, infinite or too large, an array, a list, an object. No error of
Python's or NumPy's own comes out, at once or in the use. And numbers of NumPy, also as arrays
without axes, count as the numbers that they are.
"""

from __future__ import annotations

import inspect
import math
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ooctrain as oc
from ooctrain import data, nn, optim
from ooctrain import functional as F
from ooctrain.data import transforms
from ooctrain.errors import OoctrainError
from ooctrain.nn import init

#: What people give by mistake, each made anew.
WRONG: Mapping[str, Callable[[], Any]] = {
    "a number as text": lambda: "8", "text": lambda: "same", "no text": lambda: "",
    "None": lambda: None, "True": lambda: True, "False": lambda: False,
    "0": lambda: 0, "-1": lambda: -1, "2": lambda: 2, "7": lambda: 7, "0.5": lambda: 0.5,
    "1.5": lambda: 1.5, "-0.25": lambda: -0.25, "nan": lambda: math.nan, "inf": lambda: math.inf,
    "-inf": lambda: -math.inf, "2**70": lambda: 1 << 70, "-2**70": lambda: -(1 << 70),
    "1e400 as whole": lambda: 10**400, "int64": lambda: np.int64(2),
    "float32": lambda: np.float32(0.5), "bool_": lambda: np.bool_(True),
    "an array of none": lambda: np.array(2), "an array of one": lambda: np.array([0.5]),
    "an array": lambda: np.float32([1, 2, 3]), "an empty list": list, "a list": lambda: [1, 2],
    "a list of text": lambda: ["a", "b"], "a list of None": lambda: [None, None],
    "a tuple": lambda: (2, 0.5), "a pair": lambda: (1, 2), "four": lambda: (0, 1, 0, 1),
    "a dict": lambda: {"a": 1}, "a set": lambda: {1, 2}, "bytes": lambda: b"8",
    "complex": lambda: 1j, "an object": object, "a class": lambda: int,
    "a function": lambda: lambda *_: None, "a tensor": lambda: oc.tensor(np.float32([1, 2])),
    "a tensor of one": lambda: oc.tensor(np.float32(2)), "a module": lambda: nn.ReLU(),
    "a generator": lambda: iter((1, 2)), "nested": lambda: [[1], [2, 3]],
}  # fmt: skip


@pytest.fixture(autouse=True)
def elsewhere(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some doors take text for the name of a file that they write."""
    monkeypatch.chdir(tmp_path_factory.getbasetemp())


@dataclass
class Door:
    """Something to call, with right arguments, and what is done with what it gives."""

    call: Callable[..., Any]
    given: Callable[[], dict[str, Any]]
    use: Callable[[Any], Any]
    #: of `given`: arguments that are not tried
    kept: tuple[str, ...] = ()

    def outcome(self, argument: str | None = None, value: Any = None) -> Any:
        oc.manual_seed(0)
        arguments = self.given()
        if argument is not None:
            arguments[argument] = value
        return self.use(self.call(**arguments))

    def arguments(self) -> Iterator[str]:
        for name, parameter in inspect.signature(self.call).parameters.items():
            named = parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
            if named and name not in self.kept:
                yield name


def images(shape=(2, 4, 6, 6), numbers=None):
    numbers = np.random.default_rng(0) if numbers is None else numbers
    return oc.tensor(numbers.standard_normal(shape).astype(np.float32), requires_grad=True)


def plain(found: Any) -> Any:
    """What comes out, in a form that is compared."""
    if isinstance(found, oc.Tensor):
        return found.shape, found.numpy().tobytes()
    if isinstance(found, tuple | list):
        return [plain(each) for each in found]
    return found


def applied(layer: Any, *others: Any, shape: tuple[int, ...] = (2, 4, 6, 6)) -> Any:
    """A layer's result and gradient, in eager mode."""
    x = images(shape)
    y = layer(x, *others)
    y.sum().backward()
    return plain([y, x.grad])


def differentiated(found: Any) -> Any:
    first = found[0] if isinstance(found, tuple) else found
    if first.requires_grad:
        first.sum().backward()
    return plain(found)


LAYERS: Mapping[str, Mapping[str, Any]] = {
    "AdaptiveAvgPool2d": {"output_size": 3}, "AdaptiveMaxPool2d": {"output_size": 3},
    "AvgPool2d": {"kernel_size": 2}, "BatchNorm2d": {"num_features": 4}, "CELU": {},
    "ChannelShuffle": {"groups": 2}, "CircularPad2d": {"padding": 1},
    "ConstantPad2d": {"padding": 1, "value": 0.5},
    "Conv2d": {"in_channels": 4, "out_channels": 2, "kernel_size": 3},
    "ConvTranspose2d": {"in_channels": 4, "out_channels": 2, "kernel_size": 3},
    "Dropout": {"p": 0.25}, "Dropout2d": {"p": 0.25}, "ELU": {}, "Flatten": {}, "GELU": {},
    "GLU": {"dim": 1}, "GroupNorm": {"num_groups": 2, "num_channels": 4}, "Hardsigmoid": {},
    "Hardswish": {}, "Hardtanh": {}, "Identity": {}, "InstanceNorm2d": {"num_features": 4},
    "LayerNorm": {"normalized_shape": 6}, "LeakyReLU": {"negative_slope": 0.25},
    "Linear": {"in_features": 6, "out_features": 2}, "LocalResponseNorm": {"size": 2},
    "LogSigmoid": {}, "LogSoftmax": {"dim": 1}, "MaxPool2d": {"kernel_size": 2}, "Mish": {},
    "PReLU": {}, "PixelShuffle": {"upscale_factor": 2}, "PixelUnshuffle": {"downscale_factor": 2},
    "ReLU": {}, "ReLU6": {}, "ReflectionPad2d": {"padding": 1},
    "ReplicationPad2d": {"padding": 1}, "SELU": {}, "SiLU": {}, "Sigmoid": {},
    "Softmax": {"dim": 1}, "Softmax2d": {}, "Softmin": {"dim": 1}, "Softplus": {}, "Softsign": {},
    "StochasticDepth": {"p": 0.5, "mode": "row"}, "Tanh": {}, "Tanhshrink": {},
    "Upsample": {"scale_factor": 2, "mode": "bilinear"}, "ZeroPad2d": {"padding": 1},
}  # fmt: skip


def classes():
    return oc.tensor(np.array([1, 0]))


def targets():
    return oc.tensor(np.float32([[0, 1, 0], [1, 0, 0]]))


LOSSES: Mapping[str, Callable[[], Any]] = {
    "BCEWithLogitsLoss": targets, "CrossEntropyLoss": classes, "L1Loss": targets,
    "MSELoss": targets, "NLLLoss": classes, "SmoothL1Loss": targets,
}  # fmt: skip


def tensor(*shape: int) -> Callable[[], Any]:
    return lambda: images(shape)


#: {function: makers of what it needs, or values}
FUNCTIONS: Mapping[str, Mapping[str, Any]] = {
    "adaptive_avg_pool2d": {"output_size": 2}, "adaptive_max_pool2d": {"output_size": 2},
    "avg_pool2d": {"kernel_size": 2},
    "batch_norm": {"running_mean": tensor(4), "running_var": lambda: images((4,)) * 0 + 1.0},
    "binary_cross_entropy_with_logits": {"input": tensor(2, 3), "target": targets},
    "bmm": {"input": tensor(2, 3, 4), "mat2": tensor(2, 4, 5)},
    "cat": {"tensors": lambda: [images(), images()], "input": None}, "celu": {},
    "channel_shuffle": {"groups": 2}, "chunk": {"chunks": 2},
    "conv2d": {"weight": tensor(2, 4, 3, 3)}, "conv_transpose2d": {"weight": tensor(4, 2, 3, 3)},
    "cross_entropy": {"input": tensor(2, 3), "target": classes}, "dropout": {}, "dropout2d": {},
    "elu": {}, "flatten": {}, "gelu": {}, "glu": {"dim": 1}, "group_norm": {"num_groups": 2},
    "hardsigmoid": {}, "hardswish": {}, "hardtanh": {}, "instance_norm": {},
    "interpolate": {"scale_factor": 2}, "l1_loss": {"input": tensor(2, 3), "target": targets},
    "layer_norm": {"normalized_shape": 6}, "leaky_relu": {},
    "linear": {"weight": tensor(2, 6)}, "local_response_norm": {"size": 2},
    "log_softmax": {"dim": 1}, "logsigmoid": {},
    "matmul": {"input": tensor(3, 4), "other": tensor(4, 5)}, "max_pool2d": {"kernel_size": 2},
    "maximum": {"other": images}, "minimum": {"other": images}, "mish": {},
    "mse_loss": {"input": tensor(2, 3), "target": targets},
    "nll_loss": {"input": tensor(2, 3), "target": classes}, "normalize": {},
    "pad": {"pad": (1, 1, 1, 1)}, "pixel_shuffle": {"upscale_factor": 2},
    "pixel_unshuffle": {"downscale_factor": 2}, "prelu": {"weight": tensor(1)}, "relu": {},
    "relu6": {}, "scaled_dot_product_attention": {
        "query": tensor(2, 3, 4), "key": tensor(2, 3, 4), "value": tensor(2, 3, 4), "input": None},
    "selu": {}, "sigmoid": {}, "silu": {},
    "smooth_l1_loss": {"input": tensor(2, 3), "target": targets}, "softmax": {"dim": 1},
    "softmin": {"dim": 1}, "softplus": {}, "softsign": {},
    "split": {"split_size_or_sections": 2, "tensor": images, "input": None},
    "stack": {"tensors": lambda: [images(), images()], "input": None},
    "stochastic_depth": {"p": 0.5, "mode": "row"}, "tanh": {}, "tanhshrink": {},
    "where": {"condition": lambda: images() * 0, "other": 0.5},
}  # fmt: skip


def made(values: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of a function; `input` is images where nothing else is said."""
    found = {name: value() if callable(value) else value
             for name, value in {"input": images, **values}.items()}  # fmt: skip
    return {name: value for name, value in found.items() if name != "input" or value is not None}


def parameters():
    oc.manual_seed(1)
    return [nn.Parameter(np.ones(3, np.float32)), nn.Parameter(np.ones((2, 2), np.float32))]


def updated(optimizer: Any) -> Any:
    """Values of the parameters after two eager steps."""
    held = [p for group in optimizer.param_groups for p in group["params"]]
    for _ in range(2):
        optimizer.zero_grad()
        sum(((p * p).sum() for p in held), start=oc.tensor(np.float32(0))).backward()
        optimizer.step()
    return [p.numpy().tobytes() for p in held]


OPTIMIZERS = {"SGD": {"momentum": 0.5, "lr": 0.25}, "Adam": {}, "AdamW": {},
              "RMSprop": {"momentum": 0.5}}  # fmt: skip


def sgd():
    return optim.SGD(parameters(), lr=0.25, momentum=0.5)


def followed(schedule: Any) -> Any:
    """Rates of some steps."""
    groups, found = schedule.optimizer.param_groups, []
    for number in range(6):
        found.append((groups[0]["lr"], groups[0]["momentum"]))
        schedule.optimizer.step()
        schedule.step(*[1.0 + number] * isinstance(schedule, optim.ReduceLROnPlateau))
    assert all(math.isfinite(lr) and math.isfinite(momentum) for lr, momentum in found)
    return found


SCHEDULES: Mapping[str, Mapping[str, Any]] = {
    "CosineAnnealingLR": {"T_max": 5}, "ExponentialLR": {"gamma": 0.5}, "LinearLR": {},
    "MultiStepLR": {"milestones": (2, 4)}, "OneCycleLR": {"max_lr": 0.5, "total_steps": 9},
    "ReduceLROnPlateau": {}, "StepLR": {"step_size": 2},
    "SequentialLR": {"milestones": (2,)},
}  # fmt: skip


def scheduled(name: str) -> dict[str, Any]:
    found = {"optimizer": sgd(), **SCHEDULES[name]}
    if name == "SequentialLR":
        chosen = found["optimizer"]
        found["schedulers"] = [optim.StepLR(chosen, 2), optim.ExponentialLR(chosen, 0.5)]
    return found


def samples():
    numbers = np.random.default_rng(0)
    return data.TensorDataset(numbers.standard_normal((6, 2, 4, 4)).astype(np.float32),
                              np.arange(6) % 3)  # fmt: skip


def batches(loader: Any) -> Any:
    return [(x.tobytes(), y.tobytes()) for x, y in loader]


def looked_at(found: Any) -> Any:
    if not len(found):
        return 0
    x, y = found[0]
    return len(found), np.asarray(x).tobytes(), np.asarray(y).tobytes()


def network():
    oc.manual_seed(1)
    return nn.Sequential(nn.Conv2d(2, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(12, 3))


def trained(trainer: Any) -> Any:
    x, y = samples().tensors
    with trainer:
        return trainer.step(x, y)


def planned(trace: Any) -> Any:
    return oc.plan(trace, "90%", planner="belady").peak_bytes


@dataclass
class Once:
    """A step that is traced once."""

    found: Any = None

    def trace(self) -> Any:
        self.found = self.found or oc.trace(network(), (6, 2, 4, 4), threads=1)
        return self.found


STEP = Once()


def peak(plan: Any) -> Any:
    return plan.peak_bytes, plan.makespan_us


def images_of(made_of: Any) -> Any:
    if isinstance(made_of, data.Augmentation):
        return repr(made_of)
    image = np.arange(2 * 8 * 9, dtype=np.uint8).reshape(2, 8, 9)
    return np.asarray(made_of(image, transforms.Draws(3, 1))).tobytes()


TRANSFORMS: Mapping[str, Mapping[str, Any]] = {
    "Augmentation": {"crop": 4, "pad": 1}, "CenterCrop": {"size": 4}, "RandomCrop": {"size": 5},
    "RandomHorizontalFlip": {}, "RandomVerticalFlip": {}, "Compose": {"transforms": ()},
    "Normalize": {"mean": [0.5, 1.0], "std": [1.0, 2.0]},
}  # fmt: skip
INITS: Mapping[str, Mapping[str, Any]] = {
    "constant_": {"val": 0.5}, "dirac_": {}, "eye_": {"tensor": tensor(3, 3)},
    "kaiming_normal_": {}, "kaiming_uniform_": {}, "normal_": {}, "ones_": {}, "orthogonal_": {},
    "trunc_normal_": {}, "uniform_": {}, "xavier_normal_": {}, "xavier_uniform_": {}, "zeros_": {},
}  # fmt: skip
METHODS: Mapping[str, Mapping[str, Any]] = {
    "flatten": {}, "unsqueeze": {"dim": 0}, "squeeze": {}, "transpose": {"dim0": 0, "dim1": 1},
    "narrow": {"dim": 1, "start": 1, "length": 2}, "select": {"dim": 1, "index": 0},
    "split": {"split_size_or_sections": 2}, "chunk": {"chunks": 2}, "unbind": {},
    "roll": {"shifts": 1, "dims": 1}, "sum": {}, "mean": {}, "amax": {"dim": 1}, "amin": {"dim": 1},
    "max": {}, "min": {}, "norm": {}, "logsumexp": {"dim": 1},
    "masked_fill": {"mask": lambda: images() * 0, "value": 1.0}, "pow": {"exponent": 2.0},
    "clamp": {"min": 0.0}, "var": {}, "std": {}, "requires_grad_": {},
    "matmul": {"other": tensor(2, 4, 6, 3)}, "maximum": {"other": images},
    "where": {"condition": lambda: images() * 0, "other": 0.5}, "eq": {"other": 0.5},
    "gt": {"other": 0.5}, "expand_as": {"other": images}, "copy_": {"array": images},
}  # fmt: skip
MAKERS: Mapping[str, Mapping[str, Any]] = {
    "arange": {"start": 3}, "as_tensor": {"data": [1.0]}, "eye": {"n": 3},
    "from_numpy": {"ndarray": np.ones(2, np.float32)}, "full": {"size": (2, 3), "fill_value": 0.5},
    "full_like": {"input": tensor(2), "fill_value": 0.5}, "linspace": {
        "start": 0.0, "end": 1.0, "steps": 3}, "ones_like": {"input": tensor(2)},
    "rand_like": {"input": tensor(2)}, "randint": {"low": 0, "high": 5, "size": (2, 2)},
    "randn_like": {"input": tensor(2)}, "randperm": {"n": 4}, "tensor": {"array": [1.0, 2.0]},
    "zeros_like": {"input": tensor(2)},
}  # fmt: skip


def variadic(make: Callable[..., Any]) -> Callable[..., Any]:
    return lambda first=2: make(first)


def weighted(loss: Any, target: Callable[[], Any]) -> Any:
    return applied(loss, target(), shape=(2, 3))


def doors() -> dict[str, Door]:
    found = {f"nn.{name}": Door(getattr(nn, name), partial(dict, given), applied)
             for name, given in LAYERS.items()}  # fmt: skip
    found["nn.BatchNorm1d"] = Door(
        nn.BatchNorm1d, partial(dict, num_features=4), partial(applied, shape=(3, 4)))  # fmt: skip
    found["F.from_bytes"] = Door(
        F.from_bytes, lambda: {"input": oc.tensor(np.ones((2, 3, 4, 4), np.uint8))}, plain
    )
    found |= {f"Tensor.{name}": Door(
        getattr(oc.Tensor, name),
        lambda given=given: {"self": images(), **made({"input": None, **given})},
        differentiated, ("self",)) for name, given in METHODS.items()}  # fmt: skip
    found["nn.FromBytes"] = Door(
        nn.FromBytes, dict, lambda made: plain(made(oc.tensor(np.ones((2, 3, 4, 4), np.uint8))))
    )
    found |= {f"nn.{name}": Door(getattr(nn, name), dict, partial(weighted, target=target))
              for name, target in LOSSES.items()}  # fmt: skip
    found |= {f"F.{name}": Door(getattr(F, name), partial(made, values), differentiated)
              for name, values in FUNCTIONS.items()}  # fmt: skip
    found |= {f"optim.{name}": Door(
        getattr(optim, name), lambda given=given: {"params": parameters(), **given}, updated)
        for name, given in OPTIMIZERS.items()}  # fmt: skip
    found |= {f"optim.{name}": Door(getattr(optim, name), partial(scheduled, name), followed)
              for name in SCHEDULES}  # fmt: skip
    found |= {f"init.{name}": Door(
        getattr(init, name), partial(made, {"tensor": tensor(3, 2, 3, 3), "input": None, **given}),
        plain) for name, given in INITS.items()}  # fmt: skip
    found |= {f"oc.{name}": Door(getattr(oc, name), partial(made, {"input": None, **given}), plain)
              for name, given in MAKERS.items()}  # fmt: skip
    found |= {f"oc.{name}": Door(variadic(getattr(oc, name)), dict, plain)
              for name in ("ones", "rand", "randn", "zeros")}  # fmt: skip
    found |= {f"transforms.{name}": Door(getattr(transforms, name), partial(dict, given), images_of)
              for name, given in TRANSFORMS.items()}  # fmt: skip
    found |= {
        "nn.Parameter": Door(nn.Parameter, partial(dict, data=[1.0, 2.0]), plain),
        "nn.ModuleDict": Door(nn.ModuleDict, dict, len),
        "nn.ModuleList": Door(nn.ModuleList, dict, len),
        "nn.Sequential": Door(variadic(nn.Sequential), lambda: {"first": nn.ReLU()}, applied),
        "data.DataLoader": Door(data.DataLoader, lambda: {"dataset": samples(), "batch_size": 2},
                                batches),
        "data.TensorDataset": Door(lambda x, y: data.TensorDataset(x, y), lambda: {
            "x": np.ones((3, 2, 4, 4), np.float32), "y": np.arange(3)}, looked_at),
        "data.Subset": Door(data.Subset, lambda: {"dataset": samples(), "indices": [1, 2]},
                            lambda part: batches(data.DataLoader(part))),
        "data.random_split": Door(
            data.random_split, lambda: {"dataset": samples(), "lengths": [4, 2]},
            lambda parts: [looked_at(part) for part in parts if len(part)]),
        "data.synthetic": Door(data.synthetic, dict, looked_at),
        "data.synthetic_images": Door(data.synthetic_images, dict, looked_at),
        "data.synthetic_pixels": Door(data.synthetic_pixels, dict, looked_at),
        "data.digits": Door(data.digits, dict, looked_at),
        "data.load": Door(data.load, lambda: {"text": "synthetic"}, looked_at),
        "oc.Trainer": Door(oc.Trainer, lambda: {"model": network(), "threads": 1}, trained),
        "oc.Options": Door(oc.Options, lambda: {"threads": 1},
                           lambda options: trained(oc.Trainer(network(), options=options))),
        "oc.trace": Door(oc.trace, lambda: {
            "model": network(), "input_shape": (6, 2, 4, 4), "threads": 1}, planned),
        "oc.plan": Door(oc.plan, lambda: {
            "trace": STEP.trace(), "planner": "belady", "budget": "90%"}, peak),
        "oc.lower_bound": Door(oc.lower_bound, lambda: {
            "trace": STEP.trace(), "budget": "90%"}, lambda bound: bound.makespan_us),
        "oc.resolve_budget": Door(
            oc.resolve_budget, lambda: {"trace": STEP.trace(), "budget": "90%"}, plain),
        "oc.manual_seed": Door(oc.manual_seed, partial(dict, seed=3), plain),
        "oc.machine": Door(oc.machine, dict, lambda machine: machine.name),
        "models.build": Door(oc.models.build, partial(dict, name="lenet"),
                             lambda model: len(model.state_dict())),
        "models.resnet18": Door(oc.models.resnet18, dict, lambda model: len(list(model.modules()))),
        "utils.clip_grad_norm_": Door(
            oc.utils.clip_grad_norm_, lambda: {"parameters": with_gradients(), "max_norm": 1.0},
            plain),
        "utils.clip_grad_value_": Door(
            oc.utils.clip_grad_value_, lambda: {"parameters": with_gradients(), "clip_value": 1.0},
            plain),
        "oc.split": Door(oc.split, lambda: {"model": network()}, plain_split),
        "oc.tile": Door(oc.tile, lambda: {"trace": STEP.trace(), "grid": (2, 1)}, planned),
        "oc.equal_stages": Door(oc.equal_stages, dict, planned),
        "oc.toy_machine": Door(oc.toy_machine, dict, lambda machine: machine.name),
        "oc.apply_rewrites": Door(oc.apply_rewrites, lambda: {
            "trace": STEP.trace(), "names": ("fuse",)}, planned),
        "oc.simulate": Door(oc.simulate, lambda: {
            "schedule": oc.plan(STEP.trace(), "100%", planner="keep-all", rewrites=()),
            "trace": STEP.trace()}, lambda timeline: timeline.makespan_us),
    }  # fmt: skip
    return found | methods()


def trainer():
    return oc.Trainer(network(), threads=1)


def pair():
    return samples().tensors


def saved_in(folder: str) -> str:
    path = f"{folder}/run.safetensors"
    if not os.path.exists(path):
        with trainer() as made_of:
            made_of.step(*pair())
            made_of.save(path)
    return path


def weights_in(folder: str) -> str:
    path = f"{folder}/weights.safetensors"
    oc.save(network().state_dict(), path)
    return path


def methods() -> dict[str, Door]:
    """Methods of trainers, models, optimizers and schedules, each of a fresh object."""
    folder = tempfile.mkdtemp()

    def door(made_of: Any, method: str, /, **given: Any) -> Door:
        arguments = {"self": made_of, **{k: (lambda v=v: v) for k, v in given.items()}}
        return Door(getattr(type(made_of()), method), lambda: {
            k: make() for k, make in arguments.items()}, lambda _: None, ("self",))  # fmt: skip

    x, y = pair()
    schedule = partial(lambda: optim.StepLR(sgd(), 2))
    return {
        "Trainer.step": door(trainer, "step", x=x, y=y),
        "Trainer.fit": door(trainer, "fit", batches=[(x, y)]),
        "Trainer.evaluate": door(trainer, "evaluate", batches=[(x, y)]),
        "Trainer.predict": door(trainer, "predict", x=x),
        "Trainer.prepare": door(trainer, "prepare", input_shape=x.shape),
        "Trainer.save": door(trainer, "save", path=f"{folder}/a.safetensors"),
        "Trainer.resume": door(trainer, "resume", path=saved_in(folder)),
        "Module.load_state_dict": door(
            network, "load_state_dict", state_dict=network().state_dict()),
        "Module.register_buffer": door(network, "register_buffer", name="b", tensor=x),
        "Module.get_submodule": door(network, "get_submodule", target="0"),
        "Module.add_module": door(network, "add_module", name="b", module=nn.ReLU()),
        "Module.train": door(network, "train"),
        "Module.requires_grad_": door(network, "requires_grad_"),
        "Module.zero_grad": door(network, "zero_grad"),
        "Module.state_dict": door(network, "state_dict"),
        "Module.apply": door(network, "apply", fn=lambda module: None),
        "Optimizer.load_state_dict": door(sgd, "load_state_dict", state_dict=sgd().state_dict()),
        "Optimizer.add_param_group": door(
            sgd, "add_param_group", param_group={"params": parameters()}),
        "Optimizer.zero_grad": door(sgd, "zero_grad"),
        "StepLR.load_state_dict": door(
            schedule, "load_state_dict", state_dict=schedule().state_dict()),
        "ReduceLROnPlateau.step": door(
            lambda: optim.ReduceLROnPlateau(sgd()), "step", metrics=1.0),
        "oc.save": Door(oc.save, lambda: {
            "state_dict": network().state_dict(), "path": f"{folder}/b.safetensors"}, plain),
        "oc.load": Door(oc.load, lambda: {"path": weights_in(folder)}, len),
        "oc.verify": Door(oc.verify, lambda: {
            "plan": oc.plan(STEP.trace(), "100%", planner="keep-all", rewrites=()),
            "original_trace": STEP.trace(), "budget": "100%"}, plain),
        "oc.execute": Door(oc.execute, lambda: {
            "plan": oc.plan(STEP.trace(), "100%", planner="keep-all", rewrites=()),
            "model": network(), "batch": pair()}, lambda done: done.loss),
        "oc.fluid_bound": Door(oc.fluid_bound, lambda: {
            "trace": STEP.trace(), "budget_bytes": 10**6, "machine": oc.machine("v100-pcie")},
            lambda bound: bound and bound.makespan_us),
        "oc.trace_peak_bytes": Door(
            oc.trace_peak_bytes, lambda: {"trace": STEP.trace()}, plain),
        "data.shape_of": Door(data.shape_of, lambda: {"dataset": samples()}, plain),
    }  # fmt: skip


def plain_split(model):
    return planned(oc.trace(model, (6, 2, 4, 4), threads=1))


def with_gradients():
    found = parameters()
    for p in found:
        (p * p).sum().backward()
    return found


DOORS = doors()
PLACES = [(door, argument) for door, each in DOORS.items() for argument in each.arguments()]
#: A function of the user's own raises what it raises.
FUNCTIONS_OF_ONES_OWN = {
    "on_step",
    "config",
    "fn",
    "initial",
    "transform",
    "share",
    "loss",
    "transforms",
    "looked_at",
}
CALLED = {"a class", "a function", "a module"}


def fell(door: str, argument: str, wrong: str) -> str | None:
    """What is raised that is not ours."""
    try:
        DOORS[door].outcome(argument, WRONG[wrong]())
    except OoctrainError as error:
        return None if error.code and error.what else "an error without a code"
    except MemoryError:  # the system's own word
        return None
    except Exception as error:
        own = argument in FUNCTIONS_OF_ONES_OWN and wrong in CALLED
        as_torch = door == "Module.get_submodule" and isinstance(error, AttributeError)
        return None if own or as_torch else f"{door}, {argument}, {wrong}: {error!r}"
    return None


def test_there_is_a_door_for_every_public_layer_function_and_optimizer():
    classes = inspect.isclass
    public = {f"nn.{n}" for n in nn.__all__ if classes(getattr(nn, n)) and n != "Module"}
    public |= {f"F.{n}" for n in F.__all__ if n not in ("IntOrPair", "concat")}
    public |= {f"optim.{n}" for n in optim.__all__ if classes(getattr(optim, n))}
    assert public - set(DOORS) == {"optim.Optimizer", "optim.LRScheduler"}


def test_what_is_given_in_the_table_is_right():
    fallen = []
    for name, door in DOORS.items():
        try:
            door.outcome()
        except Exception as error:
            fallen.append(f"{name}: {error!r}")
    assert fallen == []


@settings(max_examples=1500)
@given(place=st.sampled_from(PLACES), wrong=st.sampled_from(sorted(WRONG)))
def test_no_error_of_python_or_numpy_comes_out(place, wrong):
    assert fell(*place, wrong) is None


@pytest.mark.slow
@pytest.mark.parametrize("door", DOORS)
def test_no_error_of_python_or_numpy_comes_out_of_any(door):
    found = [fell(door, argument, wrong)
             for argument in DOORS[door].arguments() for wrong in WRONG]  # fmt: skip
    assert [error for error in found if error] == []


#: {type of a right value: makers of the same number as NumPy has it}
SAME: Mapping[type, tuple[Callable[[Any], Any], ...]] = {
    int: (np.int64, np.int32, np.uint32, np.array),
    float: (np.float32, np.float64, np.array),
}  # fmt: skip


def numbers_of_doors() -> Iterator[tuple[str, str, Any]]:
    """Arguments that are a single number: those of the table, and defaults."""
    for name, door in DOORS.items():
        given = door.given()
        parameters = inspect.signature(door.call).parameters
        for argument in door.arguments():
            value = given.get(argument, parameters[argument].default)
            if type(value) in SAME and float(np.float32(value)) == value and value >= 0:
                yield name, argument, value


NUMBERS = list(numbers_of_doors())


@pytest.mark.parametrize("kind", [int, float])
def test_a_number_of_numpy_counts_as_the_number_that_it_is(kind):
    fallen = []
    for door, argument, value in NUMBERS:
        if type(value) is kind:
            right = DOORS[door].outcome(argument, value)
            fallen += [(door, argument, make.__name__) for make in SAME[kind]
                       if DOORS[door].outcome(argument, make(value)) != right]  # fmt: skip
    assert fallen == []


@pytest.mark.parametrize(("call", "argument"), [
    (lambda: nn.Dropout("0.5"), "p"), (lambda: nn.Conv2d(3, 8, "3"), "kernel_size"),
    (lambda: optim.SGD(parameters(), lr="0.1"), "lr"),
    (lambda: optim.StepLR(sgd(), "30"), "step_size"),
    (lambda: data.DataLoader(samples(), batch_size="2"), "batch_size"),
    (lambda: data.DataLoader(samples(), True), "batch_size"),
    (lambda: F.relu(np.ones(3, np.float32)), "input"),
    (lambda: nn.Linear(6, 2, bias="False"), "bias"),
])  # fmt: skip
def test_the_argument_is_named(call, argument):
    """Text, a truth and an array where something else belongs, at once."""
    with pytest.raises(OoctrainError) as refused:
        call()
    assert refused.value.code == "OOC-106"
    assert argument in refused.value.what
    assert refused.value.fix


def state_in_a_file():
    return {"model": network().state_dict(), "optimizer": sgd().state_dict(), "epoch": 3}


#: {what is mistaken for another: (how, what the error names)}
MISTAKEN: Mapping[str, tuple[Callable[[], Any], str]] = {
    "a loss's class": (
        lambda: oc.Trainer(network(), nn.CrossEntropyLoss).step(*pair()), "nn.CrossEntropyLoss()"),
    "an optimizer's class": (lambda: oc.Trainer(network(), optimizer=optim.Adam), "optim.SGD("),
    "a data set for batches": (lambda: trainer().fit(samples()), "data.DataLoader(dataset"),
    "... to evaluate": (lambda: trainer().evaluate(samples()), "data.DataLoader(dataset"),
    "one array for batches": (lambda: trainer().fit(samples().tensors[0]), "DataLoader"),
    "a folder for a checkpoint": (lambda: trainer().resume(tempfile.gettempdir()), "ls "),
    "... for a file of weights": (lambda: oc.load(tempfile.gettempdir()), "ls "),
    "a run's state for weights": (
        lambda: oc.save(state_in_a_file(), "nowhere.safetensors"), "trainer.save(path)"),
    "a file for an optimizer's state": (
        lambda: sgd().load_state_dict(state_in_a_file()), "'optimizer'"),
    "a model's state for an optimizer's": (
        lambda: sgd().load_state_dict(network().state_dict()), "state_dict()"),
    "an optimizer's state for a schedule's": (
        lambda: optim.StepLR(sgd(), 2).load_state_dict(sgd().state_dict()), "state_dict()"),
    "... for a plateau's": (
        lambda: optim.ReduceLROnPlateau(sgd()).load_state_dict({"best": 1.0}), "state_dict()"),
    "a model for its parameters": (lambda: optim.SGD(network(), lr=0.1), "model.parameters()"),
    "names for parameters": (
        lambda: optim.SGD(network().named_parameters(), lr=0.1), "model.parameters()"),
    "a model for an optimizer": (lambda: optim.StepLR(network(), 2), "optim.SGD("),
    "an array for a tensor": (lambda: F.relu(np.ones(3, np.float32)), "oc.tensor(x)"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKEN)
def test_what_is_mistaken_for_another_is_told_what_to_give(mistake):
    call, named = MISTAKEN[mistake]
    with pytest.raises(OoctrainError) as refused:
        call()
    assert named in refused.value.fix
