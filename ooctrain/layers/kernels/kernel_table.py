"""A table says which function computes an operation on a device.

Operations know no device: a row of a device's table names the function that starts the operation's
kernels, and the scratch that it needs. With arrays the function is run; with shapes alone the table
gives the bytes of scratch. Nearly all such functions take the same: the pool or launcher, the
inputs, the outputs, attributes of the operation, and the workspace if there is one. Modules of
kernels are imported when a function is first run, so tracing and planning compile nothing. An
operation that has its own methods `cpu` or `cuda` is run by these. Source: the lowering rules of
JAX, one table for each platform. Read next: `cpu/table.py`, `cuda/table.py`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any, Literal

from ooctrain.layers.batch_norm import BatchNormApply, BatchNormGradApply, BatchNormGradReduce
from ooctrain.layers.conv2d import Convolution, ConvShape, conv_shape
from ooctrain.layers.dropout import Dropout
from ooctrain.layers.instance_norm import (
    InstanceNormApply,
    InstanceNormGradApply,
    InstanceNormGradReduce,
)
from ooctrain.layers.layout import Reshape
from ooctrain.layers.losses import MeanError, MeanErrorGrad, mean_factor
from ooctrain.layers.reduction import Sum
from ooctrain.layers.update import (
    AdamUpdate,
    RMSpropUpdate,
    SGDUpdate,
    adam_factors,
    rmsprop_factors,
    sgd_factors,
)
from ooctrain.step.op import Op, Scalars, Spec

#: (operation, inputs, outputs, threads) -> bytes of workspace.
Scratch = Callable[[Any, Sequence[Spec], Sequence[Spec], int], int]
#: (operation, inputs, outputs, step scalars) -> what its function takes before the workspace.
Arguments = Callable[[Any, Sequence[Any], Sequence[Any], Scalars], Sequence[Any]]


@dataclass(frozen=True, slots=True)
class KernelRow:
    """One row: the function that computes an operation on a device.

    It is called with the device's pool or launcher, what it takes, and the workspace if it has one.

    Args:
        function: its module below the device's folder, and its name.
        takes: names of the operation's attributes that it takes behind inputs and outputs; or a
            rule of `kernel_table.py` for all that it takes.
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
class KernelTable:
    """How one device computes operations.

    Args:
        device: its name: that of its folder here, and of the method of operations that bring their
            own kernels.
        rows: {class of an operation: row}; a subclass without a row runs as its parent.
    """

    device: Literal["cpu", "cuda"]
    rows: Mapping[type[Op], KernelRow]

    def run(
        self, op: Op, workers: Any, ins: Sequence[Any], outs: Sequence[Any], workspace: Any,
        scalars: Scalars,
    ) -> None:  # fmt: skip
        """Writes `outs` from `ins`, or queues that on a GPU.

        Args:
            workers: what computes: `cpu/runtime/pool.py`'s `ThreadPool`, or the GPU's
                `cuda/runtime/launcher.py`'s `Launcher`.
            ins, outs: physical arrays. An output may lie on the storage of an input that the call
                reuses (`Op.reusable`); all other outputs are distinct and hold garbage before.
            workspace: uint8, exactly `workspace_bytes(...)`; kernels allocate nothing.
            scalars: the step scalars.
        """
        if self.is_own(op):
            getattr(op, self.device)(workers, ins, outs, workspace, scalars)
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
        return self.is_own(op) or self._row(op) is not None

    def is_own(self, op: Op) -> bool:
        """Whether the operation brings its own kernels, which may do anything."""
        return getattr(op, self.device, None) is not None

    def function_of(self, op: Op) -> Callable | None:
        """The function that computes an operation; None for one that brings its own kernels."""
        row = None if self.is_own(op) else self._row(op)
        if row is None:
            return None
        module, _, name = row.function.rpartition(".")
        return getattr(_module(self.device, module), name)

    def _row(self, op: Op) -> KernelRow | None:
        for kind in type(op).__mro__:
            if kind in self.rows:
                return self.rows[kind]
        return None


class WatchedScalars(Mapping[str, float | int]):
    """Step scalars that note which of them are read.

    Both devices work a call's kernels out once, and again where a scalar has changed that was read.
    """

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


@cache
def _module(device: str, name: str) -> ModuleType:
    return importlib.import_module(f"ooctrain.layers.kernels.{device}.{name}")


# Workspace, where the rule is the same on both devices. Each device says how many bytes its kernels
# need for a number of elements, rows or channels; these functions make rules for its table from
# that. A rule takes the operation and the shapes of a call, so the workspace is known when a step
# is traced.

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


# Arguments that are not simply the inputs followed by the outputs, in the order of the function.
# The functions of both devices have the same parameters, so the code that leads from an operation
# to them is written once. Optional inputs (a bias, a residual, a mask) become None where they are
# absent.

Arrays = Sequence[Any]


def whole_call(op: Op, ins: Arrays, outs: Arrays, scalars: Scalars) -> Arrays:
    """(op, inputs, outputs), for functions that start several kernels."""
    return op, ins, outs


