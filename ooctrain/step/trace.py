"""A training step as data: variables, calls in order, and what carries over to the next step.

A `Trace` is a straight-line list of pure calls over variables that are written once. It holds
nothing but shapes, so it needs no memory; planners, verifier, simulator and executor read it.
`trace.calls` is the papers' *function sequence*, `trace.variable_sequence()` their *variable
sequence* (paper 000, section 3). `builder.py` makes one. Read next: `sched/schedule.py`; what a
call is and takes: `op.py`, `machine.py`.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any, Literal, get_args

from ooctrain.errors import ConfigError
from ooctrain.step.shown import html_of, svg_of

Kind = Literal["input", "param", "state", "activation", "stat", "grad", "wgrad", "aux"]
Phase = Literal["forward", "loss", "backward", "update"]
KINDS: tuple[Kind, ...] = get_args(Kind)
PHASES: tuple[Phase, ...] = get_args(Phase)
ITEM_BYTES = {"float32": 4, "float64": 8, "int64": 8, "int32": 4, "uint8": 1, "bool": 1}
_NOTHING: Mapping[int, int] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Variable:
    """One value of the step: written by exactly one call, or there before the first.

    Args:
        id: its index in `Trace.variables`.
        name: readable and unique, for example "layer1.0.conv1.out".
        shape: logical shape, (N, C, H, W) for images, (K, C, R, S) for convolution weights.
        dtype: NumPy's name of the element type.
        nbytes: what it takes of the ledger, before any rounding by an allocator: its size, or 0
            where it is pinned.
        kind: "input" (comes from the host each step), "param" and "state" (persist over steps),
            "activation", "stat" (batch statistics), "grad" (of an activation), "wgrad" (of a
            parameter), "aux" (loss, pooling indices and the like).
        pinned: whether it lies in the region of small objects (`rewrite/pin_small.py`), always.
    """

    id: int
    name: str
    shape: tuple[int, ...]
    dtype: str
    nbytes: int
    kind: Kind
    pinned: bool = False

    @property
    def value_bytes(self) -> int:
        """What its value takes, be it pinned or not."""
        return math.prod(self.shape) * ITEM_BYTES[self.dtype] if self.pinned else self.nbytes

    @property
    def persistent(self) -> bool:
        """Whether it lives on from step to step (parameters, optimizer slots, running
        statistics).
        """
        return self.kind in ("param", "state")


@dataclass(frozen=True, slots=True)
class Call:
    """One call of an operation. It never changes what it reads, except by `reuse`.

    Args:
        id: its index in `Trace.calls`.
        name: readable and unique, for example "layer1.0.conv1.fwd".
        op: the operation (`step.op.Op`); the list's laws never look inside.
        ins: ids of the variables read; repetitions are allowed.
        outs: ids of the variables written.
        workspace_bytes: scratch while it runs, for the device and threads of the trace.
        reuse: {out: in}: the output takes over the input's storage, whose old value is gone.
        pure: may run again; updates of parameters and running statistics may not.
        phase: "forward", "loss", "backward" or "update".
        forward_of: for a backward call, the id of the forward call that it differentiates.
        duration_ns: a fixed time where the trace carries its own (`oc.chain`); else the cost
            model's.
    """

    id: int
    name: str
    op: Any
    ins: tuple[int, ...]
    outs: tuple[int, ...]
    workspace_bytes: int = 0
    reuse: Mapping[int, int] = field(default_factory=lambda: _NOTHING)
    pure: bool = True
    phase: Phase = "forward"
    forward_of: int | None = None
    duration_ns: int | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        """A read-only dictionary cannot be pickled."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return _again, (Call, values | {"reuse": dict(self.reuse)}, ("reuse",))

    def touched(self) -> tuple[int, ...]:
        """Its distinct variables, inputs first, in order of first appearance."""
        return tuple(dict.fromkeys(self.ins + self.outs))


