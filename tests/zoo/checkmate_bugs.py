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
from zoo.planting import plant

from ooctrain.sched.planners.checkmate import Checkmate, Rematerialising, StageProgram

Plant = Callable[[pytest.MonkeyPatch], Any]


def _slip(owner: type, name: str, piece: str, wrong: str) -> Plant:
    return lambda patch: plant(patch, owner, name, piece, wrong)


def _exhaustive() -> None:
    for seed in (0, 1, 2):
        test_checkmate.fits_as_exhaustive_search_says(seed)


def _promises() -> None:
    for trace in (*map(test_checkmate.graph_of_eight, (0, 1, 2)), test_checkmate.chain(4)):
        test_checkmate.the_program_promises_what_the_runs_need(trace)


def _least() -> None:
    test_checkmate.its_least_is_enough_and_no_less_is(test_checkmate.graph_of_eight(1))


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
    "the rounding takes the place of what a search has found, unless that is proved": (
        _slip(Checkmate, "within", "if found.values else", "if found.ended == 'optimal' else"),
        test_checkmate.what_a_search_has_found_is_the_plan,
    ),
    "the least is looked for within the budget": (
        _slip(Checkmate, "least", "asked.program(None)",
              "asked.program(asked.question.budget_bytes)"),
        _least,
    ),
    "what groups compute once is not proved": (
        _slip(Rematerialising, "at_least_once_us", "bound_us + once_ns / 1000", "bound_us"),
        test_checkmate.the_optimum_of_groups_is_said_to_be_one,
    ),
}  # fmt: skip
