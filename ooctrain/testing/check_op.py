"""The laws of an operation, for the library's own and for a user's.

An operation is tried on given arrays, and an AssertionError says which law it breaks. Shapes are as
inferred. The kernel agrees with the NumPy definition, writes nothing outside its outputs and
workspace, changes no input, gives the same bits for any number of threads and any order of chunks,
and in place where it says it can. The recorded gradient agrees with central finite differences in
float64, along random cotangents; uniform ones hide mistakes, since the sum of a batch norm's output
does not depend on its input. Read next: `step/op.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from ooctrain.engine.backward import record_backward
from ooctrain.engine.incore import run_reference, run_trace
from ooctrain.engine.own_op import Op as OwnOp
from ooctrain.engine.tensor import Tape, Tensor, current_tape, use_tape
from ooctrain.engine.trace_runner import TraceRunner
from ooctrain.layers.kernels.cpu.table import CPU
from ooctrain.step.op import LINE_BYTES, Op, Scalars, Spec, physical_shape, to_physical
from ooctrain.step.trace import Trace

if TYPE_CHECKING:
    from ooctrain.layers.kernels.cpu.runtime.pool import ThreadPool

SCALARS: Mapping[str, float] = {"lr": 0.1, "step": 3, "seed": 7}
GUARD_BYTES = 256
GUARD = 0xA5
Function = Callable[..., Any]


def check_op(
    op: Op, *arrays: Any, scalars: Scalars = SCALARS, tolerance: float = 1e-5, gradient: bool = True
) -> None:
    """Checks all laws of one operation on given inputs.

    Args:
        arrays: logical inputs; floats are taken as float32. Choose values away from kinks (ReLU at
            0, equal values in a max-pooling window).
        scalars: step scalars.
        tolerance: tolerance of kernel against definition, relative to the largest value.
        gradient: check the gradient too, if the operation has one.

    Raises:
        AssertionError: a law is broken.
    """
    inputs = [as_input(array) for array in arrays]
    check_shapes(op, inputs, scalars)
    check_kernel(op, inputs, scalars, tolerance)
    if gradient and op.pure and _has_gradient(op):
        check_gradient(lambda *tensors: _call(op, tensors), *inputs, scalars=scalars)


def _has_gradient(op: Op) -> bool:
    """Whether an operation says what its gradient is; a user's own one does so by `backward`."""
    if isinstance(op, OwnOp):
        return type(op).backward is not OwnOp.backward
    return op.has_gradient


def check_shapes(op: Op, inputs: Sequence[np.ndarray], scalars: Scalars = SCALARS) -> None:
    """The definition's outputs have the shapes and types that `infer` says."""
    specs = op.infer(*map(spec_of, inputs))
    results = op.reference(*inputs, scalars=scalars)
    got = [np.shape(result) for result in results]
    assert got == [spec.shape for spec in specs], f"{op}: infer says {specs}, reference gives {got}"


def check_kernel(
    op: Op, inputs: Sequence[np.ndarray], scalars: Scalars = SCALARS, tolerance: float = 1e-5
) -> None:
    """The kernel against the definition; guards; threads; in place."""
    # Not at the top, since it loads Numba, which `oc.testing` and its other laws do without.
    from ooctrain.layers.kernels.cpu.runtime.pool import ThreadPool

    with closing(ThreadPool(1)) as alone:
        first = _run_kernel(op, inputs, scalars, alone)
        check_agreement(op, inputs, first, scalars, tolerance)
        if op.reusable():
            in_place = _run_kernel(op, inputs, scalars, alone, in_place=True)
            assert same_bits(first, in_place), f"{op}: in place"
    for threads, seed in ((2, None), (3, 1)):
        with closing(ThreadPool(threads, shuffle_seed=seed)) as pool:
            again = _run_kernel(op, inputs, scalars, pool)
        assert same_bits(first, again), f"{op}: {threads} threads give other bits than one"


