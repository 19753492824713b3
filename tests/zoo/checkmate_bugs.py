"""Planted bugs of `checkmate`: slips in the rows of its program, and in the rounding.

`BUGS` is {name: (a function that plants it, the test that kills it)}. Most of these programs still
give legal plans, slower ones or ones with another least budget; so they are compared with
exhaustive search. Read next: `test_checkmate_bugs.py`; `unit/test_checkmate.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from unit import test_checkmate
from zoo.planting import plant, plant_everywhere

from ooctrain.sched.planners import checkmate_baselines, checkmate_with_companions
from ooctrain.sched.planners.checkmate import StageProgram

Plant = Callable[[pytest.MonkeyPatch], Any]


def _slip(owner: type, name: str, piece: str, wrong: str) -> Plant:
    return lambda patch: plant(patch, owner, name, piece, wrong)


def _exhaustive() -> None:
    for seed in (0, 1, 2):
        test_checkmate.fits_as_exhaustive_search_says(seed)


def _promises() -> None:
    for trace in (*map(test_checkmate.graph_of_eight, (0, 1, 2)), test_checkmate.chain(4)):
        test_checkmate.the_program_promises_what_the_runs_need(trace)


def _never_above() -> None:
    for seed in test_checkmate.BELOW:
        test_checkmate.is_never_above_others_on_random_steps(seed)


BUGS: dict[str, tuple[Plant, Callable[[], None]]] = {
    "a value goes before its last reader of the stage": (
        _slip(StageProgram, "_let_go", "for k in later if (stage, k) in self.run", "for k in ()"),
        _promises,
    ),
    "a value goes though the next stage has it": (
        _slip(StageProgram, "_let_go", "if (stage + 1, value) in self.kept", "if False"),
        _promises,
    ),
    "a value goes though the call before it has not run": (
        _slip(
            StageProgram, "_let_go", "self.program.at_most([(free, 1.0), (ran, -1.0)])", "pass"
        ),
        _promises,
    ),
    "a value that goes counts twice": (
        _slip(StageProgram, "_let_go", "yield free, -graph", "yield free, -2 * graph"),
        _promises,
    ),
    "nothing is ever let go": (
        _slip(StageProgram, "_let_go", "yield free, -graph", "yield free, -0 * graph"),
        test_checkmate.what_goes_makes_room,
    ),
    "memory without what a call writes": (
        _slip(StageProgram, "_memory", "(ran, node.claim_bytes / unit)", "(ran, 0.0)"),
        _promises,
    ),
    "outputs that are not held after their call": (
        _slip(StageProgram, "_memory", "for v in node.outs) / unit", "for v in ()) / unit"),
        _promises,
    ),
    "the frontier does not advance": (
        _slip(StageProgram, "_run_columns", "lower=float(first)", "lower=0.0"),
        _promises,
    ),
    "stages in which only the newest call runs": (
        _slip(StageProgram, "_run_columns", "self.may_run(stage, place)", "False"),
        _exhaustive,
    ),
    "a value is kept that was not there": (
        _slip(
            StageProgram, "_keeping", "self.program.at_most([(after, 1.0), *there])", "pass"
        ),
        _promises,
    ),
    "a call runs without what it reads": (
        _slip(
            StageProgram, "_availability", "[(self.run[stage, place], 1.0), *there]", "there"
        ),
        _promises,
    ),
    "rounding forgets what the runs it adds read": (
        _slip(
            StageProgram, "rounded", "for value in self.graph.nodes[place].ins", "for value in ()"
        ),
        test_checkmate.rounded_runs_are_whole,
    ),
    "rounding forgets what the next stage keeps": (
        _slip(StageProgram, "rounded", "if t == stage + 1", "if False"),
        test_checkmate.rounded_runs_are_whole,
    ),
    "those that search do not take part": (
        lambda patch: plant_everywhere(
            patch, checkmate_with_companions, "checkmate",
            "all_of_them if combined else alone", "alone",
        ),
        _never_above,
    ),
    "the least of others is asked for above the budget only": (
        lambda patch: plant_everywhere(
            patch, checkmate_baselines, "least_plans", "list[Plan](), low\n", "list[Plan](), high\n"
        ),
        _never_above,
    ),
}  # fmt: skip
