"""Building a trace anew with some calls changed, joined or dropped.

A rewrite edits a list of calls: it gives those that are to stand in the trace, in order, over the
old variables, and gets a checked trace with new ids. Variables that no call uses any more vanish by
themselves; names stay. Read next: `fuse.py`, `share_storage.py`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType

from ooctrain.step.trace import Call, Trace, Variable


def with_calls(
    trace: Trace,
    calls: Sequence[Call],
    stands_for: Mapping[int, int] | None = None,
    gone: Collection[int] = (),
) -> Trace:
    """`trace` with `calls` in place of its own.

    Args:
        calls: in their new order; ids, variables and `forward_of` are those of the old trace.
        stands_for: {call that is gone: call that now does its work}, for `forward_of`.
        gone: inputs that are gone.

    Raises:
        ConfigError: the result is not a trace, for example because a call moved before its input.
    """
    kept = {v for call in calls for v in call.touched()}
    kept |= {*trace.initial, *trace.outputs.values()} - set(gone)
    variables = [v for v in trace.variables if v.id in kept]
    variable_ids = {v.id: new for new, v in enumerate(variables)}
    call_ids = {call.id: new for new, call in enumerate(calls)}
    call_ids |= {gone: call_ids[now] for gone, now in (stands_for or {}).items()}
    if len(variables) < len(trace.variables) or any(old != new for old, new in call_ids.items()):
        variables = [v if v.id == new else _numbered(v, new) for new, v in enumerate(variables)]
        calls = [_renumbered(call, variable_ids, call_ids) for call in calls]
    result = Trace(
        tuple(variables),
        tuple(calls),
        MappingProxyType(
            {variable_ids[new]: variable_ids[old] for new, old in trace.carries.items()}
        ),
        MappingProxyType({name: variable_ids[v] for name, v in trace.outputs.items()}),
        trace.threads,
        trace.device,
    )
    result.check()
    return result


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