def check_agreement(
    op: Op, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray], scalars: Scalars,
    tolerance: float,
) -> None:  # fmt: skip
    """A kernel's physical outputs are the definition's in float64, within `tolerance` of the
    largest."""
    exact = [a.astype(np.float64) if a.dtype == np.float32 else a for a in inputs]
    expected = run_reference(op, [to_physical(a) for a in exact], scalars)
    for got, want in zip(outputs, expected, strict=True):
        scale = max(1e-30, float(np.abs(want).max(initial=0)))
        error = float(np.abs(got - want).max(initial=0)) / scale
        assert error <= tolerance, (
            f"{op}: kernel differs from its definition by {error:.1e} of the largest"
        )


def check_gradient(
    function: Function, *arrays: np.ndarray, scalars: Scalars = SCALARS, step: float = 1e-5,
    tolerance: float = 2e-6,
) -> None:  # fmt: skip
    """The recorded gradient of a function of tensors against central finite differences, in
    float64.

    Args:
        function: records calls on the tape in force and returns a tensor or several.
        arrays: its arguments; floats get gradients, whole numbers do not.
        step: size of the differences' step.
        tolerance: relative to the largest element of each gradient.
    """
    trace = trace_function(function, arrays)
    rng = np.random.default_rng(5)
    values: dict[str, np.ndarray] = {
        trace.variables[v].name: rng.standard_normal(trace.variables[v].shape)
        for v in trace.initial
    }
    values |= {f"x{i}": array for i, array in enumerate(arrays)}
    found = run_trace(trace, values, scalars, "reference")
    forward = trace_function(function, arrays, gradient=False)
    for i in range(len(arrays)):
        if f"grad:x{i}" in found:
            recorded = found[f"grad:x{i}"]
            assert recorded.shape == arrays[i].shape, f"gradient of input {i}: {recorded.shape}"
            numeric = _differences(forward, values, f"x{i}", scalars, step)
            scale = max(1.0, float(np.abs(numeric).max(initial=0)))
            error = float(np.abs(numeric - recorded).max(initial=0)) / scale
            assert error <= tolerance, f"gradient of input {i} is off by {error:.1e} of its largest"


def trace_function(
    function: Function, arrays: Sequence[np.ndarray], gradient: bool = True
) -> Trace:
    """A trace of a function: inputs x0, x1, ...; outputs y0, y1, ... and grad:x0, ... for
    cotangents dy0, ...

    Args:
        gradient: record the backward pass too.
    """
    tensors = [
        Tensor(spec_of(a), name=f"x{i}", kind="param", requires_grad=a.dtype.kind == "f")
        for i, a in enumerate(arrays)
    ]
    runner = TraceRunner(1, {tensor: tensor.name for tensor in tensors})
    tape = Tape(runner, "im2col")
    with use_tape(tape):
        outs = function(*tensors)
        outs = [outs] if isinstance(outs, Tensor) else outs
        outs = [out for out in outs if out.requires_grad]
        for i, out in enumerate(outs):
            runner.builder.outputs[f"y{i}"] = out.variable
            cotangent = runner.input(f"dy{i}", out.spec)
            if gradient:
                record_backward(tape, out, cotangent, retain_graph=True)
    for tensor in tensors:
        if tensor.grad is not None:
            runner.builder.outputs[f"grad:{tensor.name}"] = tensor.grad.variable
    return runner.builder.build()


def _differences(
    trace: Trace, values: dict[str, np.ndarray], name: str, scalars: Scalars, step: float
) -> np.ndarray:
    """d sum(dy * y) / d x, element by element."""

    def total(x: np.ndarray) -> float:
        found = run_trace(trace, values | {name: x}, scalars, "reference")
        outputs = sum(name[0] == "y" for name in found)
        return sum(float(np.sum(found[f"y{i}"] * values[f"dy{i}"])) for i in range(outputs))

    base = values[name].astype(np.float64)
    result = np.zeros_like(base)
    for index in np.ndindex(base.shape):
        nudge = np.zeros_like(base)
        nudge[index] = step
        result[index] = (total(base + nudge) - total(base - nudge)) / (2 * step)
    return result


