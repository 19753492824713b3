"""From a refusal to a budget that suffices: the least that a planner names, tried before it is
said.

A planner refuses with the least budget at which it has a plan "host memory permitting", and where
the host has a budget as well it often does not permit it. So the budget that a refusal names is
tried, with the same arguments. If that is refused too, a budget is looked for between there and
where everything fits on the device. Plans need not get easier with every byte, so nothing is
concluded from what lies between two tries: the result is always a budget that was tried. Where none
of them suffices, none is known. A question that is not refused costs nothing.
Source: ours. Read next: `compose.py`, the caller for a device budget; `division.py`, for one memory
budget.
"""

from __future__ import annotations

from collections.abc import Callable

from ooctrain.errors import Infeasible, OoctrainError
from ooctrain.units import format_bytes

#: How often the budget that a refusal names is tried next, and how often the interval between too
#: little and enough is halved.
NEXT_TRIES, HALVINGS = 3, 12


def enough(
    refusal: Infeasible, ask: Callable[[int], object], asked: str, most_bytes: Callable[[], int],
    planner: str, granule_bytes: int = 1,
) -> Infeasible:  # fmt: skip
    """The refusal of a question, with a budget at which the same question has a plan.

    Args:
        refusal: the refusal of the question.
        ask: tries it with another budget; any error of the library counts as a refusal.
        asked: the budget that was refused, in words.
        most_bytes: where everything fits on the device: more does not help.
        granule_bytes: unit of budgets.

    Returns:
        The refusal itself if the budget that it names suffices, or if it names none.
    """
    least = refusal.minimum_bytes
    if least is None:
        return refusal
    between = _no_and_yes(ask, least, most_bytes)
    if between is None:
        return Infeasible(
            f"planner {planner!r} has no plan at this budget, and none is known at which it has",
            minimum_bytes=None, needs="host",
            numbers=f"budget {asked}; {format_bytes(least)} ({least} bytes), which would do for "
            "the list alone, and the in-core peak have been tried",
            fix="a larger host budget, another planner, or allocator va",
        )  # fmt: skip
    low, high = between
    if high == least:
        return refusal
    best = _halved(ask, low, high, granule_bytes)
    return Infeasible(
        refusal.what, minimum_bytes=best, witness_call=refusal.witness_call, where=refusal.where,
        numbers=f"budget {asked}, {format_bytes(best)} ({best} bytes) have been found to be enough",
        fix=f"a budget of {best} bytes, a larger host budget, a smaller batch, or another planner",
    )  # fmt: skip


def _no_and_yes(
    ask: Callable[[int], object], least: int, most_bytes: Callable[[], int]
) -> tuple[int, int] | None:
    """(a budget that was refused or cannot suffice, one above it that was tried and suffices); None
    where none was found. The budget in question plays no part in it.
    """
    low, tried = least - 1, least
    for _ in range(NEXT_TRIES):
        refusal = _refusal(ask, tried)
        if refusal is None:
            return low, tried
        low, named = tried, getattr(refusal, "minimum_bytes", None)
        if named is None or named <= tried:
            break
        tried = named
    most = most_bytes()
    return (low, most) if low < most and _refusal(ask, most) is None else None


def _halved(ask: Callable[[int], object], low: int, high: int, granule_bytes: int) -> int:
    """The least budget that was tried and suffices; `high` does, `low` does not."""
    for _ in range(HALVINGS):
        middle = (low + high) // 2
        middle = max(middle - middle % granule_bytes, low + 1)
        if middle >= high:
            break
        if _refusal(ask, middle) is None:
            high = middle
        else:
            low = middle
    return high


def _refusal(ask: Callable[[int], object], budget_bytes: int) -> OoctrainError | None:
    """None if a question has a plan; else why not."""
    try:
        ask(budget_bytes)
    except OoctrainError as refusal:
        return refusal
    return None
