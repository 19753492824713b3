"""Offers: ways to tile a step, each with its price, before any of them is written out.

The cost of a tiling follows from the spans of its tiles, a few numbers for each layer. Many tilings
can therefore be compared, and only the best is written out. For the name of a tiling this file
gives the tiled step, the time of its calls relative to the untiled ones, and the memory below which
the tiled step cannot be planned. Read next: `sft_planner.py`, `choose.py`, `banded.py`, which make
offers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, get_args

from ooctrain.errors import ConfigError, Infeasible, failing_as
from ooctrain.rewrite.pin_small import pin_again
from ooctrain.rewrite.tile import tile_by_name
from ooctrain.rewrite.tile.operators import Operators
from ooctrain.rewrite.tile.tiling import least_alive_bytes, parse_name
from ooctrain.sched.planning.planner import least_of
from ooctrain.sched.planning.residency import alive_bytes
from ooctrain.step.machine import Machine, call_durations_ns
from ooctrain.step.trace import Trace
from ooctrain.units import format_bytes

Moves = Literal["nothing", "borders", "all"]
MOVES: tuple[Moves, ...] = get_args(Moves)


@dataclass(frozen=True, slots=True)
class Offer:
    """A way to tile a step.

    Args:
        rewrites: names of tilings, in order; none: the step as it is.
        work: predicted computing time, that of the untiled step being 1.
        kept_bytes: rows that bands keep for each other, all together.
        need_bytes: estimated need; 0: not estimated.
        moves: what has to leave the device between the passes for that to suffice: "nothing",
            "borders" of segments and kept rows, or "all" that backward reads.
        why: what speaks for it.
    """

    rewrites: tuple[str, ...]
    work: float
    kept_bytes: int = 0
    need_bytes: int = 0
    moves: Moves = "nothing"
    why: str = ""

    def notes(self, least_bytes: int) -> dict[str, object]:
        """As a plan says it.

        Args:
            least_bytes: below which the tiled step cannot be planned.
        """
        return {
            "tiling": ", ".join(self.rewrites), "work_over_untiled": round(self.work, 4),
            "kept_bytes": self.kept_bytes, "least_bytes": least_bytes, "why": self.why,
        }  # fmt: skip


#: Where no tiling can be written.
UNTILED = Offer((), 1.0, why="nothing can be tiled")


@lru_cache(maxsize=4)  # a planner is asked about one step again and again
def tiled_by(trace: Trace, names: tuple[str, ...]) -> Trace:
    """The step after these tilings; what was pinned stays pinned."""
    for name in names:
        with failing_as(f"rewrite {name!r}"):
            trace = pin_again(tile_by_name(trace, name), trace)
    return trace


@lru_cache(maxsize=64)  # a number each: cheaper to keep than the tiled steps
def alive_as_offered(trace: Trace, names: tuple[str, ...]) -> int | None:
    """`alive_bytes` of the step after these tilings; None where the rewrite refuses."""
    try:
        return alive_bytes(tiled_by(trace, names))
    except ConfigError:
        return None


@lru_cache(maxsize=64)
def known_alive_bytes(trace: Trace, names: tuple[str, ...]) -> int:
    """What `alive_as_offered` is at least, known before the step is written: a hundredth of its
    cost where a batch has many images. What one of the tilings holds between the passes the others
    leave as it is.
    """
    with failing_as(f"rewrite {', '.join(names)}"):
        return max((least_alive_bytes(trace, parse_name(name)) for name in names), default=0)


def forget_tilings() -> None:
    """Gives back the steps that were written in bands, and those that they were made from."""
    for kept in (tiled_by, alive_as_offered, known_alive_bytes):
        kept.cache_clear()


def tiled_as_offered(trace: Trace, offer: Offer) -> Trace | None:
    """The step as tiled by an offer; None where the rewrite refuses: an offer looks at forward
    calls, and a rewrite may have joined backward ones, or read what lies inside.
    """
    try:
        return tiled_by(trace, offer.rewrites)
    except ConfigError:
        return None


@dataclass(frozen=True, slots=True)
class OperatorTimes:
    """How long each forward operator takes, and its backward calls, untiled.

    Args:
        forward, backward: in nanoseconds, by place.
        total: sum over all calls of the step.
    """

    forward: tuple[int, ...]
    backward: tuple[int, ...]
    total: int

    @classmethod
    def of(cls, operators: Operators, machine: Machine) -> OperatorTimes:
        """The times on a machine."""
        trace = operators.trace
        durations = call_durations_ns(trace, machine)
        backward: dict[int, int] = {}
        for call in trace.calls:
            if call.forward_of is not None:
                backward[call.forward_of] = backward.get(call.forward_of, 0) + durations[call.id]
        return cls(
            tuple(durations[call.id] for call in operators.calls),
            tuple(backward.get(call.id, 0) for call in operators.calls),
            max(sum(durations), 1),
        )

    def work(self, extra_ns: float) -> float:
        """Computing time over that of the untiled step, if tiles take so much more."""
        return 1 + extra_ns / self.total


def nothing_fits(
    planner: str, budget_bytes: int, refusals: Sequence[Infeasible], obstacles: Mapping[str, str]
) -> Infeasible:
    """The refusal of a planner that has tried all tilings.

    Args:
        refusals: those of the planners of the tiled steps.
        obstacles: {call that no tile can contain: why}.
    """
    least = least_of(refusals)
    if least.minimum_bytes is None:  # the device would do
        return Infeasible(
            f"planner {planner!r} finds no tiling that the host's memory suffices for",
            minimum_bytes=None, needs=least.needs, numbers=least.numbers, fix=least.fix,
        )  # fmt: skip
    missing = "; ".join(f"{call!r}: {why}" for call, why in list(obstacles.items())[:2])
    return Infeasible(
        f"planner {planner!r} finds no tiling within the budget",
        minimum_bytes=least.minimum_bytes,
        witness_call=least.witness_call,
        where=f"call {least.witness_call}" if least.witness_call else "",
        numbers=f"budget {format_bytes(budget_bytes)} ({budget_bytes} bytes), least of any tiling "
        f"{format_bytes(least.minimum_bytes)} ({least.minimum_bytes} bytes)",
        fix=f"a budget of {least.minimum_bytes} bytes"
        + (
            f", or a row rule where there is none: {missing}" if missing else ", or a smaller image"
        ),
    )
