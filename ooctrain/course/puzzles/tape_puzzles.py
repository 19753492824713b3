"""Series e: autograd. The gradient of a line of the tape is more lines; the student writes them.

An answer is a rule, or a pair of new functions and a rule. It is judged by slopes: along each
element of each input, (L(v + h) - L(v - h)) / 2h with a random cotangent, since a uniform one hides
what batch norm gets wrong. The first element that is off is named. The second number counts what
must wait for the backward pass: floats of forward values that the backward lines read. Its target
is computed too: a forward value is needed if the slopes change with it. Read next: tutorial 01,
`../../layers/batch_norm.py` for the library's own backward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import numpy as np

from ooctrain.course.puzzles.attempt import Attempt, Puzzle, Score, Wrong, attempted
from ooctrain.report.charts import Piece, strips_svg

# The forty-line tape of tutorial 01. Every computation is a line (function, inputs, output) over
# named values; the gradient of a line is more lines. A rule gets the tape, the names of a line's
# inputs and output, and the name of the output's gradient; it returns the names of the inputs'
# gradients.

#: What a line can say from the start.
FUNCTIONS: Mapping[str, Callable[..., np.ndarray]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "matmul": lambda a, b: a @ b,
}


class NamedTape:
    """Lines (function, inputs, output) over named values.

    Args:
        functions: {name: function} of those that a line can say.
    """

    def __init__(self, functions: Mapping[str, Callable[..., Any]] = FUNCTIONS):
        self.functions = functions
        self.lines: list[tuple[str, tuple[str, ...], str]] = []
        self.values: dict[str, np.ndarray] = {}

    def new(self, name: str, value: np.ndarray) -> str:
        """Puts a value under a name, and returns the name."""
        self.values[name] = value
        return name

    def run(self, function: str, *inputs: str) -> str:
        """Adds one line, runs it, and returns the output's name."""
        output = f"v{len(self.lines)}"
        self.lines.append((function, inputs, output))
        self.values[output] = self.functions[function](*(self.values[name] for name in inputs))
        return output


# The puzzles.

_EPSILON = float(np.finfo(float).eps)
#: Of a central difference the rounding grows with 1 / h and the rest with h ** 2: here they meet.
_STEP = _EPSILON ** (1 / 3)
#: Beside the largest slope: what a central difference loses, with room for the sums in it.
TOLERANCE = 1e4 * _EPSILON ** (2 / 3)
Arrays = Mapping[str, np.ndarray]


