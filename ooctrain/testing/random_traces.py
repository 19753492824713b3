"""Random training steps of a few bytes: forks, joins, skips, reuse, updates, workspaces.

A `random.Random` and sizes give traces, machines and starting values. The list's laws never look
inside an operation, so a trace over variables of 0 to 24 bytes shows every kind of trouble that a
network can cause, at a size where each byte can be watched. Read next:
`tests/support/random_lists.py`, then `interpreter.py`.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass

from ooctrain.step.builder import TraceBuilder
from ooctrain.step.machine import Machine
from ooctrain.step.op import Op, Spec
from ooctrain.step.trace import Kind, Phase, Trace


@dataclass(frozen=True, slots=True)
class FakeOp(Op):
    """An operation that only has a price; what it computes is the interpreter's business.

    Args:
        label: distinguishes operations.
        flops_each: arithmetic per output byte.
    """

    label: str = "fake"
    flops_each: int = 1

    def flops(self, ins: list[Spec], outs: list[Spec]) -> int:  # type: ignore[override]
        """As many as the label's price times the output bytes."""
        return self.flops_each * sum(spec.size for spec in outs)


def random_trace(
    rng: random.Random, *, calls: int = 8, max_bytes: int = 24, duration_ns: int | None = None
) -> Trace:
    """A random trace of pure calls, with impure updates of parameters and states among them.

    Args:
        rng: the only source of randomness.
        calls: number of pure calls.
        max_bytes: largest variable; some have none at all.
        duration_ns: largest fixed duration of a call; None: the cost model's.
    """
    return _TraceWriter(rng, max_bytes, duration_ns).write(calls)


def random_machine(rng: random.Random, *, interference: bool = False) -> Machine:
    """A machine with whole-numbered rates, either link mode, with or without latency."""
    return Machine(
        "random",
        flops_per_us=rng.choice([1, 10, 100]),
        memory_bytes_per_us=rng.choice([5, 50, 500]),
        link_bytes_per_us=rng.choice([1, 7, 40]),
        link_in_bytes_per_us=rng.choice([None, 3, 100]),
        link=rng.choice(["shared", "duplex"]),
        latency_us=rng.choice([0, 0, 0.5, 3]),
        interference=rng.choice([1.1, 1.5, 2.0]) if interference else 1.0,
    )


def random_values(trace: Trace, rng: random.Random) -> Mapping[int, bytes]:
    """Values of all initial variables."""
    return {v: rng.randbytes(trace.variables[v].nbytes) for v in trace.initial}


class _TraceWriter:
    """Writes call after call; `readable` are the variables whose storage is still theirs."""

    def __init__(self, rng: random.Random, max_bytes: int, duration_ns: int | None):
        self.rng, self.max_bytes, self.duration_ns = rng, max_bytes, duration_ns
        self.builder = TraceBuilder()
        self.readable: list[int] = []
        self.persistent: list[int] = []
        self.gradients: list[int] = []

    def write(self, calls: int) -> Trace:
        rng = self.rng
        for number in range(rng.randint(1, 2)):
            self.readable.append(self._variable(f"x{number}", "input"))
        for number in range(rng.randint(0, 3)):
            kind: Kind = rng.choice(["param", "param", "state"])
            self.persistent.append(self._variable(f"{kind}{number}", kind))
        self.readable += self.persistent
        waiting = list(self.persistent)
        for number in range(calls):
            self._pure_call(number, "forward" if 2 * number < calls else "backward")
            if waiting and 2 * number >= calls and rng.random() < 0.4:
                self._update(waiting.pop())
        for old in waiting:
            if rng.random() < 0.7:
                self._update(old)
        return self.builder.build()

    def _variable(self, name: str, kind: Kind, size: int | None = None) -> int:
        if size is None:
            size = 0 if self.rng.random() < 0.05 else self.rng.randint(1, self.max_bytes)
        return self.builder.variable(name, (size,), "uint8", kind)

    def _call(
        self, name: str, ins: list[int], outs: list[int], reuse: dict[int, int], phase: Phase
    ) -> None:
        rng = self.rng
        duration = None if self.duration_ns is None else rng.randint(0, self.duration_ns)
        workspace = rng.choice([0, 0, rng.randint(1, self.max_bytes)])
        op = FakeOp(name, rng.choice([1, 5, 50]))
        self.builder.call(
            name, op, tuple(ins), tuple(outs), workspace_bytes=workspace, reuse=reuse,
            pure=phase != "update", phase=phase, duration_ns=duration,
        )  # fmt: skip
        for source in reuse.values():
            self.readable.remove(source)

    def _pure_call(self, number: int, phase: Phase) -> None:
        rng, variables = self.rng, self.builder.variables
        recent = self.readable[-4:] if rng.random() < 0.7 else self.readable
        ins = [rng.choice(recent) for _ in range(min(len(recent), rng.randint(1, 3)))]
        # In place: no later call reads the first input.
        in_place = rng.random() < 0.3 and variables[ins[0]].kind == "activation"
        sizes: list[int | None] = [variables[ins[0]].nbytes if in_place else None]
        sizes += [None] * rng.choice([0, 0, 0, 1, 2])
        outs = [self._variable(f"y{number}.{i}", "activation", n) for i, n in enumerate(sizes)]
        self._call(f"f{number}", ins, outs, {outs[0]: ins[0]} if in_place else {}, phase)
        self.readable += outs
        if phase == "backward":
            self.gradients += outs

    def _update(self, old: int) -> None:
        rng, variable = self.rng, self.builder.variables[old]
        gradient = [v for v in self.gradients[-3:] if v in self.readable][-1:]
        new = self._variable(f"{variable.name}'", variable.kind, variable.nbytes)
        in_place = rng.random() < 0.7
        reuse = {new: old} if in_place else {}
        self._call(f"update.{variable.name}", [old, *gradient], [new], reuse, "update")
        self.builder.carries[new] = old
        if rng.random() < 0.3:
            self.readable.append(new)
