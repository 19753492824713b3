"""Random steps that are small enough for `sched/bounds/exact.py`: forks, joins, workspaces, a loss.

A `random.Random` draws a `Trace` whose calls carry their own times. Read next:
`sched/bounds/exact.py`.
"""

from __future__ import annotations

import random

from ooctrain.step.builder import TraceBuilder
from ooctrain.step.chain import Stage
from ooctrain.step.trace import Trace

US = 1000


def tiny_step(rng: random.Random, *, most_stages: int = 3) -> Trace:
    """A step of 2 to `most_stages` forward calls, a loss and their backward calls.

    Forward calls read one or two of the latest values; most have a backward call, which reads the
    gradient and some of what they read and wrote. Values have up to 3 bytes, calls take up to 3 us.
    """
    builder = TraceBuilder()
    values = [builder.variable("x", (rng.randint(0, 3),), "uint8", "input")]
    forward = []
    for i in range(rng.randint(2, most_stages)):
        ins = sorted({rng.choice(values[-2:]) for _ in range(rng.randint(1, 2))})
        out = builder.variable(f"a{i}", (rng.randint(1, 3),), "uint8", "activation")
        call = builder.call(
            f"F{i}", Stage(), tuple(ins), (out,), workspace_bytes=rng.choice([0, 0, 1]),
            duration_ns=US * rng.randint(1, 3),
        )  # fmt: skip
        forward.append((i, call, ins, out))
        values.append(out)
    gradient = builder.variable("g", (rng.randint(0, 2),), "uint8", "grad")
    builder.call("loss", Stage(), (values[-1],), (gradient,), phase="loss", duration_ns=US)
    for i, call, ins, out in reversed(forward):
        if rng.random() < 0.85:
            read = {*rng.sample(ins, rng.randint(1, len(ins))), *([out] * (rng.random() < 0.6))}
            before, gradient = gradient, builder.variable(
                f"g{i}", (rng.randint(0, 3),), "uint8", "grad"
            )  # fmt: skip
            builder.call(
                f"B{i}", Stage(), (before, *sorted(read)), (gradient,), phase="backward",
                workspace_bytes=rng.choice([0, 0, 1]), forward_of=call,
                duration_ns=US * rng.randint(1, 3),
            )  # fmt: skip
    return builder.build()
