"""Objects from command-line options: model, data, trace, machine, budget.

`Workload` and `Options` become a `Task`, a trace and a `Machine`. What the user leaves open
follows from the data, and without data from the usual training of the network (`models.Recipe`).
Read next: `plan_command.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ooctrain import data
from ooctrain.api import split_by_words
from ooctrain.cli.step_options import Workload
from ooctrain.data import Augmentation, Dataset, Shape
from ooctrain.devices.spill import look_at
from ooctrain.engine.autograd import manual_seed
from ooctrain.engine.module import Module
from ooctrain.errors import ConfigError
from ooctrain.execution.settings import Options
from ooctrain.models import (
    MODELS,
    Recipe,
    Stem,
    build,
    expect_classes,
    is_own,
    recipe_of,
    stem_for,
)
from ooctrain.models.own import is_onnx, takes
from ooctrain.split.model import SplitModel
from ooctrain.step.machine import Machine
from ooctrain.step.presets import (
    PRESETS,
    disk_source,
    threads_for,
)
from ooctrain.step.trace import Trace
from ooctrain.tracing import trace
from ooctrain.units import format_bytes, format_rate

USUAL_DATA = {"class": "digits", "pixels": "synthetic-pixels", "image": "synthetic-images"}
#: Of small images where no data says otherwise, as of the digits and of CIFAR-10.
SMALL_CLASSES = 10
CPU_PRESET = "cpu-generic"
CIFAR_SIDE = 32


@dataclass(frozen=True, slots=True)
class Task:
    """A model and the images that it is trained on.

    Args:
        model: with weights of a seed.
        shape: shape of the images as the model gets them, and the number of classes.
        batch: images in a step.
        train, test: the data; None where none was named.
        augmentation: how its images are cut and mirrored.
    """

    model: Module
    shape: Shape
    batch: int
    train: Dataset | None = None
    test: Dataset | None = None
    augmentation: Augmentation = field(default_factory=Augmentation)

    @property
    def tested_on(self) -> str:
        """What an accuracy is a share of."""
        return "the test pixels" if self.shape.target == "pixels" else "the test images"

    def input_shape(self, batch: int | None = None) -> tuple[int, int, int, int]:
        """(N, C, H, W) of a step, at another batch size if given."""
        return (batch or self.batch, self.shape.channels, self.shape.height, self.shape.width)


def make_task(workload: Workload, seed: int) -> Task:
    """Reads the data, if any is named, and builds the model for it, with weights of a seed."""
    train = test = None
    shape = _usual_shape(workload)
    if workload.data is not None:
        size, crop = workload.image_size, workload.crop
        train = data.load(
            workload.data, image_size=size, download=workload.download, crop=crop
        )  # fmt: skip
        test = data.load(workload.data, train=False, image_size=size, crop=crop)
        test = test if len(test) else None  # a folder of which no image is for testing says so
        shape = data.shape_of(train)
    _check_target(workload, shape)
    _check_stem(workload)
    shape = _with_classes(workload, shape)
    augmentation = Augmentation(workload.crop, workload.pad, workload.flip)
    shape = _augmented(shape, augmentation)
    if train is not None and len(train) < workload.batch:
        raise ConfigError(
            f"the batch of {workload.batch} is larger than the data: {workload.data} has "
            f"{len(train)} images",
            fix=f"--batch {len(train)} or less",
        )
    model = _make_model(workload, shape, seed)
    return Task(model, shape, workload.batch, train, test, augmentation)


def make_trace(task: Task, workload: Workload, how: Options, batch: int | None = None) -> Trace:
    """The training step, at another batch size if given."""
    return trace(
        task.model,
        task.input_shape(batch),
        optimizer=workload.optimizer,
        threads=how.thread_count,
        accumulate=how.accumulate,
        conv_algorithm=how.conv_algorithm,
        device=how.device,
        allow_tf32=how.allow_tf32,
    )


def as_on(how: Options) -> Options:
    """The options with which a step is traced for a machine on which nothing runs: with as many
    threads as that machine has, unless others were requested."""
    named = how.machine if isinstance(how.machine, str) else None
    return replace(how, threads=how.threads or threads_for(named))


def find_machine(how: Options) -> Machine:
    """The machine as named, else the device's, with the link as requested, or the disk, once it is
    seen to be there."""
    if how.disk is not None:
        look_at(how.disk.folder)
    return how.find_machine()


def host_rows(how: Options, machine: Machine) -> list[tuple[str, str]]:
    """The disk that is the host, and what is planned with; nothing where the host is memory."""
    spill = how.disk
    if spill is None:
        return []
    out, into = map(format_rate, (machine.out_bytes_per_us, machine.in_bytes_per_us))
    when = "at the same time" if machine.link == "duplex" else "one at a time"
    rates = f"planned with {out} out and {into} in, {when}"
    source = disk_source(machine.disk, spill.folder)
    held = "" if spill.bytes_per_us is None else "; --spill-rate is the most"
    return [("host", look_at(spill.folder).text), ("", rates), ("", f"the disk {source}{held}")]


def written_rows(how: Options, step_bytes: int, steps: int) -> list[tuple[str, str]]:
    """What a run writes to its disk, if it has one: disks wear by it."""
    if how.disk is None:
        return []
    whole = format_bytes(step_bytes * steps)
    said = f"{format_bytes(step_bytes)} a step, {whole} in {steps} steps, tests not counted"
    return [("disk writes", said)]


def is_cpu(chosen: Machine) -> bool:
    """Whether a machine is the cpu device: the generic preset, or one that was calibrated."""
    return chosen.name == CPU_PRESET or chosen.name not in PRESETS


def _usual_shape(workload: Workload) -> Shape:
    """What the network is usually trained on; --image-size is the height, the aspect is kept."""
    recipe = _recipe(workload.model)
    height = workload.image_size or recipe.height
    width = height * recipe.width // recipe.height
    small = recipe.target == "class" and stem_for(height, width) == "cifar"
    classes = SMALL_CLASSES if small and "classes" not in recipe.own else recipe.classes
    return Shape(recipe.channels, height, width, classes, recipe.target)


def _recipe(name: str) -> Recipe:
    """A network and what it is usually trained on; an ONNX file says that itself."""
    if not is_onnx(name):
        return recipe_of(name)
    # Not at the top: only such a file needs it.
    from ooctrain.interop.onnx import images_of

    images, any_file = images_of(name), Recipe(build)
    return replace(
        any_file, channels=images.channels, height=images.height or any_file.height,
        width=images.width or images.height or any_file.width,
        classes=images.classes or any_file.classes, own=frozenset(("classes", "channels")),
        target="pixels" if images.pixels else "class",
    )  # fmt: skip


def _check_target(workload: Workload, shape: Shape) -> None:
    """Raises ConfigError where a network is to learn what the data does not have."""
    known = workload.model in MODELS or is_onnx(workload.model)
    recipe = _recipe(workload.model) if known else None
    wanted = shape.target if recipe is None else recipe.target
    if wanted != shape.target:
        words = {"class": "a class for each image", "pixels": "a class for each pixel",
                 "image": "another image for each image"}  # fmt: skip
        raise ConfigError(
            f"{workload.model} learns {words[wanted]}, but {workload.data} has "
            f"{words[shape.target]}", code="OOC-111", fix=f"--data {USUAL_DATA[wanted]}",
        )  # fmt: skip
    if recipe is not None and is_onnx(workload.model) and recipe.classes < shape.classes:
        raise ConfigError(
            f"{workload.model} has {recipe.classes} classes, but {workload.data} has "
            f"{shape.classes}", code="OOC-111", fix="the data that it was made for",
        )  # fmt: skip


def _with_classes(workload: Workload, shape: Shape) -> Shape:
    """With as many outputs as requested. Raises ConfigError: fewer than the data has classes, or
    none can be requested.
    """
    wanted = workload.classes
    if wanted is None:
        return shape
    if is_onnx(workload.model):
        raise ConfigError(
            f"--classes {wanted}, but {workload.model} has its own", code="OOC-106",
            fix="leave --classes out",
        )  # fmt: skip
    expect_classes(workload.model, wanted, shape.target)
    if workload.data is not None and wanted < shape.classes:
        raise ConfigError(
            f"--classes {wanted}, but {workload.data} has {shape.classes}", code="OOC-111",
            fix=f"--classes {shape.classes} or more, or leave it out",
        )  # fmt: skip
    return replace(shape, classes=wanted)


def _check_stem(workload: Workload) -> None:
    """Raises ConfigError where a stem is requested of a network that is not given one."""
    model = workload.model
    if workload.stem is None or model in MODELS or (is_own(model) and takes(model, "stem")):
        return
    what = "is made of a file as it is" if is_onnx(model) else "takes no stem"
    raise ConfigError(
        f"--stem {workload.stem}, but {model} {what}", code="OOC-106", fix="leave --stem out"
    )


def network_rows(task: Task, workload: Workload) -> list[tuple[str, str]]:
    """What was chosen of the network beyond its name: its stem, its classes, its split."""
    return [
        *_stem_rows(task, workload),
        *_classes_rows(task, workload),
        *split_rows(task),
    ]


def _stem_rows(task: Task, workload: Workload) -> list[tuple[str, str]]:
    """Which form of the network was built; a function of one's own need not have two."""
    stem, size = _stem_of(workload, task.shape), f"{task.shape.height} x {task.shape.width}"
    if workload.stem is not None:
        return [("stem", f"{stem}, as --stem says, for images of {size}")]
    if workload.model not in MODELS:
        return []
    small = stem == "cifar"
    rows = [("stem", f"{stem}, for {'small ' if small else ''}images of {size}")]
    if small and max(task.shape.height, task.shape.width) > CIFAR_SIDE:  # either may be meant
        rows.append(("", "--stem imagenet builds the layers for large ones, as in torchvision"))
    return rows


