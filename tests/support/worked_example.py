"""The step and the list that `docs/schedule.md` works through by hand.

A three-layer step of a few bytes, a list that swaps half an activation and evicts the input for
free, and the machine: the numbers are small enough to check in one's head. Read next:
`docs/schedule.md`.
"""

from __future__ import annotations

from ooctrain.sched.schedule import (
    Free,
    Instruction,
    Run,
    Schedule,
    SwapIn,
    SwapOut,
    default_start,
    whole,
)
from ooctrain.step.builder import TraceBuilder
from ooctrain.step.machine import Machine
from ooctrain.step.trace import Phase, Trace
from ooctrain.testing.random_traces import FakeOp


def worked_trace() -> Trace:
    """x, W -> a -> b -> c -> loss, its backward calls, and the update of W."""
    builder = TraceBuilder()
    sizes = {
        "x": 40,
        "W": 20,
        "a": 100,
        "b": 100,
        "c": 20,
        "gc": 20,
        "gb": 100,
        "ga": 100,
        "gW": 20,
    }
    kinds = {"x": "input", "W": "param", "gW": "wgrad"}
    ids: dict[str, int] = {}
    for name, size in sizes.items():
        kind = kinds.get(name, "grad" if name.startswith("g") else "activation")
        ids[name] = builder.variable(name, (size,), "uint8", kind)  # type: ignore[arg-type]
    ids["W'"] = builder.variable("W'", (20,), "uint8", "param")
    builder.carries[ids["W'"]] = ids["W"]

    def call(
        name: str, ins: str, out: str, microseconds: int, phase: Phase, workspace: int = 0,
        reuse: str = "",
    ) -> None:  # fmt: skip
        builder.call(
            name, FakeOp(name), tuple(ids[v] for v in ins.split()), (ids[out],), phase=phase,
            workspace_bytes=workspace, reuse={ids[out]: ids[reuse]} if reuse else None,
            pure=phase != "update", duration_ns=microseconds * 1000,
        )  # fmt: skip

    call("f1", "x W", "a", 10, "forward", workspace=10)
    call("f2", "a", "b", 10, "forward")
    call("f3", "b", "c", 4, "forward")
    call("loss", "c", "gc", 1, "loss", reuse="c")
    call("b3", "b gc", "gb", 8, "backward")
    call("b2", "a gb", "ga", 20, "backward")
    call("b1", "x ga", "gW", 20, "backward", workspace=10)
    call("update", "W gW", "W'", 1, "update", reuse="W")
    return builder.build()


def worked_schedule(trace: Trace) -> Schedule:
    """Swaps the first 60 bytes of a, and evicts x, whose host copy is still valid, for nothing."""
    ids = {variable.name: variable.id for variable in trace.variables}
    run = {call.name: Run(call.id) for call in trace.calls}

    def free(name: str) -> Instruction:
        return Free(*whole(trace, ids[name]))

    a, x = ids["a"], ids["x"]
    instructions = (
        SwapIn(x, 0, 40), run["f1"], Free(x, 0, 40),
        SwapOut(a, 0, 60), run["f2"], Free(a, 0, 60), run["f3"], run["loss"],
        run["b3"], free("b"), free("gc"),
        SwapIn(a, 0, 60), run["b2"], free("a"), free("gb"),
        SwapIn(x, 0, 40), run["b1"], free("x"), free("ga"),
        run["update"], free("gW"),
    )  # fmt: skip
    device, host = default_start(trace)
    return Schedule(instructions, device, host)


def worked_machine() -> Machine:
    """10 bytes a microsecond, one transfer at a time, no latency."""
    return Machine("worked", flops_per_us=1, memory_bytes_per_us=1, link_bytes_per_us=10)
