"""The laws of the executor bite: each planted bug passes the hand-written lists and breaks a law.

The laws are those of tests/properties/test_executor_laws.py, tests/unit/test_alloc.py and
tests/unit/test_virtual.py, tried here on cases that are the same in each run. Lists run in roomy
arenas, where no mapping is ever broken, so that a bug gives wrong bytes and does not end the
process.
"""

from __future__ import annotations

import random

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from properties import test_executor_laws as LAWS
from support.quick import quick
from support.random_lists import random_schedule
from unit import test_alloc as ALLOCATORS
from unit import test_executor as LISTS
from unit import test_pin_small as PIN
from unit import test_virtual as VIRTUAL
from zoo import executor_bugs as ZOO

from ooctrain.alloc.registry import choose_allocator
from ooctrain.devices.interface import Debug
from ooctrain.errors import OoctrainError
from ooctrain.testing.random_traces import random_trace
from ooctrain.testing.run_list import Way, run_list


def run_random_lists(seeds, names, debug, room):
    """Three steps of random lists are three in-core steps, and the peak is the ledger's."""
    for seed in range(seeds):
        rng = random.Random(seed)
        choice = choose_allocator(rng.choice(names), LAWS.ARENA, probe=lambda: "")
        way = Way(choice, rng.choice(["duplex", "shared"]), debug=debug(seed), room=room)
        trace = random_trace(rng, calls=rng.randint(3, 8), max_bytes=20_000)
        schedule = random_schedule(trace, rng, granule=choice.granule, mischief=2.0)
        start, inputs = LAWS.three_steps(trace, seed)
        ran = run_list(trace, schedule, way, start, inputs)
        # Compared first: pytest would explain a difference of long values at length.
        same = list(ran.persistent) == LAWS.expected(trace, start, inputs)
        assert same, f"seed {seed}: three steps are not three in-core steps"
        assert ran.granted_bytes == ran.results[0].program.peak_bytes


def parts_of_blocks():
    """A property of the allocators on the same cases each time; shrinks nothing."""
    same = settings(max_examples=200, derandomize=True, database=None, phases=[Phase.generate])
    law = VIRTUAL.test_parts_come_and_go_and_keep_their_bytes
    several = st.tuples(st.integers(0, 3), st.integers(0, 7), st.integers(1, 8))
    same(given(operations=st.lists(several, max_size=60))(law.hypothesis.inner_test))()


def small_objects():
    """Three steps beside a region, on the same lists each time."""
    law = PIN.test_three_steps_beside_it_are_three_in_core_steps
    for seed in range(40):
        law.hypothesis.inner_test(seed=seed, most=3000, name="best-fit")


def stitched_blocks():
    """As above, for whole blocks."""
    same = settings(max_examples=200, derandomize=True, database=None, phases=[Phase.generate])
    law = VIRTUAL.test_stitched_blocks_keep_their_bytes_whatever_else_has_their_chunks_mapped
    numbers = st.one_of(st.integers(1, 4), st.integers(-8, -1))
    same(given(st.lists(numbers, max_size=50))(law.hypothesis.inner_test))()


def refused_calls():
    """Whichever call is refused, nothing has changed."""
    for refused in range(1, 12):
        VIRTUAL.test_a_refused_call_changes_nothing_and_may_be_repeated(refused)


def delayed(seed):
    return Debug(delay_us=1500, delay_seed=seed)


def poisoned(seed):
    return Debug(delay_us=800, delay_seed=seed, poison=0x7F)


def checked(seed):
    return Debug(check_ledger=True)


def the_allocators():
    for name in ("best-fit", "va"):
        requests_at_random(name)


def requests_at_random(name):
    """Blocks are disjoint, keep their bytes, and each request that fits is served."""
    for seed in range(30):
        rng = random.Random(seed)
        operations = [
            ("free", rng.randrange(30)) if rng.random() < 0.45 else ("allocate", size(rng))
            for _ in range(60)
        ]
        law = ALLOCATORS.test_blocks_are_disjoint_keep_their_bytes_and_the_books_balance
        law.hypothesis.inner_test(name=name, operations=operations)


def size(rng):
    return rng.choice([rng.randint(1, 40_000), 4096, 12_288])


LAW = {
    "delayed": lambda: run_random_lists(60, ["best-fit"], delayed, 2),
    "poisoned": lambda: run_random_lists(60, ["best-fit"], poisoned, 2),
    "parts": lambda: run_random_lists(40, ["va:chunk=4KiB"], checked, 4),
    "bytes": lambda: run_random_lists(80, ["best-fit"], checked, 2),
    "ledger": lambda: run_random_lists(40, ["best-fit"], checked, 2),
    "wandering": lambda: run_random_lists(200, ["best-fit"], checked, 1),
    "allocator": the_allocators,
    "parts of blocks": parts_of_blocks,
    "stitched blocks": stitched_blocks,
    "small": small_objects,
    "waiting mappings": (
        VIRTUAL.test_mapping_over_a_part_waits_for_the_last_use_of_its_slots_and_of_no_others
    ),
    "bounded mappings": (
        VIRTUAL.test_what_is_mapped_is_bounded_and_the_longest_unused_home_goes_after_its_last_use
    ),
    "refused calls": refused_calls,
}


@pytest.mark.slow  # the laws themselves run where they stand
@pytest.mark.parametrize("law", LAW)
def test_without_a_bug_the_law_holds(law):
    assert LAW[law]() is None


@pytest.mark.parametrize("bug", quick([*ZOO.BUGS], *range(0, len(ZOO.BUGS), 3)))
def test_bug(bug, monkeypatch):
    ZOO.plant(monkeypatch, bug)
    hand_written_lists()
    with pytest.raises((AssertionError, OoctrainError, KeyError, IndexError)):
        LAW[ZOO.BUGS[bug][-1]]()


def hand_written_lists():
    """The plain tests: one instruction after the other, constant values, whole variables."""
    for instructions in (LISTS.IN_CORE, LISTS.SWAPPED, LISTS.RECOMPUTED, LISTS.HALVES):
        bench = LISTS.Bench(instructions, debug=Debug(synchronous=True))
        w = 1.0
        for x in (0.5, 2.0):
            gradient = 3 * (x + w)
            assert (bench.step(x).outputs[LISTS.G] == gradient).all()
            w -= 0.25 * gradient
            assert (bench.session.read(LISTS.W) == w).all()
        bench.close()