def _stem_of(workload: Workload, shape: Shape) -> Stem:
    return workload.stem or stem_for(shape.height, shape.width)


def stem_that_takes(state: Mapping[str, Any], workload: Workload, task: Task) -> Stem | None:
    """The other stem, if more of some weights fit the network with that one; None: no more."""
    if workload.model not in MODELS:
        return None
    other: Stem = "imagenet" if _stem_of(workload, task.shape) == "cifar" else "cifar"
    built = build(workload.model, task.shape.classes, other, task.shape.channels)

    def fitting(model: Module) -> int:
        own = model.state_dict()
        return sum(name in own and np.shape(own[name]) == np.shape(state[name]) for name in state)

    return other if fitting(built) > fitting(task.model) else None


def _classes_rows(task: Task, workload: Workload) -> list[tuple[str, str]]:
    """That a function of one's own was given another number of classes than its default."""
    if is_onnx(workload.model):
        return []
    recipe = recipe_of(workload.model)
    if "classes" not in recipe.own or recipe.classes == task.shape.classes:
        return []
    source = "as --classes says" if workload.classes is not None else f"as {workload.data} has"
    said = f"{task.shape.classes}, {source}; {workload.model} has {recipe.classes} by default"
    return [("classes", said)]


def _augmented(shape: Shape, augmentation: Augmentation) -> Shape:
    """Of images once they are cut. Raises ConfigError: they are smaller than that, or their targets
    would not be cut alike."""
    crop, least = augmentation.crop, min(shape.height, shape.width)
    if augmentation.training is not None and shape.target != "class":
        raise ConfigError(
            "--crop and --flip would change the images but not their targets",
            code="OOC-111", fix="data with a class for each image, or neither of them",
        )  # fmt: skip
    if crop is not None and crop > least:
        raise ConfigError(
            f"--crop {crop} is larger than the images of {shape.height} x {shape.width}",
            code="OOC-106", fix=f"--crop {least} or less, or a larger --image-size",
        )  # fmt: skip
    return shape if crop is None else replace(shape, height=crop, width=crop)


