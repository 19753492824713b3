"""The parts of a call's launches without addresses and step scalars: worked out once.

For an operation on arrays of given shapes, each launch has a `LaunchForm`: kernel, grid, packed
arguments, and where in them addresses and changing numbers lie. The driver functions that start
kernels only add to an address, and compare it with another. So they are run once on arrays whose
addresses are marks, the same mark for arrays at the same place, and each mark that comes out gives
the array and the offset in it. Filling in real addresses is then a few stores, for every call of
the same operation and shapes, wherever its arrays lie. Source: cuda.h, cuLaunchKernel. Read next:
`launches.py`, `layers/kernels/cuda/runtime/packing.py`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ooctrain.devices.cuda.device_array import DeviceArray
from ooctrain.errors import ConfigError
from ooctrain.layers.kernels.cuda.runtime.launcher import Blocks
from ooctrain.layers.kernels.cuda.runtime.packing import ADDRESS_AT, pack_arguments, places_of
from ooctrain.layers.kernels.cuda.runtime.shim import Kernel
from ooctrain.layers.kernels.cuda.table import CUDA
from ooctrain.step.op import Op, Scalars

#: Marks are so far apart that no array reaches from one to the next.
_MARK_BITS = 48
_ADDRESS = struct.Struct("@Q")


@dataclass(frozen=True, slots=True)
class LaunchForm:
    """A launch without its addresses.

    Args:
        kernel, grid: what runs, on how many blocks.
        packed: its arguments; marks stand for addresses.
        addresses: (place in `packed`, which array of the call, bytes within it) of each.
        changing: (first byte, behind the last) of the numbers that may change from step to step.
    """

    kernel: Kernel
    grid: tuple[int, int, int]
    packed: bytes
    addresses: tuple[tuple[int, int, int], ...]
    changing: tuple[tuple[int, int], ...]

    def fill(self, buffer: Any, addresses: Sequence[int]) -> None:
        """Writes the addresses of a call's arrays into its packed arguments."""
        for place, which, within in self.addresses:
            _ADDRESS.pack_into(buffer, place, addresses[which] + within)


@dataclass(frozen=True, slots=True)
class CallForm:
    """The launches of an operation on arrays of certain shapes.

    Args:
        launches: in their order.
        read: the step scalars that were read, with their values.
    """

    launches: tuple[LaunchForm, ...]
    read: Mapping[str, float | int]

    @property
    def declared(self) -> bool:
        """Whether the kernels say which of their arguments depend on the step scalars."""
        return bool(self.read) and all(launch.changing for launch in self.launches)


def form_of(op: Op, ins: Sequence[Any], outs: Sequence[Any], space: Any, scalars: Any) -> CallForm:
    """Works a call out. Cost: some 20 to 50 us.

    Args:
        ins, outs, space: arrays of the call; their addresses do not matter.
    """
    marked = marks_of((*ins, *outs, space))
    recorder, watched, split = LaunchRecorder(), _Watched(scalars), len(ins)
    CUDA.run(op, recorder, marked[:split], marked[split:-1], marked[-1], watched)
    return CallForm(tuple(recorder.launches), watched.read)


def likeness(arrays: Sequence[Any]) -> tuple[Any, ...]:
    """All of a call's arrays that its form depends on: shapes, types, and which have one place."""
    first: dict[int, int] = {}
    return tuple(
        (array.shape, array.dtype, first.setdefault(array.address, number))
        for number, array in enumerate(arrays)
    )


def marks_of(arrays: Sequence[Any]) -> list[DeviceArray]:
    """Arrays like these, at marks."""
    return [
        DeviceArray((first + 1) << _MARK_BITS, shape, dtype)
        for shape, dtype, first in likeness(arrays)
    ]


class LaunchRecorder:
    """A `Launcher` that works launches out, on arrays of `marks_of`, and starts none."""

    def __init__(self) -> None:
        self.launches: list[LaunchForm] = []

    def launch(self, kernel: Kernel, blocks: Blocks, *args: Any) -> None:
        """Works one launch out."""
        x, y, z, *_ = (*((blocks,) if isinstance(blocks, int) else blocks), 1, 1)
        places = places_of(kernel)
        packed = pack_arguments(kernel, args)
        addresses = tuple(_marks(args, places))
        changing = tuple(places[n] for n in kernel.changing)
        self.launches.append(LaunchForm(kernel, (x, y, z), packed, addresses, changing))

    def part(self, workspace: DeviceArray, offset_bytes: int, count: int, dtype: str) -> Any:
        """A piece of a workspace."""
        part = DeviceArray(workspace.address + offset_bytes, (count,), dtype)
        if offset_bytes < 0 or offset_bytes + part.nbytes > workspace.nbytes:
            raise ConfigError(
                "a kernel wants more workspace than its call asked for",
                numbers=f"{offset_bytes + part.nbytes} of {workspace.nbytes} bytes",
                fix="a workspace_bytes of the operation's kernel that counts all that it takes",
            )
        return part


class _Watched(Mapping[str, Any]):
    """Step scalars that note which of them are read."""

    def __init__(self, scalars: Scalars):
        self._scalars = scalars
        self.read: dict[str, float | int] = {}

    def __getitem__(self, name: str) -> float | int:
        value = self.read[name] = self._scalars[name]
        return value

    def __iter__(self) -> Iterator[str]:
        return iter(self._scalars)

    def __len__(self) -> int:
        return len(self._scalars)


def _marks(
    args: Sequence[Any], places: Sequence[tuple[int, int]]
) -> Iterator[tuple[int, int, int]]:
    """Of each array among the arguments: where its address is packed, which one it is a part of,
    and how far within."""
    for value, (start, _) in zip(args, places, strict=True):
        if isinstance(value, DeviceArray):
            number, within = divmod(value.address, 1 << _MARK_BITS)
            yield start + ADDRESS_AT, number - 1, within