def _run_kernel(
    op: Op, inputs: Sequence[np.ndarray], scalars: Scalars, pool: ThreadPool,
    in_place: bool = False,
) -> list[np.ndarray]:  # fmt: skip
    specs = [spec_of(a) for a in inputs]
    space_bytes = CPU.workspace_bytes(op, specs, op.infer(*specs), pool.threads)
    run = partial(CPU.run, op, pool, scalars=scalars)
    return run_guarded(op, inputs, run, space_bytes, in_place)


def run_guarded(
    op: Op, inputs: Sequence[np.ndarray], run: Callable[..., None], space_bytes: int,
    in_place: bool = False,
) -> list[np.ndarray]:  # fmt: skip
    """Runs a kernel between guards; outputs and workspace hold garbage before.

    Args:
        inputs: logical.
        run: takes physical inputs, outputs and workspace.
        space_bytes: size of the workspace.
        in_place: outputs lie on the inputs that the operation may reuse.

    Returns:
        The physical outputs.
    """
    in_specs = [spec_of(a) for a in inputs]
    ins = [_block(physical_shape(s.shape), s.dtype) for s in in_specs]
    for block, value in zip(ins, inputs, strict=True):
        block.array[...] = to_physical(value)
    reuse = op.reusable() if in_place else {}
    outs = [
        ins[reuse[i]] if i in reuse else _block(physical_shape(s.shape), s.dtype)
        for i, s in enumerate(op.infer(*in_specs))
    ]
    space = _block((space_bytes,), "uint8")
    run([b.array for b in ins], [b.array for b in outs], space.array)
    for what, blocks in (("an input", ins), ("an output", outs), ("the workspace", [space])):
        assert all(block.intact for block in blocks), f"{op}: wrote outside {what}"
    for i, (block, value) in enumerate(zip(ins, inputs, strict=True)):
        same = block.array.tobytes() == to_physical(value).tobytes()
        assert same or i in reuse.values(), f"{op}: changed its input {i}"
    return [block.array.copy() for block in outs]


@dataclass(frozen=True, slots=True)
class _Block:
    """An array that begins at a cache line, between guard bytes."""

    array: np.ndarray
    before: np.ndarray
    after: np.ndarray

    @property
    def intact(self) -> bool:
        """Whether the guards still hold what was written there."""
        return bool((self.before == GUARD).all() and (self.after == GUARD).all())


def _block(shape: tuple[int, ...], dtype: str) -> _Block:
    """A new block full of garbage: NaN, or 0x55 in each byte."""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    raw = np.full(size + 2 * GUARD_BYTES + LINE_BYTES, GUARD, np.uint8)
    start = GUARD_BYTES + -(raw.ctypes.data + GUARD_BYTES) % LINE_BYTES
    raw[start : start + size] = 0x55
    array = raw[start : start + size].view(dtype).reshape(shape)
    if array.dtype.kind == "f":
        array[...] = np.nan
    return _Block(array, raw[:start], raw[start + size :])


def as_input(array: Any) -> np.ndarray:
    """An argument of a check as an array; floats as float32."""
    value = np.asarray(array)
    return value.astype(np.float32) if value.dtype.kind == "f" and value.ndim else value


def spec_of(array: np.ndarray) -> Spec:
    """Shape and type of an array."""
    return Spec(array.shape, str(array.dtype))


def _call(op: Op, tensors: Sequence[Tensor]) -> Sequence[Tensor]:
    return current_tape().call(op, tensors)


def same_bits(a: Sequence[np.ndarray], b: Sequence[np.ndarray]) -> bool:
    """Whether two lists of arrays are equal to the last bit."""
    return all(x.tobytes() == y.tobytes() for x, y in zip(a, b, strict=True))
