"""A list with one wrong instruction is caught by the verifier, or computes the same all the same.

The judge is the interpreter, which knows nothing of the verifier's books. Both directions are held:
what the verifier lets pass computes the in-core values, with the ledger's peak, in every order
tried; and what the interpreter lets pass the verifier does not refuse.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from support.mutate import mutants
from support.strategies import Case, cases

from ooctrain.errors import ScheduleError
from ooctrain.sched.ledger import peaks, walk
from ooctrain.sched.schedule import Schedule
from ooctrain.sched.verify import verify
from ooctrain.testing.byte_list import LawBroken
from ooctrain.testing.interpreter import in_core, interpret
from ooctrain.testing.random_traces import random_values

SHAPE_ONLY = ("R103", "R104")  # the interpreter does not care how ranges are cut


@given(cases(max_calls=8))
@settings(max_examples=150)
def test_a_mutant_is_caught_or_harmless(case: Case):
    rng = case.rng()
    if not len(case.schedule):
        return
    for what, mutant in mutants(case.trace, case.schedule, rng, 8):
        rule = _verdict(case, mutant)
        damage = _damage(case, mutant, rng, orders=4)
        if rule is None:
            assert damage is None, f"{what}: passes the verifier, but {damage}"
        elif rule not in SHAPE_ONLY:
            assert damage is not None, f"{what}: refused by {rule} without any damage"


@pytest.mark.slow
def test_mutants_of_every_kind_are_caught_and_survive():
    """The law above is not empty: over many lists each kind is now caught, now harmless."""
    seen: set[tuple[str, bool]] = set()

    @given(cases(max_calls=6))
    @settings(max_examples=400, derandomize=True)
    def collect(case: Case) -> None:
        if len(case.schedule):
            for what, mutant in mutants(case.trace, case.schedule, case.rng(), 10):
                seen.add((what.split()[0], _verdict(case, mutant) is None))

    collect()
    kinds = ("delete", "swap", "move", "shrink")
    assert seen >= {(kind, harmless) for kind in kinds for harmless in (False, True)}


def _verdict(case: Case, mutant: Schedule) -> str | None:
    """The rule that the verifier finds broken."""
    try:
        verify(mutant, case.trace, None)
    except ScheduleError as error:
        return error.rule
    return None


def _damage(case: Case, mutant: Schedule, rng, orders: int) -> str | None:
    """What the interpreter finds wrong in some random orders."""
    start = random_values(case.trace, rng)
    expected = in_core(case.trace, start).persistent
    try:
        for _ in range(orders):
            found = interpret(case.trace, mutant, start, rng, shared_link=rng.random() < 0.3)
            if found.persistent != expected:
                return "the values differ from in core"
    except LawBroken as error:
        return error.what
    if peaks(walk(case.trace, mutant), mutant) != (found.arena_bytes, found.host_arena_bytes):
        return "the peaks differ"
    return None