def conv(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """(N, C, H, W) by (K, C, R, S) without padding: (N, K, H - R + 1, W - S + 1)."""
    fields = np.lib.stride_tricks.sliding_window_view(x, w.shape[2:], (2, 3))
    return np.einsum("nchwrs,kcrs->nkhw", fields, w)


def batch_norm(x: np.ndarray, gamma: np.ndarray, beta: np.ndarray) -> np.ndarray:
    """(N, C): each channel with mean 0 and variance 1 over the batch, times gamma, plus beta."""
    mean, variance = x.mean(0), x.var(0)
    return gamma * (x - mean) / np.sqrt(variance + 1e-5) + beta


@dataclass(frozen=True, slots=True)
class TapeTask:
    """An operation whose gradient is requested.

    Args:
        function: its name on the tape.
        forward: what it computes.
        shapes: {input: shape}.
    """

    function: str
    forward: Callable[..., np.ndarray]
    shapes: Mapping[str, tuple[int, ...]]

    def inputs(self, seed: int) -> dict[str, np.ndarray]:
        """Random inputs."""
        rng = np.random.default_rng(seed)
        return {name: rng.standard_normal(shape) for name, shape in self.shapes.items()}

    def cotangent(self) -> np.ndarray:
        """A random gradient of the output."""
        shape = self.forward(*self.inputs(0).values()).shape
        return np.random.default_rng(9).standard_normal(shape)


TASKS = {
    "e1": TapeTask("mul", FUNCTIONS["mul"], {"a": (3, 2), "b": (3, 2)}),
    "e2": TapeTask("conv", conv, {"x": (2, 2, 4, 5), "w": (3, 2, 2, 3)}),
    "e3": TapeTask("batch_norm", batch_norm, {"x": (5, 3), "gamma": (3,), "beta": (3,)}),
}


def slopes(task: TapeTask, inputs: Arrays) -> dict[str, np.ndarray]:
    """{input: the slope of sum(cotangent * output) along each of its elements}."""
    cotangent, found = task.cotangent(), {}
    for name, value in inputs.items():
        found[name] = np.zeros_like(value)
        for place in np.ndindex(value.shape):
            sides = []
            for sign in (1, -1):
                moved = value.copy()
                moved[place] += sign * _STEP
                sides.append((cotangent * task.forward(*{**inputs, name: moved}.values())).sum())
            found[name][place] = (sides[0] - sides[1]) / (2 * _STEP)
    return found


def needed(task: TapeTask) -> list[str]:
    """The inputs with which the slopes change: no backward pass does without them."""
    inputs, other = task.inputs(0), task.inputs(1)
    before = slopes(task, inputs)
    found = []
    for name in inputs:
        after = slopes(task, {**inputs, name: other[name]})
        if any(np.abs(after[key] - before[key]).max() > 1e-3 for key in inputs):
            found.append(name)
    return found


@lru_cache(maxsize=4)
def expected(name: str) -> tuple[dict[str, np.ndarray], float]:
    """(the slopes, the floats that must wait) of a task."""
    task = TASKS[name]
    waits = sum(np.prod(task.shapes[value]) for value in needed(task))
    return slopes(task, task.inputs(0)), float(waits)


def judge(name: str, title: str, answer: Any) -> Attempt:
    """Runs a rule on the tape, and compares gradients with slopes."""
    task, (right, waits) = TASKS[name], expected(name)
    functions, rule = answer if isinstance(answer, tuple) and len(answer) == 2 else ({}, answer)
    known = {**FUNCTIONS, task.function: task.forward, **functions}
    if task.function in functions:
        known[task.function] = task.forward  # the forward pass is given
    tape = NamedTape(known)

    def run() -> dict[str, np.ndarray]:
        for name, value in task.inputs(0).items():
            tape.new(name, value)
        output = tape.run(task.function, *task.shapes)
        tape.new("dy", task.cotangent())
        if not callable(rule):
            raise Wrong(f"a rule is a function of (tape, inputs, output, dy), not {rule!r:.40}")
        names = rule(tape, *task.shapes, output, "dy")
        return _gradients(task, tape, names)

    wrong, gradients = attempted(run)
    error = None
    if gradients is not None:
        error = max(_error(gradients[value], right[value]) for value in right)
        wrong, _ = attempted(lambda: _compare(gradients, right))
    read = _waiting(tape) if gradients is not None else None
    numbers = (
        Score("error beside the slope", error, TOLERANCE),
        Score("floats that wait", read, waits, waits),
    )
    hint = "a backward line reads a forward value that could be done without"
    return Attempt(title, numbers, wrong, hint, lifetimes(title, tape))


def _gradients(task: TapeTask, tape: NamedTape, names: Any) -> dict[str, np.ndarray]:
    inputs = list(task.shapes)
    if not isinstance(names, tuple | list) or len(names) != len(inputs):
        raise Wrong(
            f"the rule returns {len(inputs)} names, of the gradients of {', '.join(inputs)}, "
            f"and it returns {names!r:.60}"
        )
    found = {}
    for name, given in zip(inputs, names, strict=True):
        if given not in tape.values:
            raise Wrong(
                f"the gradient of {name} is {given!r}, and no value on the tape has that name"
            )
        found[name] = np.asarray(tape.values[given])
        if found[name].shape != task.shapes[name]:
            raise Wrong(
                f"the gradient of {name} has the shape {found[name].shape}, and {name} has "
                f"{task.shapes[name]}"
            )
    return found


def _error(found: np.ndarray, right: np.ndarray) -> float:
    return float(np.abs(found - right).max() / max(np.abs(right).max(), 1.0))


def _compare(gradients: Arrays, right: Arrays) -> None:
    for name, slope in right.items():
        # Written so that what is not a number is off, too.
        off = ~(np.abs(gradients[name] - slope) <= TOLERANCE * max(np.abs(slope).max(), 1.0))
        if off.any():
            place = tuple(int(i) for i in np.argwhere(off)[0])
            raise Wrong(
                f"the gradient of {name} at {list(place)} is {gradients[name][place]:.6g}, and the "
                f"slope there is {slope[place]:.6g} ({int(off.sum())} of {off.size} are off)"
            )


def _waiting(tape: NamedTape) -> float:
    """Floats of forward values that backward lines read."""
    forward = {*tape.lines[0][1], tape.lines[0][2]}
    read = {name for _, inputs, _ in tape.lines[1:] for name in inputs} & forward
    return float(sum(tape.values[name].size for name in read))


def lifetimes(title: str, tape: NamedTape) -> str:
    """From the line that writes a value to the last that reads it, for each value of a tape."""
    lines = tape.lines
    written_by_lines = {output for *_, output in lines}
    first = [name for name in tape.values if name not in written_by_lines]
    rows: list[tuple[str, Sequence[Piece]]] = []
    for name in first:
        reads = [n for n, (_, inputs, _) in enumerate(lines) if name in inputs]
        begin = 1 if name == "dy" else 0
        rows.append((name, [Piece(begin, max(reads, default=begin) + 1, name, 2)]))
    for written, (function, _, output) in enumerate(lines):
        reads = [n for n, (_, inputs, _) in enumerate(lines) if output in inputs]
        end = max(reads, default=len(lines) - 1 if written else written) + 1
        rows.append((f"{output} {function}"[:16], [Piece(written, end, output, int(written > 0))]))
    legend = ("forward", "backward", "given")
    return strips_svg(
        title, rows, extent=max(len(lines), 1), axis="line of the tape", legend=legend
    )


TITLES = {"e1": "The gradient of a product", "e2": "The gradients of a convolution",
          "e3": "Batch norm, backward"}  # fmt: skip


PUZZLES = tuple(Puzzle(name, TITLES[name], partial(judge, name)) for name in TASKS)
