"""How a trace is made: variables and calls one after the other, then a check of the whole.

Ids are positions, and names are made unique here. So code that records a step (`tracing.py`),
rewrites one or invents one for a test need not do either; it gives names, shapes and operations in
the order of the step, and gets a checked `Trace`. Read next: `trace.py`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from ooctrain.step.trace import ITEM_BYTES, Call, Kind, Phase, Trace, Variable


class TraceBuilder:
    """Collects variables and calls in order, hands out ids and unique names, builds a checked
    `Trace`.
    """

    def __init__(self, threads: int | None = None, device: str = "cpu") -> None:
        self.threads, self.device = threads, device
        self.variables: list[Variable] = []
        self.calls: list[Call] = []
        self.carries: dict[int, int] = {}
        self.outputs: dict[str, int] = {}
        self.form: Any = None
        self._names: dict[str, int] = {}

    def variable(
        self, name: str, shape: tuple[int, ...], dtype: str = "float32", kind: Kind = "activation"
    ) -> int:
        """Adds a variable and returns its id; a name that is taken gets a suffix "#2", "#3", ..."""
        size = math.prod(shape) * ITEM_BYTES[dtype]
        self.variables.append(
            Variable(len(self.variables), self._unique(name), tuple(shape), dtype, size, kind)
        )
        return len(self.variables) - 1

    def call(
        self, name: str, op: Any, ins: tuple[int, ...], outs: tuple[int, ...], *,
        workspace_bytes: int = 0,
        reuse: Mapping[int, int] | None = None, pure: bool = True, phase: Phase = "forward",
        forward_of: int | None = None, duration_ns: int | None = None,
    ) -> int:  # fmt: skip
        """Adds a call and returns its id."""
        shared = MappingProxyType(dict(reuse or {}))
        self.calls.append(
            Call(len(self.calls), self._unique(name), op, tuple(ins), tuple(outs), workspace_bytes,
                 shared, pure, phase, forward_of, duration_ns)
        )  # fmt: skip
        return len(self.calls) - 1

    def build(self) -> Trace:
        """The finished trace, checked.

        Raises:
            ConfigError: an invariant is broken.
        """
        trace = Trace(
            tuple(self.variables),
            tuple(self.calls),
            MappingProxyType(dict(self.carries)),
            MappingProxyType(dict(self.outputs)),
            self.threads,
            self.device,
            self.form,
        )
        trace.check()
        return trace

    def _unique(self, name: str) -> str:
        self._names[name] = self._names.get(name, 0) + 1
        return name if self._names[name] == 1 else self._unique(f"{name}#{self._names[name]}")
