"""The step that everything is explained on: eight equal stages, small enough to work out by hand.

Each value has 100 bytes; a stage runs 10 us forward and 20 us backward; the link between device and
host moves 20 bytes per us each way at once. In-core the step needs 1100 bytes and 240 us.
`docs/one_page.md` shows it whole, tutorials 02, 04, 06, 09, 10 and 11 begin with it, and so does
the picture of the README. Read next: `chain.py`.
"""

from __future__ import annotations

from ooctrain.step.chain import chain
from ooctrain.step.machine import Link, Machine
from ooctrain.step.trace import Trace


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
