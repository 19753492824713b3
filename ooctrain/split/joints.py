"""Where the patches of a network may be joined, and how deep each such joint is.

A `Sketch` gives one `Joint` for each number of convolutions before it. Patches can be joined at a
place where the rest of the network reads a single image of all that was computed before; in a
residual network that is the end of a block, as in the paper. Up to there every operation must have
a rule for its work on a part (`part_rule`). Source: paper 004, sections 3.2 and 5.2.1 (depth is the
share of the convolutions before the joint). Read next: `cuts.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ooctrain.engine.tensor import Tensor
from ooctrain.layers.arithmetic import Arithmetic
from ooctrain.layers.batch_norm import BatchNormApply, BatchNormStats, BatchNormUpdate, InverseStd
from ooctrain.layers.combine import Concat, Constant
from ooctrain.layers.conv2d import Conv2d
from ooctrain.layers.dropout import Dropout
from ooctrain.layers.instance_norm import InstanceNormApply, InstanceNormStats
from ooctrain.rewrite.tile.rules import POINTWISE, STANDING, TileRule, rule_of
from ooctrain.split.sketch import Sketch, SketchedCall

#: These work on a part as they do on a whole image: a part has statistics of its own.
AS_THEY_ARE = (
    BatchNormStats, BatchNormApply, BatchNormUpdate, Constant, InstanceNormStats,
    InstanceNormApply, InverseStd,
)  # fmt: skip
IMAGE_AXES, CHANNEL_AXIS = 4, 1


@dataclass(frozen=True, slots=True)
class Joint:
    """A place where patches may be joined.

    Args:
        calls: of the sketch before it.
        value: the image that is joined there.
        convolutions: before it.
    """

    calls: int
    value: Tensor
    convolutions: int


def images_of(sketch: Sketch) -> set[int]:
    """The values that have rows and columns of the image and can be cut into parts."""
    images = {sketch.input.variable} if sketch.input.ndim == IMAGE_AXES else set()
    for call in sketch.calls:
        if any(tensor.variable in images for tensor in call.ins):
            images |= {out.variable for out in call.outs if out.ndim == IMAGE_AXES}
    return images


def part_rule(call: SketchedCall, images: set[int]) -> TileRule | None:
    """How a call is made for a part; None: it cannot be.

    Windows have the tile rules of `rewrite/tile/`, with other paddings; statistics and what reads
    them are those of the part.
    """
    ins = [tensor for tensor in call.ins if tensor.variable in images]
    others = [tensor for tensor in call.ins if tensor.variable not in images]
    if not ins:
        return STANDING if isinstance(call.op, (*AS_THEY_ARE, Dropout)) else None
    if isinstance(call.op, AS_THEY_ARE):
        return STANDING
    if isinstance(call.op, Arithmetic):
        # A number for each channel, perhaps, but not one for each pixel.
        small = all(tensor.shape[-2:] in ((), (1,), (1, 1)) for tensor in others)
        return STANDING if small else None
    if isinstance(call.op, Concat):
        return STANDING if call.op.axis == CHANNEL_AXIS and not others else None
    rule = rule_of(call.op)
    return None if rule is POINTWISE and others else rule


def convolutions(calls: Sequence[SketchedCall]) -> int:
    """How many of the calls are convolutions."""
    return sum(isinstance(call.op, Conv2d) for call in calls)


def joints(sketch: Sketch) -> Iterator[Joint]:
    """All places where patches may be joined, from the input on."""
    images, alive = images_of(sketch), {sketch.input.variable}
    last = last_readers(sketch)
    found = 0
    for number, call in enumerate(sketch.calls):
        if part_rule(call, images) is None:
            return
        found += isinstance(call.op, Conv2d)
        made = {out.variable for out in call.outs if not call.targets}
        alive = {value for value in alive | made if last.get(value, -1) > number}
        here = next((out for out in call.outs if {out.variable} == alive), None)
        if here is not None and here.variable in images:
            yield Joint(number + 1, here, found)


def last_readers(sketch: Sketch) -> dict[int, int]:
    """{value: the last call that reads it}; what is returned is read behind the last call."""
    last = {
        tensor.variable: number
        for number, call in enumerate(sketch.calls)
        for tensor in call.ins
        if tensor.variable is not None
    }
    return last | {tensor.variable: len(sketch.calls) for tensor in tensors_in(sketch.output)}


def tensors_in(output: object) -> Iterator[Tensor]:
    """The tensors that a network returned, in its lists, tuples and dictionaries."""
    if isinstance(output, Tensor):
        yield output
    elif isinstance(output, list | tuple):
        for part in output:
            yield from tensors_in(part)
    elif isinstance(output, dict):
        for part in output.values():
            yield from tensors_in(part)
