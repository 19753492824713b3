"""A trace that cannot be is refused, whichever of its invariants is broken, with what is concerned.

A sound step is broken in one place at a time; each row names what has to stand in the error. What
is next to the border of an invariant, and sound, is accepted.
"""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

import pytest

from ooctrain.errors import ConfigError
from ooctrain.step.builder import TraceBuilder
from ooctrain.testing.random_traces import FakeOp


def step():
    """x, w -f-> y; y -g-> z (on y's storage), s; w, z -u-> w' (on w's storage), which carries w."""
    builder = TraceBuilder()
    x = builder.variable("x", (8,), "uint8", "input")
    w = builder.variable("w", (6,), "uint8", "param")
    y = builder.variable("y", (8,), "uint8")
    z = builder.variable("z", (8,), "uint8")
    small = builder.variable("s", (2,), "uint8")
    new = builder.variable("w'", (6,), "uint8", "param")
    builder.call("f", FakeOp("f"), (x, w), (y,))
    builder.call("g", FakeOp("g"), (y,), (z, small), reuse={z: y})
    builder.call("u", FakeOp("u"), (w, z), (new,), reuse={new: w}, phase="update")
    return replace(
        builder.build(),
        carries=MappingProxyType({new: w}),
        outputs=MappingProxyType({"loss": small}),
    )


X, W, Y, Z, S, NEW = range(6)
F, G, U = range(3)


def with_variable(number, **changes):
    def change(trace):
        variables = list(trace.variables)
        variables[number] = replace(variables[number], **changes)
        return replace(trace, variables=tuple(variables))

    return change


def with_call(number, **changes):
    def change(trace):
        calls = list(trace.calls)
        if "reuse" in changes:
            changes["reuse"] = MappingProxyType(changes["reuse"])
        calls[number] = replace(calls[number], **changes)
        return replace(trace, calls=tuple(calls))

    return change


def with_fields(**changes):
    return lambda trace: replace(trace, **{n: MappingProxyType(v) for n, v in changes.items()})


def read_later(trace):
    """y is read once more, after g has taken its storage."""
    return with_call(U, ins=(W, Z, Y))(trace)


BROKEN = {
    "ids of variables": (with_variable(S, id=7), ["variable", "ids"]),
    "ids of calls": (with_call(G, id=5), ["call", "ids"]),
    "names of variables": (with_variable(Z, name="y"), ["variables", "same name"]),
    "names of calls": (with_call(G, name="f"), ["calls", "same name"]),
    "kind": (with_variable(Y, kind="other"), ["'y'", "'other'", "8 bytes"]),
    "size": (with_variable(Y, nbytes=-1), ["'y'", "-1 bytes"]),
    "phase": (with_call(F, phase="sideways"), ["'f'", "'sideways'"]),
    "workspace": (with_call(F, workspace_bytes=-1), ["'f'", "workspace -1"]),
    "order": (with_call(F, ins=(X, Z)), ["'f'", "'z'", "before it is written"]),
    "written twice": (with_call(G, outs=(Z, S, Y)), ["'y'", "written twice", "g"]),
    "an input is written": (with_call(G, outs=(Z, S, X)), ["'f'", "'x'", "before it is written"]),
    "never written": (with_call(G, outs=(Z,)), ["'s'", "never written"]),
    "one input twice": (with_call(G, reuse={Z: Y, S: Y}), ["'g'", "twice"]),
    "reuse by what it does not write": (with_call(G, reuse={NEW: Y}), ["'g'", "does not"]),
    "reuse of what it does not read": (with_call(G, reuse={Z: X}), ["'g'", "does not"]),
    "another size": (with_call(G, reuse={S: Y}), ["'g'", "another size"]),
    "read later": (read_later, ["'g'", "overwrites 'y'"]),
    "carries what is not made": (with_fields(carries={X: W}), ["'x'", "'w'"]),
    "carries over what is made": (with_fields(carries={Z: Y}), ["'z'", "'y'"]),
    "carries another size": (with_fields(carries={NEW: X}), ['"w\'"', "'x'"]),
    "output below": (with_fields(outputs={"loss": -1}), ["'loss'"]),
    "output above": (with_fields(outputs={"loss": 6}), ["'loss'"]),
}
SOUND = {
    "as it is": lambda trace: trace,
    "no bytes": with_variable(S, nbytes=0),
    "no workspace": with_call(F, workspace_bytes=0),
    "nothing reused": with_call(G, reuse={}),
    "read by the call itself, last": with_call(G, ins=(Y, W)),
    "the first output": with_fields(outputs={"loss": 0}),
    "the last output": with_fields(outputs={"loss": 5}),
    "no carries": with_fields(carries={}),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_trace_is_refused_with_what_is_concerned(name):
    change, words = BROKEN[name]
    with pytest.raises(ConfigError) as refused:
        change(step()).check()
    assert refused.value.code == "OOC-103"
    text = str(refused.value)
    assert [word for word in words if word not in text] == []


@pytest.mark.parametrize("name", SOUND)
def test_what_is_next_to_the_border_is_sound(name):
    trace = SOUND[name](step())
    trace.check()
    assert len(trace.calls) == 3
