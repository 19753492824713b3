"""Split-CNN: a model that trains in patches and evaluates whole.

A model and a `Splitting` give a `SplitModel` with the same parameters under the same names, so that
either loads the other's weights. Nothing is copied and nothing is rewritten. In training the
model's own `forward` is sketched, cut and recorded patch by patch; in evaluation it is called as it
is (section 3.3: "the ability to use unsplit network for inference"). A trace of the split model is
an ordinary trace: it is planned, swapped, recomputed and proved like any other.

Source: paper 004, sections 3 and 4.1. Departures: docs/split.md. Read next: `patches.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypedDict, Unpack

from ooctrain.engine.module import Module
from ooctrain.engine.tensor import current_tape
from ooctrain.errors import ConfigError
from ooctrain.nn.named_losses import OwnLoss
from ooctrain.rewrite.plugged import Keeps
from ooctrain.split.cuts import Joint, Sketch, convolutions, cuts_of, joints, sketch_of
from ooctrain.split.patches import Layout, record
from ooctrain.split.split_settings import Splitting
from ooctrain.step.op import Spec


@dataclass(frozen=True, slots=True)
class SplitShape:
    """What is split, for one shape of input.

    Args:
        convolutions, of: on patches, and in all.
        joint: what is joined, by name; its (rows, columns).
        rows, columns: where the parts of the input begin.
    """

    convolutions: int
    of: int
    joint: str
    joint_size: tuple[int, int]
    rows: tuple[int, ...]
    columns: tuple[int, ...]

    def __str__(self) -> str:
        parts = f"{len(self.rows)} x {len(self.columns)} patches"
        size = f"{self.joint_size[0]} x {self.joint_size[1]}"
        return (
            f"{self.convolutions} of {self.of} convolutions in {parts}, joined at {self.joint} "
            f"({size})"
        )

    @property
    def share(self) -> float:
        """The depth that it came to: joints lie where a single image is alive."""
        return self.convolutions / self.of


#: Chooses depth and grid for a shape of images: (the whole model, its other split settings, shape).
Chooser = Callable[[Module, Splitting, tuple[int, ...]], Splitting]


class SplitModel(Module):
    """A model whose first convolutions work on patches of the images in training.

    Parameters, buffers and parts are those of the model itself. In evaluation mode it is the model.

    Args:
        whole: the model.
        how: depth, grid, and whether chance chooses boundaries.
        chooser: chooses depth and grid, for the first batch that is split; None: they are given.

    Attributes:
        pending: whether depth and grid are not chosen yet.
        tested_in_patches: whether evaluation is in patches too, as the paper tests splits whose
            boundaries are not drawn (figures 4 and 5); False unless it is set.

    Raises:
        ConfigError: it is split already, has no convolution, or defines its own loss.
    """

    keeps: Keeps = "meaning changed"

    def __init__(self, whole: Module, how: Splitting, chooser: Chooser | None = None):
        super().__init__()
        _require_splittable(whole)
        for registry in ("_parameters", "_buffers", "_modules", "_not_saved"):
            object.__setattr__(self, registry, getattr(whole, registry))
        self.__dict__["whole"] = whole  # no part: it would give all names a prefix
        self.how, self.step_number, self.tested_in_patches = how, 0, False
        self._chooser, self.pending = chooser, chooser is not None
        object.__setattr__(self, "training", whole.training)

    def begin_step(self, number: int) -> None:
        """Draws the boundaries of a training step, where chance chooses them."""
        super().begin_step(number)
        if self.how.stochastic and number != self.step_number:
            self.step_number = number

    def forward(self, *inputs: Any) -> Any:
        object.__setattr__(self.whole, "training", self.training)
        if self.pending and (self.training or self.tested_in_patches):
            self.choose(inputs[0].shape)
        if not (self.how.splits and (self.training or self.tested_in_patches)):
            return self.whole(*inputs)
        if len(inputs) != 1:
            raise ConfigError(
                f"a split model takes one batch of images, not {len(inputs)} inputs",
                code="OOC-172", fix="split the part of it that reads the images",
            )  # fmt: skip
        (images,) = inputs
        return record(self.layout(images.spec), images)

    def choose(self, input_shape: tuple[int, ...]) -> None:
        """Depth and grid are chosen for a batch of this shape, and stay; nothing where they are."""
        if self.pending and self._chooser is not None:
            self.how = self._chooser(self.whole, self.how, tuple(input_shape))
            self.pending = False

    def layout(self, images: Spec) -> Layout:
        """Where everything is cut for a batch of this shape, in the present step.

        Raises:
            ConfigError: there is no place near this depth to join the patches.
        """
        sketch = sketch_of(self.whole, images, current_tape())
        joint = self._joint(sketch)
        rows, columns = (
            cuts_of(sketch, joint, axis, self.how, self.step_number) for axis in (0, 1)
        )
        return Layout(sketch, joint, (rows, columns))

    def shape_of(self, input_shape: tuple[int, ...], dtype: str = "float32") -> SplitShape:
        """What is split for a batch of this shape.

        Raises:
            ConfigError: see `layout`.
        """
        self.choose(input_shape)
        images = Spec(tuple(input_shape), dtype)
        if not self.how.splits:
            total = convolutions(sketch_of(self.whole, images, current_tape()).calls)
            return SplitShape(0, total, "input", (images.shape[2], images.shape[3]), (0,), (0,))
        found = self.layout(images)
        joint, source = found.joint.value, found.sketch.input.variable
        return SplitShape(
            found.joint.convolutions, convolutions(found.sketch.calls),
            joint.name.removesuffix(".out"), (joint.shape[2], joint.shape[3]),
            found.cuts[0][source], found.cuts[1][source],
        )  # fmt: skip

    def _joint(self, sketch: Sketch) -> Joint:
        """The joint whose share of the convolutions is nearest to the depth, the last one of it
        whose image has a row and a column for each patch.
        """
        total = convolutions(sketch.calls)
        if not total:
            raise ConfigError(
                "the model has no convolution, so there is nothing to split", code="OOC-172",
                fix="a model with convolutions",
            )  # fmt: skip
        found = [joint for joint in joints(sketch) if joint.convolutions]
        if not found:
            raise ConfigError(
                "this model's patches cannot be joined again", code="OOC-172",
                numbers=f"of {total} convolutions none comes before a place where one image is all "
                "that is read later",
                fix="split a part of it",
            )  # fmt: skip

        def far(joint: Joint) -> tuple[float, int]:
            return abs(joint.convolutions / total - self.how.depth), joint.convolutions

        # Of equally near ones the shallower; of those alike the last, whose image is the smallest.
        nearest = min(found, key=far)
        alike = [joint for joint in found if joint.convolutions == nearest.convolutions]
        wide = [joint for joint in alike if _holds_parts(joint, self.how.grid)]
        if not wide:
            rows, columns = self.how.grid
            raise ConfigError(
                f"{rows} x {columns} patches are more than the image has rows and columns",
                code="OOC-171",
                numbers=f"behind {nearest.convolutions} of {total} convolutions it has "
                f"{nearest.value.shape[2]} x {nearest.value.shape[3]}",
                fix="a smaller grid, a smaller depth, or larger images",
            )  # fmt: skip
        return wide[-1]

    def extra_repr(self) -> str:
        return "fit, chosen for the first batch" if self.pending else str(self.how)


class Chance(TypedDict, total=False):
    """What may be said of boundaries that are drawn."""

    omega: float
    seed: int


def split(
    model: Module, depth: float = 0.5, grid: tuple[int, int] = (2, 2), stochastic: bool = False,
    **chance: Unpack[Chance],
) -> SplitModel:  # fmt: skip
    """`oc.split` with a depth and a grid that are given; see there."""
    return SplitModel(model, Splitting(depth, grid, stochastic, **chance))


split.keeps = "meaning changed"  # type: ignore[attr-defined]


def _require_splittable(model: object) -> None:
    if not isinstance(model, Module):
        raise ConfigError(
            f"{type(model).__name__} is not a model", code="OOC-172", fix="an oc.nn.Module"
        )
    if any(isinstance(part, SplitModel) for part in model.modules()):
        raise ConfigError(
            "the model is split already", code="OOC-172", fix="oc.split(model.whole, ...)"
        )
    if isinstance(model, OwnLoss):
        raise ConfigError(
            f"{type(model).__name__} defines its own loss, of more than one output", code="OOC-172",
            fix="split a model with one output",
        )  # fmt: skip


def _holds_parts(joint: Joint, grid: tuple[int, int]) -> bool:
    return all(a >= b for a, b in zip(joint.value.shape[2:], grid, strict=True))
