"""What may leave between the forward and the backward pass, and a share of it.

Planners that offload whole layers (`vdnn`, `hmms`) choose among the values that both passes read;
such a value may be away from its last forward reader to its first backward reader. Source: paper
004, section 4.3 (its tensor storage objects). Read next: `sched/planners/hmms.py`,
`sched/planners/vdnn.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ooctrain.errors import ConfigError
from ooctrain.sched.planning.planner import turning_point
from ooctrain.step.trace import Trace


@dataclass(frozen=True, slots=True)
class Offloadable:
    """A value that forward and backward calls read, and that may leave in between.

    Args:
        copied: whether it must be copied out to leave; an input has a host copy already.
        leaves_with: its last forward reader.
        needed_by: its first backward reader.
    """

    var: int
    size_bytes: int
    copied: bool
    leaves_with: int
    needed_by: int


def offloadable_storages(trace: Trace) -> Iterator[Offloadable]:
    """What may leave, in the order in which its last forward readers run."""
    turn = turning_point(trace)
    found = []
    for variable in trace.variables:
        readers = trace.readers[variable.id]
        forward = [k for k in readers if k < turn]
        backward = [k for k in readers if k >= turn]
        if forward and backward and not variable.persistent and variable.nbytes:
            made = trace.producer[variable.id] is not None
            found.append(Offloadable(variable.id, variable.nbytes, made, forward[-1], backward[0]))
    yield from sorted(found, key=lambda storage: (storage.leaves_with, storage.var))


def take(offloadable: Iterable[Offloadable], ratio: float) -> Iterator[Offloadable]:
    """Of what may leave, in its order, as many as keep the bytes taken at most `ratio` of the bytes
    seen so far.
    """
    seen = taken = 0
    for storage in offloadable:
        seen += storage.size_bytes
        if taken + storage.size_bytes <= ratio * seen:
            taken += storage.size_bytes
            yield storage


def check_ratio(planner: str, ratio: float) -> None:
    """Raises ConfigError where a ratio is not a share."""
    if not (isinstance(ratio, float | int) and 0 <= ratio <= 1):
        raise ConfigError(
            f"{planner}: ratio={ratio!r} is not between 0 and 1",
            code="OOC-105",
            fix=f"such as {planner}:ratio=0.5, or leave it out",
        )
