"""Writing a tiled trace: calls that are listed first become calls with numbers.

The trace's calls, in their new order, with `TileCall`s between them, become a checked trace. A
value gets its number when a call first touches it, so code that makes steps names values and never
counts. A tile's calls are listed first and written last, so that backward calls whose results are
not read can be left out. Read next: `weave.py`, `bands.py`, which make the steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from ooctrain.layers.combine import Add, Constant
from ooctrain.layers.kernels.device_tables import TABLES
from ooctrain.step.builder import TraceBuilder
from ooctrain.step.op import Op, Spec
from ooctrain.step.trace import Call, Kind, Phase, Trace


@dataclass(slots=True, eq=False)
class Value:
    """A variable of the tiled trace that may not have its number yet."""

    name: str
    spec: Spec
    kind: Kind
    variable: int | None = None


@dataclass(slots=True, eq=False)
class TileCall:
    """A call of the tiled trace that is not written yet; `reuse` and `of` say what it stands for.

    Args:
        reuse: {output position: input position}, as in the original call.
        of: the step, or the call of the new trace, that it differentiates.
    """

    name: str
    op: Op
    ins: tuple[Value, ...]
    outs: tuple[Value, ...]
    phase: Phase = "forward"
    reuse: Mapping[int, int] = field(default_factory=dict)
    of: TileCall | None = None
    call: int | None = None


def zeros(like: Value) -> tuple[Value, list[TileCall]]:
    """A variable of zeros to insert into, and the step that writes it."""
    value = Value(f"{like.name}.zero", like.spec, like.kind)
    phase: Phase = "backward" if like.kind == "grad" else "forward"
    fill = Constant(0.0, like.spec.shape)
    return value, [TileCall(f"{like.name}.fill", fill, (), (value,), phase)]


def onto(whole: Value, name: str, call: str, op: Op, part: Value, phase: Phase) -> TileCall:
    """A call that puts `part` into `whole` or adds it: the next version of the whole, on the same
    storage.

    Args:
        name, call: names of that version and of the call.
    """
    new = Value(name, whole.spec, whole.kind)
    return TileCall(call, op, (whole, part), (new,), phase, reuse={0: 0})


def add_up(
    gradient: int, part: Value, steps: list[TileCall], totals: dict[int, Value],
    phase: Phase = "backward",
) -> None:  # fmt: skip
    """Adds a tile's part of a parameter gradient to the sum over tiles, on the sum's storage."""
    if gradient not in totals:
        totals[gradient] = part
        return
    name = part.name.replace("[", "[to ", 1)
    steps.append(onto(totals[gradient], name, f"{part.name}.sum", Add(), part, phase))
    totals[gradient] = steps[-1].outs[0]


def alive(steps: Sequence[TileCall], wanted: set[Value]) -> list[TileCall]:
    """All steps before backward, and those of backward that lead to what is wanted."""
    kept: list[TileCall] = []
    for step in reversed(steps):
        if step.phase != "backward" or wanted.intersection(step.outs):
            kept.append(step)
            wanted.update(step.ins)
    return kept[::-1]


class TraceWriter:
    """A new trace in the making; its workspaces are for as many threads as those of the old one."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self._builder = TraceBuilder(trace.threads, trace.device)
        self._values: dict[int, Value] = {}  # variable of the old trace: what stands for it
        self._calls: dict[int, int] = {}  # call of the old trace: call of the new one
        for variable in trace.initial:
            self._write_value(self.value_of(variable))

    def value_of(self, variable: int) -> Value:
        """What stands for a variable of the old trace."""
        if variable not in self._values:
            old = self.trace.variables[variable]
            self._values[variable] = Value(old.name, Spec(old.shape, old.dtype), old.kind)
        return self._values[variable]

    def becomes(self, variable: int, value: Value) -> None:
        """From now on `value` stands for a variable of the old trace, under its name."""
        old = self.trace.variables[variable]
        value.name, value.kind = old.name, old.kind
        self._values[variable] = value

    def copy(self, calls: Iterable[Call]) -> None:
        """Writes calls of the old trace as they are."""
        number = self._number
        for call in calls:
            self._calls[call.id] = self._builder.call(
                call.name, call.op, tuple(map(number, call.ins)), tuple(map(number, call.outs)),
                workspace_bytes=call.workspace_bytes, pure=call.pure, phase=call.phase,
                reuse={number(out): number(source) for out, source in call.reuse.items()},
                forward_of=None if call.forward_of is None else self._calls.get(call.forward_of),
                duration_ns=call.duration_ns,
            )  # fmt: skip

    def write(self, steps: Sequence[TileCall], wanted: Iterable[Value] = ()) -> None:
        """Writes the steps, without those in backward that lead to nothing that is wanted."""
        for step in alive(steps, set(wanted)):
            ins, outs = (tuple(map(self._write_value, side)) for side in (step.ins, step.outs))
            in_specs, out_specs = ([v.spec for v in side] for side in (step.ins, step.outs))
            step.call = self._builder.call(
                step.name, step.op, ins, outs, phase=step.phase,
                workspace_bytes=TABLES[self.trace.device].workspace_bytes(
                    step.op, in_specs, out_specs, self.trace.threads or 1
                ),
                reuse={outs[out]: ins[source] for out, source in step.reuse.items()},
                forward_of=step.of.call if step.of is not None else None,
            )  # fmt: skip

    def finish(self) -> Trace:
        """The new trace, with the outputs and carries of the old one.

        A variable that the original call was the last to read may be read later here, for example
        when forward calls run again: then its storage must not be taken over.
        """
        builder = self._builder
        last_read = {v: call.id for call in builder.calls for v in call.ins}
        for i, call in enumerate(builder.calls):
            legal = {out: source for out, source in call.reuse.items() if last_read[source] == i}
            if len(legal) < len(call.reuse):
                builder.calls[i] = replace(call, reuse=MappingProxyType(legal))
        carries, outputs = self.trace.carries, self.trace.outputs
        builder.carries = {self._number(new): self._number(old) for new, old in carries.items()}
        builder.outputs = {name: self._number(v) for name, v in outputs.items()}
        return builder.build()

    def _write_value(self, value: Value) -> int:
        if value.variable is None:
            value.variable = self._builder.variable(
                value.name, value.spec.shape, value.spec.dtype, value.kind
            )
        return value.variable

    def _number(self, variable: int) -> int:
        """The variable of the new trace that stands for an old one."""
        return self._write_value(self.value_of(variable))


def positions(call: Call) -> dict[int, int]:
    """The call's reuse by positions instead of variables."""
    return {call.outs.index(out): call.ins.index(source) for out, source in call.reuse.items()}
