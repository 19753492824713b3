"""The forty-line tape of tutorial 01, on which the puzzles of series e add operations.

Every computation is a line (function, inputs, output) over named values; the gradient of a line is
more lines. A rule gets the tape, the names of a line's inputs and output, and the name of the
output's gradient; it returns the names of the inputs' gradients. Read next: `tape_puzzles.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

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
