"""Paper 002's chains of stages as traces.

`oc.chain(x, y, u_forward, u_backward, extra_forward, extra_backward)` takes the sizes and times of
the stages and makes a `Trace` that carries its own durations, so every planner, the simulator and
the bounds work on the paper's instances. Stage F_i reads x_i and writes x_{i+1}; B_i reads x_i,
x_{i+1}, y_{i+1} and writes y_i. Source: paper 002, section 3.1 (which counts stages from 0 to L in
its formulas, from 1 in its text: we follow the formulas). Read next: `sched/bounds/closed.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ooctrain.errors import ConfigError
from ooctrain.step.arguments import checked
from ooctrain.step.builder import TraceBuilder
from ooctrain.step.machine import Link, Machine
from ooctrain.step.op import Op, Spec
from ooctrain.step.trace import Trace

NS_PER_US = 1000


@dataclass(frozen=True, slots=True)
class Stage(Op):
    """A stage without arithmetic: it has sizes and a time, and cannot be executed."""

    def flops(self, ins: Sequence[Spec], outs: Sequence[Spec]) -> int:
        """0: the call carries its own time."""
        return 0


@checked
def chain(
    x: Sequence[int], y: Sequence[int], u_forward: Sequence[float], u_backward: Sequence[float],
    extra_forward: Sequence[int], extra_backward: Sequence[int],
) -> Trace:  # fmt: skip
    """A chain of paper 002 as a trace of 2 L + 3 calls: F_0 .. F_L, loss, B_L .. B_0.

    x_0 is on the device before the step and without a host copy, as in the paper (kind "state": it
    must be there again at the end, where nothing else is, so that this costs nothing). The loss
    takes no time and no workspace; it turns x_{L+1} into y_{L+1}, so that y_{L+1} is absent while
    the forward stages run.

    Args:
        x: sizes |x_0| .. |x_{L+1}| in bytes: L + 2 entries.
        y: sizes |y_0| .. |y_{L+1}| in bytes: L + 2 entries.
        u_forward, u_backward: times of F_i and B_i in us, i = 0 .. L: L + 1 entries.
        extra_forward, extra_backward: temporary bytes ex_i^F and ex_i^B: L + 1 entries.

    Raises:
        ConfigError: lengths that do not fit together, or negative entries.
    """
    _check_chain(x, y, u_forward, u_backward, extra_forward, extra_backward)
    stages = len(u_forward)
    builder = TraceBuilder()
    values = [
        _value(builder, f"x{i}", size, "state" if i == 0 else "activation")
        for i, size in enumerate(x)
    ]
    gradients = [_value(builder, f"y{i}", size, "grad") for i, size in enumerate(y)]
    forward = [
        builder.call(
            f"F{i}", Stage(), (values[i],), (values[i + 1],),
            workspace_bytes=int(extra_forward[i]), duration_ns=round(u_forward[i] * NS_PER_US),
        )
        for i in range(stages)
    ]  # fmt: skip
    builder.call("loss", Stage(), (values[-1],), (gradients[-1],), phase="loss", duration_ns=0)
    for i in reversed(range(stages)):
        builder.call(
            f"B{i}", Stage(), (values[i], values[i + 1], gradients[i + 1]), (gradients[i],),
            workspace_bytes=int(extra_backward[i]), phase="backward", forward_of=forward[i],
            duration_ns=round(u_backward[i] * NS_PER_US),
        )  # fmt: skip
    return builder.build()


def _value(builder: TraceBuilder, name: str, size_bytes: int, kind: str) -> int:
    return builder.variable(name, (int(size_bytes),), "uint8", kind)  # type: ignore[arg-type]


def _check_chain(x: Sequence, y: Sequence, *per_stage: Sequence) -> None:
    stages = len(per_stage[0])
    if (
        stages < 1
        or len(x) != stages + 1
        or len(y) != stages + 1
        or {len(p) for p in per_stage} != {stages}
    ):
        raise ConfigError(
            "a chain of L + 1 stages has L + 2 sizes x and y, and L + 1 times and extras",
            code="OOC-103",
            numbers=f"{len(x)} x, {len(y)} y, times and extras: {[len(p) for p in per_stage]}",
            fix="see oc.chain: one x and one y more than times and extras",
        )
    if any(entry < 0 for row in (x, y, *per_stage) for entry in row):
        raise ConfigError(
            "sizes and times of a chain are not negative",
            code="OOC-103",
            fix="sizes in bytes and times in microseconds of 0 or more",
        )


# The step that everything is explained on: eight equal stages, small enough to work out by hand.
# Each value has 100 bytes; a stage runs 10 us forward and 20 us backward; the link moves 20 bytes
# per us each way at once. In-core the step needs 1100 bytes and 240 us. `docs/one_page.md` shows it
# whole, tutorials 02, 04, 06, 09, 10 and 11 begin with it, and so does the picture of the README.


@checked
def equal_stages(stages: int = 8, size_bytes: int = 100, forward_us: int = 10) -> Trace:
    """A chain of equal stages: each value has `size_bytes`, each stage runs `forward_us` forward
    and twice as long backward.

    >>> [call.name for call in equal_stages(2).calls]
    ['F0', 'F1', 'loss', 'B1', 'B0']
    """
    sizes, times = [size_bytes] * (stages + 1), [forward_us] * stages
    return chain(
        x=sizes,  # x[i] is what stage i reads, y[i] its gradient
        y=sizes,
        u_forward=times,
        u_backward=[2 * time for time in times],
        extra_forward=[0] * stages,  # bytes that a stage needs only while it runs
        extra_backward=[0] * stages,
    )


@checked
def toy_machine(link_bytes_per_us: float = 20, link: Link = "duplex") -> Machine:
    """A machine whose only property that matters here is its link.

    Args:
        link_bytes_per_us: bytes per us, in each direction.
        link: "duplex": both directions at once; "shared": one transfer at a time.
    """
    return Machine(
        f"toy, {link_bytes_per_us:g} bytes per us", flops_per_us=1, memory_bytes_per_us=1,
        link_bytes_per_us=link_bytes_per_us, link=link,
    )  # fmt: skip
