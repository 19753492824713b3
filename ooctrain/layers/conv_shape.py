"""The shape of one 2-d convolution: what every convolution kernel and plan takes.

Extents, stride, padding, dilation and groups make a checked, frozen `ConvShape`, which knows its
output size and its work. Padding is given for each of the four sides, because a tile of an image is
padded only where it touches the border. Letters are those of the papers: N images, input C x H x W,
output K x OH x OW, filter R x S. Read next: `kernels/cpu/conv/conv_plan.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

from ooctrain.errors import ShapeError


@dataclass(frozen=True, slots=True)
class ConvShape:
    """Extents of a convolution; all counts, no bytes.

    Args:
        n, c, h, w: input images, channels, rows, columns.
        k, r, s: filters, filter rows, filter columns.
        stride: (rows, columns).
        padding: zeros added (top, bottom, left, right).
        dilation: (rows, columns) from one filter tap to the next.
        groups: channel groups; C and K are multiples of it.

    Raises:
        ShapeError: an extent below 1, a negative padding, groups that do not divide, an empty
        output.
    """

    n: int
    c: int
    h: int
    w: int
    k: int
    r: int
    s: int
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int, int, int] = (0, 0, 0, 0)
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1

    def __post_init__(self):
        extents = (self.n, self.c, self.h, self.w, self.k, self.r, self.s, self.groups)
        if (
            min(extents) < 1
            or min(self.stride) < 1
            or min(self.dilation) < 1
            or min(self.padding) < 0
        ):
            raise ShapeError(
                "extents, strides, dilations and groups must be positive, padding not negative",
                numbers=str(self),
            )
        if self.c % self.groups or self.k % self.groups:
            raise ShapeError(
                f"groups={self.groups} must divide input channels {self.c} and filters {self.k}",
                numbers=str(self),
            )
        if self.oh < 1 or self.ow < 1:
            raise ShapeError(
                f"the dilated filter ({self.filter_h} x {self.filter_w}) is larger than the input",
                numbers=str(self),
                fix="pad the input, or use fewer pooling layers for so small an image",
            )

    @property
    def filter_h(self) -> int:
        """Rows that the dilated filter spans."""
        return (self.r - 1) * self.dilation[0] + 1

    @property
    def filter_w(self) -> int:
        """Columns that the dilated filter spans."""
        return (self.s - 1) * self.dilation[1] + 1

    @property
    def oh(self) -> int:
        """Output rows."""
        return (self.h + self.padding[0] + self.padding[1] - self.filter_h) // self.stride[0] + 1

    @property
    def ow(self) -> int:
        """Output columns."""
        return (self.w + self.padding[2] + self.padding[3] - self.filter_w) // self.stride[1] + 1

    @property
    def cg(self) -> int:
        """Input channels of one group."""
        return self.c // self.groups

    @property
    def kg(self) -> int:
        """Filters of one group."""
        return self.k // self.groups

    @property
    def flops(self) -> int:
        """Operations of the direct algorithm, forward and either gradient: a multiply and an add
        for each output, tap and input channel of its group.
        """
        return 2 * self.n * self.k * self.oh * self.ow * self.cg * self.r * self.s

    def ends(self, *, backward: bool) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
        """(H, W, channels) of what is read and of what is written; backward reads dy, writes dx."""
        inner, outer = (self.h, self.w, self.c), (self.oh, self.ow, self.k)
        return (outer, inner) if backward else (inner, outer)
