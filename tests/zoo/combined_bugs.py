"""Planted bugs of `combined` and of the room on the host, each with the law that kills it.

`BUGS` is {name: (a function that plants it, the law, the seeds that it is asked with)}. The plans
stay legal, since the verifier and `check_host` see to that; what suffers is that plans are refused,
or slower than others. So laws that compare with others, or count byte by byte, show the bug. Read
next: `test_combined_bugs.py`; `properties/test_combined.py`, `unit/test_host_budget.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from properties import test_combined
from unit import test_host_budget, test_search
from zoo.planting import plant, plant_everywhere

from ooctrain.sched.bounds import closed
from ooctrain.sched.planners.combined import Combined, _Starts
from ooctrain.sched.planning import rematerialise
from ooctrain.sched.planning.host_room import RoomForGaps
from ooctrain.sched.planning.lower import _Engine
from ooctrain.sched.search import play
from ooctrain.sched.search.choice import Search

Plant = Callable[[pytest.MonkeyPatch], Any]
Law = Callable[[int], Any]


def _slip(owner: Any, name: str, piece: str, wrong: str) -> Plant:
    return lambda patch: plant(patch, owner, name, piece, wrong)


def _slip_everywhere(owner: Any, name: str, piece: str, wrong: str) -> Plant:
    return lambda patch: plant_everywhere(patch, owner, name, piece, wrong)


HOST = test_host_budget.what_leaves_fits_on_the_host
STARTS = test_combined.is_never_worse_than_its_starts
AGREE = test_search.search_list_and_simulator_agree
FITS = test_combined.is_not_beaten_where_everything_fits
READ_OFF = test_combined.what_is_read_off_gives_the_runs

BUGS: dict[str, tuple[Plant, Law, Sequence[int]]] = {
    "search: what lacks less, but does not fit yet, is forgotten": (
        _slip(Search, "improve", "return self._choice(walk.best)",
              "return start if walk.best_cost > 1e29 else self._choice(walk.best)"),
        test_search.goes_on_from_what_lacks_least, (0,),
    ),
    "search: copies slow no call down": (
        _slip_everywhere(play, "link_of", "*machine.slowdown.as_integer_ratio(),", "1, 1,"),
        AGREE, range(60),
    ),
    "search: no instruction takes time to issue": (
        _slip_everywhere(play, "link_of", "round(machine.issue_us * 1000)", "0"),
        AGREE, range(60),
    ),
    "engine of lists: copies slow no call down": (
        _slip(_Engine, "_clock_moves",
              "self.slowdown.as_integer_ratio() if self.going or self.coming else (1, 1)",
              "(1, 1)"),
        AGREE, range(60),
    ),
    "engine of lists: a call is slowed down when the copies are over, too": (
        _slip(_Engine, "_clock_moves", " if self.going or self.coming else (1, 1)", ""),
        AGREE, range(60),
    ),
    "host room: the slot in which a copy comes back is free": (
        _slip(RoomForGaps, "take", "self._room.take(gap.after + 1, gap.before, part)",
              "self._room.take(gap.after + 1, gap.before - 1, part)"),
        HOST, range(40),
    ),
    "host room: a copy is there before the value's last use": (
        _slip(RoomForGaps, "take", "self._room.take(gap.after + 1, gap.before, part)",
              "self._room.take(gap.after, gap.before, part)"),
        HOST, range(40),
    ),
    "host room: what an earlier gap left is forgotten between the two": (
        _slip(RoomForGaps, "take", "self._room.take(until + 1, gap.after, shared)", "pass"),
        HOST, range(60),
    ),
    "host room: all that is asked for fits": (
        _slip(RoomForGaps, "fitting",
              "part = min(part, self._room.least(gap.after + 1, gap.before))", "pass"),
        HOST, range(40),
    ),
    "host room: the later gap's end is not noted": (
        _slip(RoomForGaps, "take", "gap.before if whole else until", "until"),
        HOST, range(60),
    ),
    "combined: what the search found, though a start is faster": (
        _slip(Combined, "plan", "best = min(plans, key=lambda plan: plan.makespan_us)",
              "best = plans[-1]"),
        STARTS, (230, 358),
    ),
    "combined: keep-all, where all fits": (
        _slip(_Starts, "is_least", "<=", ">="),
        FITS, (9, 118),
    ),
    "arrivals: an input comes once for each call that reads it": (
        _slip_everywhere(closed, "arrivals_us", " and v not in there", ""),
        FITS, range(200, 215),
    ),
    "read off: a value made again later was dropped at the start": (
        _slip_everywhere(rematerialise, "read_off",
                         "dict.fromkeys(call.touched(), run.call)",
                         "dict.fromkeys(call.outs, run.call)"),
        READ_OFF, range(40),
    ),
}  # fmt: skip