def usual_data(workload: Workload) -> str:
    """The data set that a network is trained on where none is named."""
    model = workload.model
    known = model in MODELS or is_onnx(model)
    return USUAL_DATA[_recipe(model).target if known else "class"]


def _make_model(workload: Workload, shape: Shape, seed: int) -> Module:
    """A network by name, of a function in a file, which may make one of PyTorch, or of ONNX."""
    manual_seed(seed)
    stem = _stem_of(workload, shape)
    if is_own(workload.model):
        # Not at the top: only a file of one's own may have to do with PyTorch.
        from ooctrain.interop.torch import imported

        example = workload.batch, shape.channels, shape.height, shape.width
        options = {"num_classes": shape.classes, "stem": stem, "in_channels": shape.channels}
        model = imported(workload.model, options, example, seed)
    elif is_onnx(workload.model):
        # Not at the top, likewise.
        from ooctrain.interop.onnx import from_onnx

        example = workload.batch, shape.channels, shape.height, shape.width
        model = from_onnx(workload.model, example)
    else:
        model = build(workload.model, shape.classes, stem, shape.channels)
    return split_by_words(model, workload.split, seed)


def split_rows(task: Task) -> list[tuple[str, str]]:
    """What is split, and that it is another network; nothing of one that is whole."""
    if not isinstance(task.model, SplitModel):
        return []
    task.model.choose(task.input_shape())  # where a budget is to be fitted
    if not task.model.how.splits:
        return []
    drawn = ", drawn anew for each step" if task.model.how.stochastic else ""
    return [
        ("split", f"{task.model.shape_of(task.input_shape())}{drawn}"),
        ("", "another network: what it learns differs; it evaluates whole (ooctrain docs split)"),
    ]
