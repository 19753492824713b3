"""Laws of the grader's judgement of data: what counts is what is right, and nothing else.

A submission answers with numbers. Addresses count if no two blocks that live at the same time share
a byte, as found byte by byte; then they are worth what they span. A plan counts if it is one for
the question that was asked: that step, that machine, that granule, within that budget; then it is
worth what it takes, whatever it claims.
"""

from __future__ import annotations

import random
from dataclasses import replace
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.directed import always

from ooctrain.alloc.log import AllocationLog, Request
from ooctrain.course import measures, replays
from ooctrain.course.measures import budget_bytes_of, granule_of, step_of
from ooctrain.course.rubric import Measure
from ooctrain.sched.planners.registry import get_planner
from ooctrain.sched.planning.question import Question
from ooctrain.sched.simulate import simulate
from ooctrain.step.presets import machine
from ooctrain.units import Granule

BYTES = Granule(1)
#: (sizes and addresses, seed of what is freed between): beside, upon, around, from below and above.
BLOCKS = [
    (blocks, 1)
    for blocks in (
        [(4, 4), (4, 0)], [(4, 0), (4, 3)], [(6, 0), (2, 2)], [(2, 2), (6, 0)], [(3, 5), (3, 5)],
        [(3, 0), (3, 3), (3, 6)], [(3, 7), (2, 4)], [(3, 5), (4, 3)], [(3, 5), (4, 2)],
    )
]  # fmt: skip


def log_of(sizes, rng):
    """Blocks of these sizes, some of which are freed before the next one comes."""
    requests, live = [], []
    for key, size in enumerate(sizes):
        requests.append(Request("allocate", key, size, tag=f"b{key}"))
        live.append(key)
        while live and rng.random() < 0.4:
            requests.append(Request("free", live.pop(rng.randrange(len(live)))))
    return AllocationLog(tuple(requests), "", BYTES, 1 << 20)


def span_byte_by_byte(log, addresses):
    """What blocks at these addresses span; None: two that live share a byte."""
    owner, place, touched = {}, {}, set()
    free = iter(addresses)
    for request in log.requests:
        if request.op == "allocate":
            place[request.key] = at = next(free)
            for byte in range(at, at + request.nbytes):
                if byte in owner:
                    return None
                owner[byte] = request.key
            touched |= {at, at + request.nbytes}
        else:
            owner = {byte: key for byte, key in owner.items() if key != request.key}
    return max(touched) - min(touched)


def judged(log, addresses):
    """What the grader says of them; None: refused."""
    try:
        return replays.extent_bytes(log, addresses)
    except ValueError:
        return None


@settings(max_examples=150)
@given(st.lists(st.tuples(st.integers(1, 6), st.integers(0, 14)), min_size=1, max_size=6),
       st.integers(0, 99))  # fmt: skip
@always(BLOCKS)
def test_addresses_count_if_no_two_live_blocks_share_a_byte(blocks, seed):
    check_addresses(blocks, seed)


def check_addresses(blocks, seed):
    """Each block (size, address), with all live at once and with some freed between."""
    sizes, addresses = [size for size, _ in blocks], [at for _, at in blocks]
    for rng in (random.Random(seed), _Never()):
        log = log_of(sizes, rng)
        assert judged(log, addresses) == span_byte_by_byte(log, addresses)
        assert judged(log, [at + 64 for at in addresses]) == judged(log, addresses)
        for wrong in (-1, 0.0, True, "0", None, 1 << 62, 10**400):
            assert judged(log, [wrong, *addresses[1:]]) is None, wrong
        for others in (addresses[1:], [*addresses, 1 << 40]):
            assert judged(log, others) is None


class _Never(random.Random):
    """Dice by which nothing is freed."""

    def random(self):
        return 1.0


# Plans.

ASKED = Measure("lenet", 8, "50%", "v100-pcie", False, "lru", 1.05, 1.5, 4)
#: Other questions, to which the answer may be a plan as well.
OTHERS = {
    "parts of variables": {"ranges": True},
    "another batch": {"batch": 4},
    "another network": {"model": "vgg11", "batch": 2},
    "a slower machine": {"machine": "cpu-generic"},
    "more memory": {"budget": "100%"},
    "less memory": {"budget": "30%"},
}
#: Granules beside that of the question.
GRANULES = {"a coarser granule": Granule(512, ranges=False), "parts": Granule(1, ranges=True)}


@cache
def answer(planner, granule=None, **other):
    """A plan, and whether it is one for the question that is asked."""
    question = replace(ASKED, **other)
    step, where = step_of(question), machine(question.machine)
    granule = granule or granule_of(question)
    budget = budget_bytes_of(question)
    return get_planner(planner).plan(Question(step, budget, where, granule=granule)), step


def right(plan, step):
    """Whether a plan is one for the question, told by what was planned and not by a verifier."""
    mine = step.fingerprint == step_of(ASKED).fingerprint and plan.trace.fingerprint == (
        step.fingerprint
    )
    fits = plan.peak_bytes <= budget_bytes_of(ASKED)
    return mine and fits and plan.schedule.granule == granule_of(ASKED)


def worth(plan):
    """What the grader says that it takes; None: refused."""
    try:
        return measures._judged_us(ASKED, plan)
    except Exception:
        return None


def check_plan(plan, step):
    """It counts if it is right, for what it takes on the machine that was named."""
    where = machine(ASKED.machine)
    again = simulate(plan.schedule, plan.trace, where).makespan_us
    counts = right(plan, step) and abs(again - plan.makespan_us) < 0.0005
    assert worth(plan) == (again if counts else None)


@pytest.mark.parametrize("planner", ["lru", "naive"])
@pytest.mark.parametrize("other", [None, *OTHERS])
def test_a_plan_counts_if_it_is_one_for_the_question(planner, other):
    check_plan(*answer(planner, **OTHERS.get(other, {})))


@pytest.mark.parametrize("name", GRANULES)
def test_a_plan_of_another_granule_does_not_count(name):
    check_plan(*answer("lru", GRANULES[name]))


@pytest.mark.parametrize("claim", ["makespan_us", "peak_bytes", "host_peak_bytes"])
@pytest.mark.parametrize("factor", [0.5, 0.99, 1.01])
def test_a_plan_that_claims_something_else_does_not_count(claim, factor):
    plan, _ = answer("lru")
    true = getattr(plan, claim)
    assert worth(replace(plan, **{claim: type(true)(true * factor)})) is None
