"""Sharing storage: a result takes over the storage of an input that is not needed any more.

"In place" is not an operation but an annotation: `reuse` says that the output lies where the input
lay. It is set where the call is the last reader and the input is not handed out and does not
outlive the step. This covers ReLU in place, gradients accumulated in place, and reshapes that move
nothing. The other half of the source, one storage for all error terms of a sum, needs nothing here:
`Add.vjp` hands one variable to all terms, and the first call that accumulates onto it finds out
whether it is the last reader. Source: paper 004, section 4.2. Read next: `../sched/ledger.py`,
which counts what this saves.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from ooctrain.step.trace import Call, Trace


def share_storage(trace: Trace) -> Trace:
    """Sets `reuse` wherever an operation can work in place and its input is free."""
    lasting = {*trace.initial, *trace.carries, *trace.outputs.values()}
    reuses = [_reuse(trace, call, lasting) for call in trace.calls]
    calls = [
        call if reuse == call.reuse else replace(call, reuse=reuse)
        for call, reuse in zip(trace.calls, reuses, strict=True)
    ]
    return trace.with_calls(calls)


def _reuse(trace: Trace, call: Call, lasting: set[int]) -> Mapping[int, int]:
    """{output: input whose storage it takes}: what `call` has already, and what is safe besides."""
    if not call.pure:
        return call.reuse
    reuse = dict(call.reuse)
    for index, position in call.op.reusable().items():
        out, source = call.outs[index], call.ins[position]
        last = trace.readers[source][-1] == call.id and call.ins.count(source) == 1
        fits = trace.variables[out].nbytes == trace.variables[source].nbytes
        if last and fits and source not in lasting and source not in reuse.values():
            reuse.setdefault(out, source)
    return MappingProxyType(reuse)
