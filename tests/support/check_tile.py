"""The law of tiling: a tiled trace computes what the untiled one does.

In: a trace, a grid, values for inputs and parameters. Out: silence, or an AssertionError that names
the output. The one idea: both traces are run call by call and their outputs (y, dX, dW, db of a
chain; loss, gradients and updated parameters of a step) must agree; on small whole numbers float
sums are exact in any order, so there they agree to the bit. Also for an operation of your own that
has a tile rule. Read next: `rewrite/tile/weave.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from ooctrain.engine.backward import record_backward
from ooctrain.engine.incore import Mode, run_trace
from ooctrain.engine.module import Module
from ooctrain.engine.tensor import Tape, Tensor, use_tape
from ooctrain.rewrite.tile.rewrite import Tiling, tile_trace
from ooctrain.step.op import Scalars, Spec
from ooctrain.step.trace import Trace
from ooctrain.tracing import TraceRunner

SCALARS: Scalars = {"lr": 0.5, "step": 3, "seed": 7}


def chain_trace(
    model: Module,
    image: Sequence[int],
    *,
    conv_algorithm: str = "auto",
    threads: int = 2,
    image_gradient: bool = True,
) -> Trace:
    """Forward and backward of a model from a given output gradient, without a loss.

    Args:
        image: (N, C, H, W) of the input "x"; the output gradient "dy" is an input, too.
        image_gradient: whether "x" needs a gradient.

    Returns:
        A trace with outputs "y", "grad:x" and "grad:<parameter>".
    """
    names: dict[Tensor, str] = {p: name for name, p in model.named_parameters()}
    names |= {buffer: name for name, buffer in model.named_buffers()}
    runner = TraceRunner(threads, names)
    tape = Tape(runner, conv_algorithm=conv_algorithm)
    with use_tape(tape):
        for parameter, name in names.items():
            parameter.name, parameter.grad = name, None
        x = runner.input("x", Spec(tuple(image)))
        x.requires_grad = image_gradient
        y = model(x)
        if y.requires_grad:
            record_backward(tape, y, runner.input("dy", y.spec))
    outputs = {"y": y} | {f"grad:{t.name}": t.grad for t in (x, *names) if t.grad is not None}
    runner.builder.outputs = {name: tensor.variable for name, tensor in outputs.items()}
    return runner.builder.build()


def random_values(
    trace: Trace, seed: int = 0, *, integers: int | None = 2
) -> dict[str, np.ndarray]:
    """Values of all initial variables: whole numbers up to `integers`, or normal if None."""
    rng = np.random.default_rng(seed)
    values = {}
    for variable in (trace.variables[v] for v in trace.initial):
        drawn = rng.standard_normal(variable.shape)
        if integers is not None:
            drawn = rng.integers(-integers, integers + 1, variable.shape).astype("float64")
        drawn = abs(drawn) if variable.kind == "state" else drawn  # variances, counts
        values[variable.name] = drawn.astype(variable.dtype)
    return values


def check_tile(
    trace: Trace,
    grid: tuple[int, int],
    values: Mapping[str, np.ndarray],
    *,
    first: str | None = None,
    last: str | None = None,
    mode: Mode = "cpu",
    threads: int = 2,
    bound: Callable[[str], float | np.ndarray] | None = None,
) -> None:
    """Runs a trace and its tiled form and compares their outputs and the values that they carry
    over.

    Args:
        grid, first, last: as `oc.tile` takes them.
        values: of the initial variables; small whole numbers where equality to the bit is wanted.
        mode: "cpu" runs the kernels, "reference" the definitions in float64.
        threads: for which the trace was made.
        bound: largest error allowed for an output, by name; None: equal to the bit.

    Raises:
        AssertionError: names the output and says how far apart the two are.
    """
    tiled = tile_trace(trace, Tiling(grid, first, last))  # without a word where it has fewer tiles
    expected, found = (run_trace(t, values, SCALARS, mode, threads=threads) for t in (trace, tiled))
    assert expected.keys() == found.keys(), "an output is lost"
    for name, value in expected.items():
        limit: float | np.ndarray = 0.0 if bound is None else bound(name)
        assert value.shape == found[name].shape, f"{name}: {value.shape} became {found[name].shape}"
        error = np.abs(value.astype("float64") - found[name])
        assert np.all(error <= limit), (
            f"{name}: off by {error.max()}, at most {limit}, in {grid} tiles"
        )
