"""Blocks: variables that hold some rows of one image of a larger tensor, found by their names.

A name such as "input[h 0:64]" or "input[n 1, h 0:64]" says which rows it holds. Values are passed
to and from a step by name, so a block needs no other mark: these functions cut the rows out of a
tensor that is given whole, and put together a tensor from its blocks, and the caller need not know
into which blocks the step divides it. Read next: `../rewrite/tile/bands.py`, which cuts tensors;
`../data/row_image.py`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np

from ooctrain.errors import ConfigError
from ooctrain.step.trace import Variable

_NAME = re.compile(r"(.*)\[(?:n (\d+), )?h (\d+):(\d+)\]", re.DOTALL)


@dataclass(frozen=True, slots=True)
class BlockName:
    """Rows [lo, hi) of one image of a tensor."""

    tensor: str
    image: int
    lo: int
    hi: int


@runtime_checkable
class ReadByRows(Protocol):
    """A batch of images that is never held as a whole, such as those of a `data.RowImage`."""

    @property
    def shape(self) -> tuple[int, ...]:
        """(N, C, H, W)."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Element type."""

    def rows(self, image: int, lo: int, hi: int) -> Any:
        """(1, C, hi - lo, W): an array, or what becomes one when it is needed."""


def block_name(tensor: str, image: int | None, lo: int, hi: int) -> str:
    """The name of a block; of the only image of a batch None."""
    return f"{tensor}[h {lo}:{hi}]" if image is None else f"{tensor}[n {image}, h {lo}:{hi}]"


def block_of(name: str) -> BlockName | None:
    """What the name of a block means; None: it is the name of a whole tensor."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    tensor, image, lo, hi = match.groups()
    return BlockName(tensor, int(image or 0), int(lo), int(hi))


def tensor_of(name: str) -> str:
    """The tensor that a variable is, or is a block of."""
    block = block_of(name)
    return name if block is None else block.tensor


def value_of(name: str, values: Mapping[str, Any]) -> Any:
    """The value of a variable: as it is given, or rows of the tensor that it is a block of.

    Raises:
        ConfigError: neither is given.
    """
    block = block_of(name)
    if name in values or block is None or block.tensor not in values:
        if name not in values:
            raise ConfigError(
                f"no value is given for {name!r}",
                code="OOC-111",
                fix="a value for each input, parameter and state of the trace",
            )
        return values[name]
    whole = values[block.tensor]
    if isinstance(whole, ReadByRows):
        return whole.rows(block.image, block.lo, block.hi)
    return np.asarray(whole)[block.image : block.image + 1, ..., block.lo : block.hi, :]


def whole_of(name: str, variables: Sequence[Variable]) -> tuple[tuple[int, ...], str]:
    """Shape and element type of a tensor that may lie in blocks."""
    parts = [(block_of(v.name), v) for v in variables if tensor_of(v.name) == name]
    blocks = [block for block, _ in parts if block is not None]
    (_, one), *_ = parts
    shape = one.shape
    if blocks:
        images, rows = 1 + max(b.image for b in blocks), max(b.hi for b in blocks)
        shape = images, *shape[1:-2], rows, shape[-1]
    return shape, one.dtype


def put_together(values: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Values by the names of whole tensors; blocks of one tensor become one array."""
    found: dict[str, np.ndarray] = {}
    parts: dict[str, list[tuple[BlockName, np.ndarray]]] = {}
    for name, value in values.items():
        block = block_of(name)
        if block is None:
            found[name] = value
        else:
            parts.setdefault(block.tensor, []).append((block, value))
    for tensor, blocks in parts.items():
        images, rows = 1 + max(b.image for b, _ in blocks), max(b.hi for b, _ in blocks)
        _, *channels, _, w = blocks[0][1].shape
        whole = found[tensor] = np.empty((images, *channels, rows, w), blocks[0][1].dtype)
        for block, value in blocks:
            whole[block.image, ..., block.lo : block.hi, :] = value[0]
    return found