def and_operation(op: Op, ins: Arrays, outs: Arrays, scalars: Scalars) -> Arrays:
    """(inputs, outputs, operation)."""
    return *ins, *outs, op


def with_bias(op: Op, ins: Arrays, outs: Arrays, scalars: Scalars) -> Arrays:
    """(x, W, bias or None, y)."""
    bias = ins[2] if len(ins) == 3 else None
    return ins[0], ins[1], bias, outs[0]


def convolution(op: Convolution, ins: Arrays, outs: Arrays, scalars: Scalars) -> Arrays:
    """(shape, algorithm, two inputs, output)."""
    return _conv_shape(op, ins, outs), op.algorithm, *ins, *outs


def convolution_with_bias(op: Convolution, ins: Arrays, outs: Arrays, scalars: Scalars) -> Arrays:
    """(shape, algorithm, x, W, bias or None, y)."""
    return _conv_shape(op, ins, outs), op.algorithm, *with_bias(op, ins, outs, scalars)


def batch_norm_apply(op: BatchNormApply, ins: Arrays, outs: Arrays, scalars: Scalars) -> Arrays:
    """(x, mean, inv_std, gamma, beta, y, residual or None, whether a ReLU follows)."""
    return *ins[:5], *outs, ins[5] if op.residual else None, op.relu


def norm_grad_reduce(
    op: BatchNormGradReduce | InstanceNormGradReduce, ins: Arrays, outs: Arrays, scalars: Scalars
) -> Arrays:
    """(dy, x, mean, inv_std, dgamma, dbeta, mask or None)."""
    return *ins[:4], *outs, ins[4] if op.mask else None


def batch_norm_grad_apply(
    op: BatchNormGradApply, ins: Arrays, outs: Arrays, scalars: Scalars
) -> Arrays:
    """(dy, x, mean, inv_std, gamma, dgamma or None, dbeta or None, dx, mask or None, over)."""
    sums = ins[5:7] if op.batch_stats else (None, None)
    return *ins[:5], *sums, *outs, ins[-1] if op.mask else None, op.over


def instance_norm_apply(
    op: InstanceNormApply, ins: Arrays, outs: Arrays, scalars: Scalars
) -> Arrays:
    """(x, mean, inv_std, gamma or None, beta or None, y, residual or None, whether a ReLU
    follows).
    """
    affine = ins[3:5] if op.affine else (None, None)
    return *ins[:3], *affine, *outs, ins[-1] if op.residual else None, op.relu


def instance_norm_grad_apply(
    op: InstanceNormGradApply, ins: Arrays, outs: Arrays, scalars: Scalars
) -> Arrays:
    """(dy, x, mean, inv_std, gamma or None, sum_dz_xhat, sum_dz, dx, mask or None, over)."""
    gamma, sums = ins[4] if op.affine else None, ins[4 + op.affine : 6 + op.affine]
    return *ins[:4], gamma, *sums, *outs, ins[-1] if op.mask else None, op.over


def mean_error(
    op: MeanError | MeanErrorGrad, ins: Arrays, outs: Arrays, scalars: Scalars
) -> Arrays:
    """(inputs, output, what the summed errors are multiplied by, whether they are absolute)."""
    factor = 1.0 if op.reduction == "sum" else mean_factor(op.over or ins[0].size)
    return *ins, *outs, factor, op.absolute


def dropout(op: Dropout, ins: Arrays, outs: Arrays, scalars: Scalars) -> Arrays:
    """(x, y, operation, key of the call)."""
    return *ins, *outs, op, op.key(scalars)


def sgd(op: SGDUpdate, ins: Arrays, outs: Arrays, scalars: Scalars) -> Arrays:
    """(w, g, m, w', m', factors); without momentum m and m' are None."""
    pairs = (*ins, *outs) if op.momentum else (*ins, None, *outs, None)
    return *pairs, sgd_factors(op, scalars)


def adam(op: AdamUpdate, ins: Arrays, outs: Arrays, scalars: Scalars) -> Arrays:
    """(w, g, m, v, w', m', v', factors)."""
    return *ins, *outs, adam_factors(op, scalars)


def rmsprop(op: RMSpropUpdate, ins: Arrays, outs: Arrays, scalars: Scalars) -> Arrays:
    """((w, g, v, a, b), (w', v', a', b'), factors, which of a and b are kept); the parameter stands
    for those that are not."""
    kept = op.centered, bool(op.momentum)
    slots, news = iter(ins[3:]), iter(outs[2:])
    before = (*ins[:3], *(next(slots) if one else ins[0] for one in kept))
    after = (*outs[:2], *(next(news) if one else outs[0] for one in kept))
    return before, after, rmsprop_factors(op, scalars), kept


def _conv_shape(op: Convolution, ins: Arrays, outs: Arrays) -> ConvShape:
    """All extents, from arrays in physical layout."""
    x, w = op.image_and_weight(ins, outs)
    (n, height, width, c), (k, r, s, c_of_group) = x.shape, w.shape
    return conv_shape(op.geometry, (n, c, height, width), (k, c_of_group, r, s))
