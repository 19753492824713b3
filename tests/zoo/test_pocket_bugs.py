"""A planted bug in each file of `tutorials/pocket`: its own asserts, or its tests, find it.

Each is a slip of a line that one makes when one types the files in. Read next:
`unit/test_pocket.py`, the tests.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from support.pocket import held_over_time, step_of
from unit import test_pocket as laws
from zoo.planting import plant

import ooctrain as oc

# isort: split
import allocators
import planners
import steplist
import tape
import tiles
import train


def one_step_of_training(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(train, "EPOCHS", 1)
    patch.setattr(train, "BATCHES", 1)
    train.main()


def plan_and_verify(patch: pytest.MonkeyPatch) -> None:
    for budget in (400, 500, 600):
        step = step_of(oc.equal_stages(8))
        steplist.verify(step, planners.belady(step, budget), budget)


def what_is_held_on_a_slow_link(patch: pytest.MonkeyPatch) -> None:
    step = step_of(oc.equal_stages(8))
    lines = planners.belady(step, 400)
    assert held_over_time(step, lines, steplist.simulate(step, lines, link=2)) <= 400


@dataclass(frozen=True)
class Bug:
    """A piece of a function, what takes its place, and what finds it."""

    owner: Any
    function: str
    piece: str
    wrong: str
    finds: Callable[[pytest.MonkeyPatch], None]


BUGS = {
    "tape: the last branch wins at a fork": Bug(
        tape.Tape, "_add_gradient", "if value in self.gradient:", "if value is None:",
        lambda patch: laws.test_gradients_on_whole_numbers_have_the_bits_of_the_library(),
    ),
    "steplist: a call does not wait for memory": Bug(
        steplist, "simulate", "released_at, *arrivals", "0, *arrivals",
        what_is_held_on_a_slow_link,
    ),
    "planners: a value is away while its last reader runs": Bug(
        planners, "needed", "range(gap.after + 1, gap.before)", "range(gap.after, gap.before)",
        plan_and_verify,
    ),
    "allocators: pages are given back and stay in the table": Bug(
        allocators.Pages, "free", "self.table.pop(address)", "self.table[address]",
        one_step_of_training,
    ),
    "tiles: one row too few is kept": Bug(
        tiles, "in_bands", "max(0, window.first(end))", "max(0, window.first(end) + 1)",
        lambda patch: laws.chain_of_layers(tape.Tape(), 16, 3, 2),
    ),
    "train: copies travel in half precision": Bug(
        train, "execute", "host[value] = get(value).copy()",
        "host[value] = get(value).astype(np.float16)",
        one_step_of_training,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BUGS)
def test_a_bug_is_found(name, monkeypatch):
    bug = BUGS[name]
    bug.finds(monkeypatch)  # without the bug all is well
    plant(monkeypatch, bug.owner, bug.function, bug.piece, bug.wrong)
    with pytest.raises(AssertionError):
        bug.finds(monkeypatch)


def test_each_file_has_a_bug():
    assert sorted(name.partition(":")[0] for name in BUGS) == sorted(laws.ORDER)
