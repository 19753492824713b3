"""Tables that say which function computes an operation on a device, and with how much scratch.

Operations know no device: a row of a device's table names the driver function that starts the
operation's kernels. With arrays the function is run; with shapes alone the table gives the bytes of
scratch. Nearly all driver functions take the same: the pool or launcher, the inputs, the outputs,
attributes of the operation, and the workspace if there is one. Modules of kernels are imported when
a function is first run, so tracing and planning compile nothing. An operation that has its own
methods `cpu` or `cuda` is run by these. Source: the lowering rules of JAX, one table for each
platform. Read next: `cpu/table.py`, `cuda/table.py`; `arguments.py`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any, Literal

from ooctrain.layers.batch_norm import BatchNormGradApply
from ooctrain.layers.conv2d import Convolution, ConvShape
from ooctrain.layers.layout import Reshape
from ooctrain.layers.reduction import Sum
from ooctrain.step.op import Op, Scalars, Spec

#: (operation, inputs, outputs, threads) -> bytes of workspace.
Scratch = Callable[[Any, Sequence[Spec], Sequence[Spec], int], int]
#: (operation, inputs, outputs, step scalars) -> what its function takes before the workspace.
Arguments = Callable[[Any, Sequence[Any], Sequence[Any], Scalars], Sequence[Any]]


@dataclass(frozen=True, slots=True)
class Driver:
    """One row: the function that computes an operation on a device.

    It is called with the device's pool or launcher, what it takes, and the workspace if it has one.

    Args:
        function: its module below the device's folder, and its name.
        takes: names of the operation's attributes that it takes behind inputs and outputs; or a
            rule of `arguments.py` for all that it takes.
        scratch: bytes of its workspace; None: it has none.
    """

    function: str
    takes: str | Arguments = ""
    scratch: Scratch | None = None

    def arguments(
        self, op: Op, ins: Sequence[Any], outs: Sequence[Any], scalars: Scalars
    ) -> Sequence[Any]:
        """What it takes."""
        if isinstance(self.takes, str):
            return (*ins, *outs, *(getattr(op, name) for name in self.takes.split()))
        return self.takes(op, ins, outs, scalars)


@dataclass(frozen=True, slots=True)
class DriverTable:
    """How one device computes operations.

    Args:
        device: its name: that of its folder here, and of the method of operations that bring their
            own kernels.
        rows: {class of an operation: row}; a subclass without a row runs as its parent.
    """

    device: Literal["cpu", "cuda"]
    rows: Mapping[type[Op], Driver]

    def run(
        self, op: Op, workers: Any, ins: Sequence[Any], outs: Sequence[Any], workspace: Any,
        scalars: Scalars,
    ) -> None:  # fmt: skip
        """Writes `outs` from `ins`, or queues that on a GPU.

        Args:
            workers: who computes: `cpu/runtime/pool.py`'s `ThreadPool`, or the GPU's
                `cuda/runtime/launcher.py`'s `Launcher`.
            ins, outs: physical arrays. An output may lie on the storage of an input that the call
                reuses (`Op.reusable`); all other outputs are distinct and hold garbage before.
            workspace: uint8, exactly `workspace_bytes(...)`; kernels allocate nothing.
            scalars: the step scalars.
        """
        own = getattr(op, self.device, None)
        if own is not None:
            own(workers, ins, outs, workspace, scalars)
            return
        driver = self._row(op)
        if driver is None:
            raise TypeError(f"{type(op).__name__} lacks {self.device}()")
        module, _, name = driver.function.rpartition(".")
        given = driver.arguments(op, ins, outs, scalars)
        space = () if driver.scratch is None else (workspace,)
        getattr(_module(self.device, module), name)(workers, *given, *space)

    def workspace_bytes(
        self, op: Op, ins: Sequence[Spec], outs: Sequence[Spec], threads: int
    ) -> int:
        """Scratch of a call, known from its shapes; on the cpu device also from the threads."""
        own: Any = op
        if self.device == "cpu" and hasattr(op, "workspace_bytes"):
            return own.workspace_bytes(ins, outs, threads)
        if self.device == "cuda" and hasattr(op, "cuda_workspace_bytes"):
            return own.cuda_workspace_bytes(ins, outs)
        driver = self._row(op)
        if driver is None or driver.scratch is None:
            return 0
        return driver.scratch(op, ins, outs, threads)

    def runs(self, op: Op) -> bool:
        """Whether the device can compute the operation."""
        return hasattr(op, self.device) or self._row(op) is not None

    def load(self, ops: Iterable[Op]) -> None:
        """Imports the kernels of operations, which compiles them or reads them from the disk. Those
        that bring their own kernels are left to their first run."""
        for module in self.modules(ops):
            importlib.import_module(module)

    def modules(self, ops: Iterable[Op]) -> list[str]:
        """The modules of operations' kernels; not of those that bring their own."""
        rows = [self._row(op) for op in ops if getattr(op, self.device, None) is None]
        names = {row.function.rpartition(".")[0] for row in rows if row}
        return sorted(_module_name(self.device, name) for name in names)

    def _row(self, op: Op) -> Driver | None:
        return next((self.rows[kind] for kind in type(op).__mro__ if kind in self.rows), None)


@cache
def _module(device: str, name: str) -> ModuleType:
    return importlib.import_module(_module_name(device, name))


def _module_name(device: str, name: str) -> str:
    return f"ooctrain.layers.kernels.{device}.{name}"


# How much workspace operations need, where the rule is the same on both devices.
#
# Each device says how many bytes its kernels need for a number of elements, rows or channels; the
# functions here make rules for its table from that. A rule takes the operation and the shapes of a
# call, so the workspace is known when a step is traced. What a reduction keeps for each chunk is
# up to the device. No Numba here.


Specs = Sequence[Spec]
#: "forward", "grad_input" or "grad_weight".
Part = str


def of_elements(size_bytes: Callable[[int], int]) -> Scratch:
    """A sum over all elements of the first input."""
    return lambda op, ins, outs, threads: size_bytes(ins[0].size)


def of_channels(size_bytes: Callable[[int, int], int]) -> Scratch:
    """Sums over the rows of the first input: (rows, channels) -> bytes."""

    def rule(op: Op, ins: Specs, outs: Specs, threads: int) -> int:
        channels = ins[0].shape[1]
        return size_bytes(ins[0].size // channels, channels)

    return rule


def of_axes(size_bytes: Callable[[int, int, int], int]) -> Scratch:
    """A sum over axes: (outer, rows, inner) -> bytes."""

    def rule(op: Sum, ins: Specs, outs: Specs, threads: int) -> int:
        return size_bytes(*op.extents(ins[0].shape))

    return rule


def of_convolution(size_bytes: Callable[[ConvShape, str, Part, int], int], part: Part) -> Scratch:
    """A part of a convolution: (shape, algorithm, part, threads) -> bytes."""

    def rule(op: Convolution, ins: Specs, outs: Specs, threads: int) -> int:
        return size_bytes(op.conv_shape(ins, outs), op.algorithm, part, threads)

    return rule


def of_zeros(op: BatchNormGradApply, ins: Specs, outs: Specs, threads: int) -> int:
    """Zeros in place of the sums over a batch, where the statistics are constants."""
    return 0 if op.batch_stats else ins[2].nbytes


def of_reshape(op: Reshape, ins: Specs, outs: Specs, threads: int) -> int:
    """A copy in logical order, where one is made."""
    return ins[0].nbytes if op.goes_by_logical_order else 0
