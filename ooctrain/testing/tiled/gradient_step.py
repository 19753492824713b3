"""A step without a loss: forward, then backward from a given gradient of the output.

A model and the shape of its images give a trace with the outputs "y", "grad:x" and
"grad:<parameter>", and random values to begin with. With a random gradient of the output, terms do
not cancel, as they do behind a loss that is a mean. Read next: `check_tiled.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ooctrain.engine.backward import record_backward
from ooctrain.engine.module import Module
from ooctrain.engine.tensor import Tape, Tensor, use_tape
from ooctrain.engine.trace_runner import TraceRunner
from ooctrain.step.trace import Trace
from ooctrain.tracing import image_spec


def gradient_step(
    model: Module, image: Sequence[int], *, conv_algorithm: str = "auto", threads: int = 2,
    image_gradient: bool = True,
) -> Trace:  # fmt: skip
    """Forward and backward of a model from a given output gradient, without a loss.

    Args:
        image: (N, C, H, W) of the input "x"; the output gradient "dy" is an input, too.
        image_gradient: whether "x" needs a gradient, which images of bytes have not.
    """
    names: dict[Tensor, str] = {p: name for name, p in model.named_parameters()}
    names |= {buffer: name for name, buffer in model.named_buffers()}
    runner = TraceRunner(threads, names)
    tape = Tape(runner, conv_algorithm=conv_algorithm)
    with use_tape(tape):
        for parameter, name in names.items():
            parameter.name, parameter.grad = name, None
        x = runner.input("x", image_spec(model, tuple(image)))
        x.requires_grad = image_gradient and x.dtype == "float32"
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
        of_size = variable.kind == "state" or variable.dtype == "uint8"  # variances, counts, bytes
        values[variable.name] = (abs(drawn) if of_size else drawn).astype(variable.dtype)
    return values