@dataclass(frozen=True)
class Trace:
    """The step: `calls` in execution order over `variables`.

    Args:
        variables, calls: with `variables[i].id == i` and `calls[i].id == i`.
        carries: {new: old}: `new` is the next step's `old` (a parameter after its update).
        outputs: {name: variable}: values that the executor can hand out: "loss", and "grad:<param>"
            for the final gradient of each parameter.
        threads: device threads for which workspaces were computed; None where no kernels run it.
        device: "cpu" or "cuda": whose algorithms and workspaces the calls have.
        form: structure of the model's outputs, where they are several (`engine/nested.py`).
    """

    variables: tuple[Variable, ...]
    calls: tuple[Call, ...]
    carries: Mapping[int, int] = field(default_factory=lambda: _NOTHING)
    outputs: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    threads: int | None = None
    device: str = "cpu"
    form: Any = None

    def __reduce__(self) -> tuple[Any, ...]:
        """What is derived from it is found again."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        found = {"carries": dict(self.carries), "outputs": dict(self.outputs)}
        return _again, (Trace, values | found, tuple(found))

    def __hash__(self) -> int:
        """Steps of other sizes may share it; equality looks at everything."""
        return hash((len(self.variables), len(self.calls), self.threads, self.device))

    @cached_property
    def producer(self) -> tuple[int | None, ...]:
        """For each variable the id of the call that writes it; None for what is there before."""
        producer: list[int | None] = [None] * len(self.variables)
        for call in self.calls:
            for out in call.outs:
                producer[out] = call.id
        return tuple(producer)

    @cached_property
    def readers(self) -> tuple[tuple[int, ...], ...]:
        """For each variable the ids of the calls that read it, ascending."""
        readers: list[list[int]] = [[] for _ in self.variables]
        for call in self.calls:
            for variable in dict.fromkeys(call.ins):
                readers[variable].append(call.id)
        return tuple(map(tuple, readers))

    @cached_property
    def uses(self) -> tuple[tuple[int, ...], ...]:
        """For each variable the ids of the calls that write or read it, ascending."""
        return tuple(
            readers if producer is None else (producer, *readers)
            for producer, readers in zip(self.producer, self.readers, strict=True)
        )

    @cached_property
    def taker(self) -> Mapping[int, int]:
        """{variable: the call that takes over its storage}."""
        return {source: c.id for c in self.calls for source in c.reuse.values()}

    @cached_property
    def storage(self) -> tuple[int, ...]:
        """For each variable the first variable that had its storage in this step."""
        storage = list(range(len(self.variables)))
        for call in self.calls:
            for out, source in call.reuse.items():
                storage[out] = storage[source]
        return tuple(storage)

    @cached_property
    def initial(self) -> tuple[int, ...]:
        """Variables that no call writes: parameters, states and inputs."""
        return tuple(v for v, call in enumerate(self.producer) if call is None)

    @cached_property
    def carried_from(self) -> Mapping[int, int]:
        """{old: new}, the other direction of `carries`."""
        return {old: new for new, old in self.carries.items()}

    @cached_property
    def end_variables(self) -> Mapping[int, int]:
        """{initial variable: the variable that stands for it after the step} for those that
        persist.
        """
        return {
            v: self.carried_from.get(v, v) for v in self.initial if self.variables[v].persistent
        }

    @cached_property
    def call_by_name(self) -> Mapping[str, Call]:
        """{name: call}."""
        return MappingProxyType({call.name: call for call in self.calls})

    @cached_property
    def variable_by_name(self) -> Mapping[str, Variable]:
        """Look-up of a variable by its name."""
        return {variable.name: variable for variable in self.variables}

    @cached_property
    def fingerprint(self) -> str:
        """Hash of all that decides a plan: shapes, order, workspaces, reuse, operations."""
        digest = hashlib.sha256(b"" if self.device == "cpu" else self.device.encode())
        for v in self.variables:
            digest.update(f"{v.name}|{v.shape}|{v.dtype}|{v.nbytes}|{v.kind}\n".encode())
        for c in self.calls:
            head = (
                f"{c.name}|{c.op!r}|{c.ins}|{c.outs}|{c.workspace_bytes}|{sorted(c.reuse.items())}"
            )
            digest.update(f"{head}|{c.pure}|{c.phase}|{c.duration_ns}\n".encode())
        digest.update(repr(sorted(self.carries.items())).encode())
        return digest.hexdigest()[:32]

    def variable_sequence(self) -> tuple[int, ...]:
        """Paper 000's variable sequence: the distinct variables of each call, call after call."""
        return tuple(variable for call in self.calls for variable in call.touched())

    def with_calls(
        self, calls: Sequence[Call], stands_for: Mapping[int, int] | None = None,
        gone: Collection[int] = (),
    ) -> Trace:  # fmt: skip
        """The step with some calls changed, joined or dropped, as a rewrite edits it: a checked
        trace with new ids, without the variables that no call uses any more; names stay.

        Args:
            calls: in their new order; ids, variables and `forward_of` are those of this trace.
            stands_for: {call that is gone: call that now does its work}, for `forward_of`.
            gone: inputs that are gone.

        Raises:
            ConfigError: the result is not a trace, for example because a call moved before its
                input.
        """
        kept = {v for call in calls for v in call.touched()}
        kept |= {*self.initial, *self.outputs.values()} - set(gone)
        variables = [v for v in self.variables if v.id in kept]
        variable_ids = {v.id: new for new, v in enumerate(variables)}
        call_ids = {call.id: new for new, call in enumerate(calls)}
        call_ids |= {gone: call_ids[now] for gone, now in (stands_for or {}).items()}
        if len(variables) < len(self.variables) or any(old != new for old, new in call_ids.items()):
            variables = [v if v.id == new else _numbered(v, new) for new, v in enumerate(variables)]
            calls = [_renumbered(call, variable_ids, call_ids) for call in calls]
        carries = {variable_ids[new]: variable_ids[old] for new, old in self.carries.items()}
        outputs = {name: variable_ids[v] for name, v in self.outputs.items()}
        result = replace(
            self, variables=tuple(variables), calls=tuple(calls),
            carries=MappingProxyType(carries), outputs=MappingProxyType(outputs),
        )  # fmt: skip
        result.check()
        return result

    def check(self) -> None:
        """Walks every invariant of a trace. Time O(calls + variables).

        Raises:
            ConfigError: the first one that is broken, with the names concerned.
        """
        _check_ids(self)
        _check_order(self)
        _check_reuse(self)
        _check_carries(self)

    def __repr__(self) -> str:
        counts = f"{len(self.calls)} calls, {len(self.variables)} variables"
        return f"Trace({counts}, {self.fingerprint[:8]})"

    def _repr_html_(self) -> str:
        return html_of(self)

    def _repr_svg_(self) -> str:
        return svg_of(self)


