"""What `bench_memory.py` and `bench_largest.py` train, and who trains it.

A case is a network with the images that it gets and the number of stages of its chain, which says
into how many segments torch's checkpoints may cut it. A side is a contestant: a library and its way
to use less memory. Both go to the contestant's process as JSON. VGG-19 has the classifier for small
images, so that its convolutions are what counts: the one for ImageNet needs 1.6 GiB of weights,
gradients and momentum, in which no method for activations saves anything. Read next:
`memory_sides.py`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

import ooctrain as oc
from ooctrain.step.machine import Link
from ooctrain.units import MIB

LR = 1e-3
MICRO_BATCHES = 4
TINY = 2  # images of the step that loads everything
#: Of what ours grows by in-core: with everything in RAM, and with the disk.
FALLING, ON_DISK = (0.9, 0.75, 0.6, 0.5, 0.4), (0.5, 0.25)
#: Of the device's memory in-core, with the disk.
DEVICE_SHARE = 0.25
LAYOUTS = ("NHWC", "NCHW")


@dataclass(frozen=True, slots=True)
class Case:
    """A network and its images.

    Args:
        name, stem: of the network.
        batch, image: images of a step, and their side in pixels.
        stages: of the chain that checkpoints cut (`memory_torch.chain_of`).
        classes: of an image, or of each of its pixels.
        pixels: whether each pixel has a label.
    """

    name: str
    stem: str
    batch: int
    image: int
    stages: int
    classes: int = 10
    pixels: bool = False

    @property
    def segment_counts(self) -> list[int]:
        """From 2 to 2 sqrt(L), for L stages."""
        return list(range(2, math.floor(2 * math.sqrt(self.stages)) + 1))

    def of(self, batch: int) -> Case:
        """The same with another number of images."""
        return replace(self, batch=batch)


CASES: Mapping[str, Case] = {
    case.name: case
    for case in (
        Case("resnet18", "cifar", 128, 32, stages=10),
        Case("resnet50", "imagenet", 16, 224, stages=18),
        Case("vgg11", "cifar", 256, 32, stages=14),
        Case("vgg19", "cifar", 8, 224, stages=22),
        Case("unet", "imagenet", 4, 256, stages=19, classes=2, pixels=True),
    )
}


def make_model(case: Case) -> oc.nn.Module:
    """Ours, with the same weights each time; without dropout, whose masks no two libraries
    share."""
    oc.manual_seed(0)
    model = oc.models.build(case.name, num_classes=case.classes, stem=case.stem)
    for module in model.modules():
        if isinstance(module, oc.nn.Dropout):
            module.p = 0.0
    return model


def make_batch(case: Case) -> tuple[np.ndarray, np.ndarray]:
    """Images of noise; labels in turn, or one for each pixel."""
    shape = (case.batch, 3, case.image, case.image)
    images = np.random.default_rng(0).standard_normal(shape, np.float32)
    labels = np.arange(case.batch) % case.classes
    if case.pixels:
        rows = np.arange(case.image) // 16
        squares = (rows[:, None] + rows[None, :]) % case.classes
        labels = (labels[:, None, None] + squares) % case.classes
    return images, labels


@dataclass(frozen=True, slots=True)
class Side:
    """A contestant.

    Args:
        name: as it is shown.
        library: "ours" or "torch".
        how: "in-core", "memory", "total", "device", "arena" (ours); "in-core", "checkpoint",
            "disk", "micro", "compiled" (torch).
        value: of "memory" bytes that the process may grow by, of "total" bytes that it promises to
            hold at most, of "arena" the same without a promise; of "device" hundredths of the
            in-core peak; of "checkpoint" the number of segments.
        layout: torch's, of images.
        exact: whether its step is that of the whole batch.
        folder: on the disk that is our host; "": the host is memory.
        rates: what that disk reaches, out and in, in bytes per microsecond; a disk that is faster
            than 1 GB/s is held to it.
        link: "duplex" where these hold in both directions at once, else "shared".
        latency_us: what each copy takes besides.
        planner: ours.
        machine: file of the calibrated machine that ours plans for; "": the saved one, or none.
    """

    name: str
    library: str
    how: str
    value: int = 0
    layout: str = ""
    exact: bool = True
    folder: str = ""
    rates: tuple[float, float] = (1e3, 1e3)
    link: Link = "shared"
    latency_us: float = 0.0
    planner: str = "auto"
    machine: str = ""

    @property
    def compiles(self) -> bool:
        """Whether its first step takes minutes, which count neither as time nor as memory."""
        return self.how == "compiled"


def as_words(case: Case, side: Side, steps: int, threads: int) -> str:
    """For the contestant's command line."""
    return json.dumps(
        {"case": asdict(case), "side": asdict(side), "steps": steps, "threads": threads}
    )


def from_words(words: str) -> tuple[Case, Side, int, int]:
    """What `as_words` wrote."""
    found = json.loads(words)
    side = Side(**found["side"])
    rates = (side.rates[0], side.rates[1])
    return Case(**found["case"]), replace(side, rates=rates), found["steps"], found["threads"]


def torch_sides(case: Case, *, quick: bool) -> Iterator[Side]:
    """Torch's, those first that others are compared with."""
    layouts = LAYOUTS[1:] if quick else LAYOUTS
    for layout in layouts:
        yield Side(f"torch {layout}", "torch", "in-core", layout=layout)
    for layout in layouts:
        name = f"torch {layout}, {MICRO_BATCHES} micro-batches"
        yield Side(name, "torch", "micro", layout=layout, exact=False)
    for layout in layouts:
        yield Side(f"torch {layout}, saved to disk", "torch", "disk", layout=layout)
    if not quick:
        yield Side("torch NCHW, compiled, budget 0.5", "torch", "compiled", layout="NCHW")
    # Most segments first: they hold least, and the time may end before the others.
    yield from checkpoint_sides(case, layouts, case.segment_counts[::-1][: 1 if quick else None])


def checkpoint_sides(case: Case, layouts: tuple[str, ...], counts: list[int]) -> Iterator[Side]:
    """Torch's checkpoints, with so many segments."""
    for count in counts:
        for layout in layouts:
            name = f"torch {layout}, checkpoint, {count} segments"
            yield Side(name, "torch", "checkpoint", count, layout)


def our_sides(whole_bytes: int, machine: str = "", *, quick: bool) -> Iterator[Side]:
    """Ours below in-core, which grows by `whole_bytes`, in RAM alone."""
    for share in FALLING[1::2] if quick else FALLING:
        name, value = f"ours, memory {share:.0%}", int(share * whole_bytes)
        yield Side(name, "ours", "memory", value, machine=machine)


def disk_sides(whole_bytes: int, **host: Any) -> Iterator[Side]:
    """Ours with a disk as the host: in a quarter of the device, and in parts of the process.

    Args:
        host: folder, rates, link and latency of the disk, and the calibrated machine.
    """
    name = f"ours, device {DEVICE_SHARE:.0%} with the disk"
    disk = Side(name, "ours", "device", int(100 * DEVICE_SHARE), **host)
    yield disk
    for share in ON_DISK:
        name, value = f"ours, memory {share:.0%} with the disk", int(share * whole_bytes)
        yield replace(disk, name=name, how="memory", value=value)


def growth_text(row: Mapping) -> str:
    """What a row shows while others are measured."""
    return row.get("error") or f"{row['growth_mib']:.0f} MiB, {row['step_s']:.2f} s"


def mib(size_bytes: float) -> float:
    """Bytes in MiB."""
    return size_bytes / MIB
