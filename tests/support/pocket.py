"""The files of `tutorials/pocket`, imported as they import each other: by their plain names."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

import ooctrain as oc
from ooctrain.sched.schedule import Free, Run, Schedule, SwapIn, SwapOut
from ooctrain.step.builder import TraceBuilder
from ooctrain.step.chain import Stage
from ooctrain.step.trace import Trace

FOLDER = Path(__file__).parents[2] / "tutorials" / "pocket"
sys.path.insert(0, str(FOLDER))

import steplist  # noqa: E402  (the folder of a script is where it looks first)
from tape import Call, Step, Tape  # noqa: E402


def chain_from_the_host(sizes: list[int], gradients: list[int], times_us: list[tuple[int, int]]):
    """A chain as `oc.chain` makes it, but x0 is an input: it comes from the host."""
    builder = TraceBuilder()
    stages = len(times_us)
    kinds = ["input"] + ["activation"] * stages
    x = [builder.variable(f"x{i}", (s,), "uint8", kinds[i]) for i, s in enumerate(sizes)]
    y = [builder.variable(f"y{i}", (s,), "uint8", "grad") for i, s in enumerate(gradients)]
    forward = [
        builder.call(f"F{i}", Stage(), (x[i],), (x[i + 1],), duration_ns=times_us[i][0] * 1000)
        for i in range(stages)
    ]
    builder.call("loss", Stage(), (x[-1],), (y[-1],), phase="loss", duration_ns=0)
    for i in reversed(range(stages)):
        reads = (x[i], x[i + 1], y[i + 1])
        builder.call(
            f"B{i}", Stage(), reads, (y[i],), phase="backward", forward_of=forward[i],
            duration_ns=times_us[i][1] * 1000,
        )  # fmt: skip
    return builder.build()


def step_of(trace: Trace) -> Step:
    """A chain of the library as a step of the pocket: a call has the name of what it writes."""
    name = [variable.name for variable in trace.variables]
    calls = tuple(
        Call(name[call.outs[0]], tuple(name[v] for v in call.ins), call.duration_ns)
        for call in trace.calls
    )
    persistent = tuple(name[v] for v in trace.initial if trace.variables[v].persistent)
    inputs = tuple(name[v] for v in trace.initial if not trace.variables[v].persistent)
    turn = [call.phase for call in trace.calls].index("loss")
    size = {variable.name: variable.nbytes for variable in trace.variables}
    return Step(calls, size, persistent, inputs, {v: v for v in persistent}, turn)


def lines_of(schedule: Schedule, trace: Trace) -> list[steplist.Instruction]:
    """A list of the library, of whole values, in the words of the pocket. Fences and Ends go: in
    these lists every claim waits for all that they stand for.
    """
    lines = []
    for instruction in schedule.instructions:
        match instruction:
            case Run(call):
                (out,) = trace.calls[call].outs
                lines.append(steplist.Run(trace.variables[out].name))
            case SwapOut(variable) | SwapIn(variable) | Free(variable):
                word = getattr(steplist, type(instruction).__name__)
                lines.append(word(trace.variables[variable].name))
    return lines


def held_over_time(step: Step, instructions, spans) -> int:
    """The most bytes that are on the device at any time: from the start of what claims them to the
    moment at which they are given back.
    """
    changes = []
    for instruction, span in zip(instructions, spans, strict=True):
        size = step.size[instruction.value]
        if isinstance(instruction, steplist.Free):
            changes.append((span.end, -size))
        elif not isinstance(instruction, steplist.SwapOut):
            changes.append((span.start, size))
    held = most = sum(step.size[value] for value in step.on_device)
    for _, change in sorted(changes):
        held += change
        most = max(most, held)
    return most


def numbers_of(tape: Tape, values: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Every value of a step, computed in the order of the tape."""
    numbers = dict(values)
    for call in tape.calls:
        result = call.function(*(numbers[read] for read in call.reads))
        numbers[call.name] = np.reshape(result, tape.shapes[call.name])
    return numbers


def integers(tape: Tape, seed: int = 0) -> dict[str, np.ndarray]:
    """Small whole numbers for all inputs and parameters: their sums are exact in any order."""
    random = np.random.default_rng(seed)
    names = (*tape.inputs, *tape.parameters)
    return {v: random.integers(-3, 4, tape.shapes[v]).astype(np.float32) for v in names}


class Weighted:
    """A loss with exact gradients: the sum of x times some numbers."""

    inputs = ("x", "weights")
    gradient_reads = {"x": ("weights",)}  # noqa: RUF012

    def shape(self, x, weights):
        return ()

    def run(self, x, weights):
        return (x * weights).sum()

    def dx(self, weights):
        return weights


class Add:
    """The sum of two images: a value that is read on both ways has two gradients."""

    inputs = ("x", "b")
    gradient_reads = {"x": ("dy",), "b": ("dy",)}  # noqa: RUF012

    def shape(self, x, b):
        return x

    def run(self, x, b):
        return x + b

    def dx(self, dy):
        return dy

    def db(self, dy):
        return dy


def whole_values() -> oc.units.Granule:
    """Values move as a whole, as they do in the pocket."""
    return oc.units.Granule(1, ranges=False)