# Written out: a step in bands has a hundred thousand of them, and `dataclasses.replace` takes four
# times as long.


def _numbered(v: Variable, new: int) -> Variable:
    return Variable(new, v.name, v.shape, v.dtype, v.nbytes, v.kind, v.pinned)


def _renumbered(call: Call, variables: Mapping[int, int], calls: Mapping[int, int]) -> Call:
    of = call.forward_of
    reuse = {variables[out]: variables[v] for out, v in call.reuse.items()}
    return Call(
        calls[call.id], call.name, call.op, tuple([variables[v] for v in call.ins]),
        tuple([variables[v] for v in call.outs]), call.workspace_bytes, MappingProxyType(reuse),
        call.pure, call.phase, None if of is None else calls.get(of), call.duration_ns,
    )  # fmt: skip


def _broken(what: str, **details: str) -> ConfigError:
    return ConfigError(f"broken trace: {what}", code="OOC-103", **details)


def _check_ids(trace: Trace) -> None:
    for kind, items in (("variable", trace.variables), ("call", trace.calls)):
        if [item.id for item in items] != list(range(len(items))):
            raise _broken(f"{kind} ids are not 0, 1, 2, ...")
        if len({item.name for item in items}) != len(items):
            raise _broken(f"two {kind}s have the same name")
    for variable in trace.variables:
        if variable.kind not in KINDS or variable.nbytes < 0:
            raise _broken(
                f"variable {variable.name!r} has kind {variable.kind!r}, {variable.nbytes} bytes"
            )


def _check_order(trace: Trace) -> None:
    known = set(trace.initial)
    for call in trace.calls:
        if call.phase not in PHASES or call.workspace_bytes < 0:
            raise _broken(
                f"call {call.name!r} has phase {call.phase!r}, workspace {call.workspace_bytes}"
            )
        for variable in call.ins:
            if variable not in known:
                raise _broken(
                    f"{call.name!r} reads {trace.variables[variable].name!r} before it is written"
                )
        for out in call.outs:
            if out in known:
                raise _broken(f"{trace.variables[out].name!r} is written twice", where=call.name)
            known.add(out)
    for variable in trace.initial:
        if trace.variables[variable].kind not in ("param", "state", "input"):
            raise _broken(
                f"{trace.variables[variable].name!r} is never written and is not an input"
            )


def _check_reuse(trace: Trace) -> None:
    for call in trace.calls:
        if len(set(call.reuse.values())) != len(call.reuse):
            raise _broken(f"{call.name!r} reuses one input twice")
        for out, source in call.reuse.items():
            if out not in call.outs or source not in call.ins:
                raise _broken(f"{call.name!r} reuses what it does not read or write")
            if trace.variables[out].nbytes != trace.variables[source].nbytes:
                raise _broken(f"{call.name!r} reuses a storage of another size")
            if trace.readers[source][-1] > call.id:
                raise _broken(
                    f"{call.name!r} overwrites {trace.variables[source].name!r}, read later"
                )


def _check_carries(trace: Trace) -> None:
    for new, old in trace.carries.items():
        a, b = trace.variables[new], trace.variables[old]
        if trace.producer[new] is None or trace.producer[old] is not None or a.nbytes != b.nbytes:
            raise _broken(f"{a.name!r} cannot carry over to {b.name!r}")
    for name, variable in trace.outputs.items():
        if not 0 <= variable < len(trace.variables):
            raise _broken(f"output {name!r} names no variable")


def _again(kind: type[Any], values: dict[str, Any], proxies: tuple[str, ...]) -> Any:
    """A call or a trace from what a pickle holds of it; some of its dictionaries are read-only."""
    return kind(**values | {name: MappingProxyType(values[name]) for name in proxies})
