"""What ours must reach beside torch in one run of `bench_memory.py`, and whether it did.

A goal is a ratio with a bound: time over time at the same memory, memory over memory at the same
time. Each is computed from the rows of one run; one that lacks a row is not measured, and not met.
The disk has two goals, since "a quarter of in-core" may be of the device's memory or of all that
the process grows by. Read next: `bench_memory.py`.
"""

from __future__ import annotations

from typing import Any

#: (goal, measured, wanted at most, whether it is met; None: not measured)
Goal = tuple[str, float | None, float, bool | None]
#: Time at the memory of torch's fastest method that saves any; memory at torch's in-core time;
#: least memory beside micro-batches; time with the disk over in-core's.
WANTED_TIME, WANTED_MEMORY, WANTED_MICRO, WANTED_DISK = 0.75, 0.6, 1.0, 1.5
QUARTER = 0.25
#: Losses of exact methods at first, and in the end where torch's layouts agree; relative.
FIRST_LOSS_BOUND, LOSS_BOUND = 1e-4, 1e-3


def goals(found: dict[str, Any]) -> list[Goal]:
    """All of them for one network."""
    rows = [row for row in found["rows"] if "error" not in row]
    ours = [row for row in rows if row["name"].startswith("ours")]
    torch = [row for row in rows if row["name"].startswith("torch")]
    return [*_beside_torch(ours, torch), *_with_disk(ours)]


def _goal(name: str, value: float | None, wanted: float) -> Goal:
    return name, value, wanted, None if value is None else value <= wanted


def _beside_torch(ours: list[dict], torch: list[dict]) -> list[Goal]:
    in_core = [row for row in torch if len(row["name"].split(",")) == 1]
    saving = [row for row in torch if row["exact"] and row not in in_core]
    micro = [row for row in torch if not row["exact"]]
    # Who saves nothing is no method for less memory.
    least = min((row["growth_mib"] for row in in_core), default=0.0)
    smaller = [row for row in saving if row["growth_mib"] < least]
    peer = min(smaller, key=lambda r: r["step_s"], default=None)
    fits = [r["step_s"] for r in ours if peer and r["growth_mib"] <= peer["growth_mib"]]
    name = f"time at the memory of {peer['name']}" if peer else "time at torch's memory"
    made = [_goal(name, min(fits) / peer["step_s"] if peer and fits else None, WANTED_TIME)]
    fastest = min(in_core, key=lambda r: r["step_s"], default=None)
    quick = [r["growth_mib"] for r in ours if fastest and r["step_s"] <= fastest["step_s"]]
    value = min(quick) / fastest["growth_mib"] if fastest and quick else None
    made.append(_goal("memory at torch's in-core time", value, WANTED_MEMORY))
    small = min((row["growth_mib"] for row in micro), default=None)
    value = min(row["growth_mib"] for row in ours) / small if small and ours else None
    made.append(_goal("least memory over that of micro-batches", value, WANTED_MICRO))
    return made


def _with_disk(ours: list[dict]) -> list[Goal]:
    """A quarter of the device's memory, and of the process's growth; on this disk, and as the model
    says on one of 1 GB/s."""
    whole = next((row for row in ours if row["name"] == "ours"), None)
    disk = [row for row in ours if row.get("o_direct")]
    device = [
        r for r in disk if r["arena_mib"] <= QUARTER * r["in_core_arena_mib"] * 1.001
    ]  # fmt: skip
    process = [r for r in disk if whole and r["growth_mib"] <= QUARTER * whole["growth_mib"]]
    made = []
    for what, rows in (("device's memory", device), ("process's growth", process)):
        best = min(rows, key=lambda r: r["step_s"], default=None) if whole else None
        for how, key in (("this disk", "step_s"), ("1 GB/s, predicted", "predicted_1gbs_s")):
            value = best[key] / whole["step_s"] if best and whole else None
            name = f"a quarter of the {what} and a disk ({how}): time over in-core"
            made.append(_goal(name, value, WANTED_DISK))
    return made


def losses_differ(found: dict[str, Any]) -> list[str]:
    """Exact methods whose first or last loss is none that torch in-core might have.

    The first one has seen no update, so it is the same up to rounding. What rounding makes of the
    last one depends on the network: torch's own layouts show how much, and nobody may be further
    from both than twice their distance.
    """
    rows = [row for row in found["rows"] if "error" not in row and row["exact"]]
    in_core = [row for row in rows if row["name"] in ("torch NHWC", "torch NCHW")] or rows[:1]
    return [r["name"] for r in rows if not _near(r["losses"], [r["losses"] for r in in_core])]


def _near(losses: list[float], expected: list[list[float]]) -> bool:
    for place, bound in ((0, FIRST_LOSS_BOUND), (-1, LOSS_BOUND)):
        known = [each[place] for each in expected]
        low, high = min(known), max(known)
        slack = max(bound * abs(high), 2 * (high - low) if place else 0.0)
        if not low - slack <= losses[place] <= high + slack:
            return False
    return True
