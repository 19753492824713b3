"""Where each value of a network is cut, from the joint back to the input.

The output split of a layer is the input split of the next (section 3.2), so nothing moves between
patches. Boundaries are chosen at the joint of a sketch, and each layer hands them on to the values
that it reads; the result is {value: first indices of its parts} for rows or columns. Where several
layers read the same value, for example at the start of a shortcut, they share one cut, which each
of them must allow. Where a single value is alive, there is a choice, which may be made at random.

Source: paper 004, sections 3.2 and 3.3 ("a separate output split scheme for each feature map").
Read next: `patches.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

from ooctrain.engine.tensor import Tape, Tensor, use_tape
from ooctrain.errors import ConfigError
from ooctrain.layers.arithmetic import Arithmetic
from ooctrain.layers.combine import Concat
from ooctrain.layers.conv2d import Conv2d
from ooctrain.layers.dropout import Dropout
from ooctrain.split.boundaries import Cuts, Interval, allowed, drawn, middle, wiggle
from ooctrain.split.split_settings import Splitting
from ooctrain.step.op import Op, Scalars, Site, Spec, can_be_tiled, is_pointwise
from ooctrain.step.rows import PIXEL, Window

# The forward pass as a list of calls, before anything is recorded. A module is code, and code
# cannot be split. So the module is called once, with its input, on a tape that computes nothing and
# writes down the operations in order and the values that each reads and makes: a `Sketch`.


@dataclass(frozen=True, slots=True)
class SketchedCall:
    """One call of the forward pass.

    Args:
        op, ins, outs, site: as it was recorded.
        recorded: whether gradients pass through it; not within `oc.no_grad()`.
        targets: the states whose next values the outputs are; none for other calls.
    """

    op: Any
    ins: tuple[Tensor, ...]
    outs: tuple[Tensor, ...]
    site: Site
    recorded: bool = True
    targets: tuple[Tensor, ...] = ()


@dataclass
class Sketch:
    """Writes down calls: the runner of a tape, and what it has written.

    Attributes:
        calls: in order.
        values: by number, the tensors that calls have made; the input is number 0.
        output: what the network returned.
        constants: {what stands for a parameter's present value: the parameter}.
    """

    tape: Any = None
    calls: list[SketchedCall] = field(default_factory=list)
    values: list[Tensor] = field(default_factory=list)
    output: Any = None
    constants: dict[Tensor, Tensor] = field(default_factory=dict)

    @property
    def input(self) -> Tensor:
        """What the network reads."""
        return self.values[0]

    def number(self, tensor: Tensor) -> Tensor:
        """Gives a tensor a number, by which its detached twins are known."""
        tensor.variable = len(self.values)
        self.values.append(tensor)
        return tensor

    def run(
        self, op: Op, ins: Sequence[Tensor], outs: Sequence[Tensor], site: Site, scalars: Scalars
    ) -> None:
        """Notes a call."""
        for tensor in outs:
            self.number(tensor)
        recorded = self.tape.recording
        self.calls.append(SketchedCall(op, tuple(ins), tuple(outs), site, recorded))

    def assign(self, target: Tensor, new: Tensor) -> None:
        """Notes that an output of the last call is the next value of a state."""
        last = self.calls[-1]
        self.calls[-1] = replace(last, targets=(*last.targets, target))

    def constant(self, tensor: Tensor) -> Tensor:
        """Something that stands for a parameter's present value."""
        twin = tensor.twin()
        self.constants[twin] = tensor
        return twin


def sketch_of(network: Callable[[Tensor], Any], spec: Spec, under: Tape) -> Sketch:
    """The forward pass of a network.

    Args:
        network: called with one input.
        spec: the input's shape and element type.
        under: the tape that it will be recorded on; its settings hold here too.
    """
    found = Sketch()
    settings = under.conv_algorithm, under.seed, under.recording
    found.tape = Tape(found, *settings, looked_at=under.looked_at)
    with use_tape(found.tape):
        found.output = network(found.number(Tensor(spec, name="input", kind="input")))
    return found


# Where patches may be joined: one `Joint` for each number of convolutions before it, at a place
# where the rest of the network reads a single image of all that was computed before. In a residual
# network that is the end of a block, as in the paper. Up to there every operation must have a rule
# for its work on a part (`part_windows`). Source: paper 004, sections 3.2 and 5.2.1 (depth is the
# share of the convolutions before the joint).

IMAGE_AXES, CHANNEL_AXIS = 4, 1


@dataclass(frozen=True, slots=True)
class Joint:
    """A place where patches may be joined.

    Args:
        calls: calls of the sketch before it.
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


def part_windows(call: SketchedCall, images: set[int]) -> tuple[Window, Window] | None:
    """What a part of a call's output reads of rows and columns; None: it cannot be made of parts.

    Windows are padded otherwise; statistics and what reads them are those of the part.
    """
    op, others = call.op, [t for t in call.ins if t.variable not in images]
    if len(others) == len(call.ins):
        return PIXEL if op.patchwise or isinstance(op, Dropout) else None
    if op.patchwise:
        return PIXEL
    if isinstance(op, Arithmetic):
        # A number for each channel, perhaps, but not one for each pixel.
        small = all(tensor.shape[-2:] in ((), (1,), (1, 1)) for tensor in others)
        return PIXEL if small else None
    if isinstance(op, Concat):
        return PIXEL if op.axis == CHANNEL_AXIS and not others else None
    if not can_be_tiled(op) or (others and is_pointwise(op)):
        return None
    return op.window()


def convolutions(calls: Sequence[SketchedCall]) -> int:
    """How many of the calls are convolutions."""
    return sum(isinstance(call.op, Conv2d) for call in calls)


def joints(sketch: Sketch) -> Iterator[Joint]:
    """All places where patches may be joined, from the input on."""
    images, alive = images_of(sketch), {sketch.input.variable}
    last = last_readers(sketch)
    found = 0
    for number, call in enumerate(sketch.calls):
        if part_windows(call, images) is None:
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


# Cuts.

AXES = ("rows", "columns")


def cuts_of(
    sketch: Sketch, joint: Joint, axis: int, how: Splitting, step: int
) -> Mapping[int, Cuts]:
    """{value: first indices of its parts} along rows (axis 0) or columns (1), joint to input.

    Args: step: number of the training step; draws are a function of it, the seed, the axis and the
    place in the network.

    Raises:
        ConfigError: a part would have no row, or no cut suits all readers of a value.
    """
    images, parts = images_of(sketch), how.grid[axis]
    lone = {sketch.input.variable, *(found.value.variable for found in joints(sketch))}
    found: dict[int, Cuts] = {}
    wishes: dict[int, list[Sequence[Interval]]] = {}
    for place in range(joint.calls, -1, -1):
        call = sketch.calls[place - 1] if place else None
        outs = [v for v in (call.outs if call else (sketch.input,)) if v.variable in images]
        asked = [wish for out in outs for wish in wishes.get(out.variable, ())]
        free = any(out.variable in lone for out in outs)
        chance = how.stochastic and free
        around = [
            wiggle(i, outs[0].shape[2 + axis], parts, how.omega if chance else 0.0)
            for i in range(1, parts) if outs
        ]  # fmt: skip
        if any(out.variable == joint.value.variable for out in outs):
            between = around
        elif asked:
            between = [_shared(wish, outs[0].name) for wish in zip(*asked, strict=True)]
            if free:
                between = [_nearest(*pair) for pair in zip(between, around, strict=True)]
        else:
            continue  # of no image, or not read before the joint
        key = how.seed, step, axis, place
        starts = [
            drawn(where, (*key, i)) if chance else middle(where) for i, where in enumerate(between)
        ]
        cuts = _checked((0, *starts), outs[0].shape[2 + axis], f"{outs[0].name}, {AXES[axis]}")
        found |= {out.variable: cuts for out in outs}
        if call is None:
            continue
        windows = part_windows(call, images)
        assert windows is not None, "all calls before a joint have them"
        wish = [allowed(windows[axis], cut) for cut in cuts[1:]]
        for tensor in call.ins:
            if tensor.variable in images:
                wishes.setdefault(tensor.variable, []).append(wish)
    return found


def _shared(wishes: Sequence[Interval], name: str) -> Interval:
    """Where all readers allow a cut."""
    low, high = max(low for low, _ in wishes), min(high for _, high in wishes)
    if low > high:
        raise ConfigError(
            f"no cut of {name} suits all calls that read it", code="OOC-172",
            numbers=f"they allow {', '.join(f'{a} to {b}' for a, b in wishes)}",
            fix="another depth, so that the patches are joined before",
        )  # fmt: skip
    return low, high


def _nearest(allowed_here: Interval, around: Interval) -> Interval:
    """What is allowed and around the even boundary; else what is allowed and nearest to it."""
    low, high = (min(max(end, allowed_here[0]), allowed_here[1]) for end in around)
    return low, high


def _checked(cuts: Cuts, extent: int, where: str) -> Cuts:
    if any(a >= b for a, b in pairwise((*cuts, extent))):
        raise ConfigError(
            "a patch would have no row or no column", code="OOC-171", where=where,
            numbers=f"{extent} in all, parts would begin at {', '.join(map(str, cuts))}",
            fix="fewer patches, a smaller depth, or larger images",
        )  # fmt: skip
    return cuts
