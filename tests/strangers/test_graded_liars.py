"""What must not pass, and what a report says of it: unsafe work, other rules, raw assertions.

An allocator that lays blocks on each other, books that hide it, a cache that keeps another rule;
and the rubrics, tests and reports of the six assignments themselves.
"""

from __future__ import annotations

import ast
import random
from types import SimpleNamespace

import pytest
from support.handouts import (
    AGAIN,
    AGAIN_STUB,
    AHEAD,
    AHEAD_STUB,
    ASSIGNMENTS,
    FIT_STUB,
    FITTING,
    LRU_STUB,
    SOLUTION,
)
from support.quick import quick

from ooctrain.alloc.best_fit import BestFit
from ooctrain.alloc.bump import Bump
from ooctrain.alloc.dry_run import DryMemory
from ooctrain.alloc.registry import choose_allocator
from ooctrain.course.assignments import ASSIGNMENTS as NAMES
from ooctrain.course.autograders.gradescope import results_of
from ooctrain.course.grade import Grade, Row, grade
from ooctrain.course.measures import budget_bytes_of, granule_of, par_us, step_of
from ooctrain.course.replays import addresses_given, extent_bytes, log_of
from ooctrain.course.rubric import SAFETY, Replay, read_rubric
from ooctrain.plugins import load_from_file
from ooctrain.sched.planning.question import Question
from ooctrain.step.presets import machine
from ooctrain.testing.allocator_laws import LAWS as ALLOCATOR_LAWS
from ooctrain.testing.allocator_laws import SAFETY as GRAVE
from ooctrain.testing.check_allocator import broken_laws, find_broken
from ooctrain.testing.check_planner import LAWS as PLANNER_LAWS
from ooctrain.testing.law_by_hand import LAW_LAWS
from ooctrain.testing.tiled.bands_by_hand import BANDS_LAWS

BACKENDS = ("strict", "plain")


class Overlaps(Bump):
    """Every second block begins a granule too early."""

    def allocate(self, nbytes, tag=""):
        block = super().allocate(nbytes, tag)
        if block.id % 2 and block.address > self.memory_base:
            block.address -= 512
        return block

    def free(self, block, after=()):
        if block.id % 2 and block.address > self.memory_base:
            block.address += 512
        super().free(block, after)

    def __init__(self, memory):
        super().__init__(memory)
        self.memory_base = memory.linear()


class AlsoMiscounts(Overlaps):
    """Books that are wrong from the first look on stand before everything else."""

    def stats(self):
        found = super().stats()
        return type(found)(**{**{n: getattr(found, n) for n in found.__dataclass_fields__},
                              "requested_bytes": found.requested_bytes + 1})  # fmt: skip

    def check(self):
        raise AssertionError("wrong")


class AlsoGrantsMore(Overlaps):
    """Grants more than the granule says: seen of each block, before where it lies is looked at."""

    def allocate(self, nbytes, tag=""):
        block = super().allocate(nbytes, tag)
        block.granted_bytes += 512
        return block

    def free(self, block, after=()):
        block.granted_bytes -= 512
        super().free(block, after)


class Unreliable(BestFit):
    """An error that no law names, each time."""

    def allocate(self, nbytes, tag=""):
        raise RuntimeError("not today")


@pytest.mark.parametrize("kind", [Overlaps, AlsoMiscounts, AlsoGrantsMore])
def test_overlapping_blocks_are_found_behind_whatever_else_is_broken(kind):
    found = broken_laws(kind, 3, 0, BACKENDS).found
    print(sorted(found))
    assert "P1" in found
    assert "P16" in found
    assert ("P2" in found) == (kind is AlsoGrantsMore)
    failure = find_broken(kind, "P1", 10, 0, ("plain",))
    assert failure.law == "P1"
    assert len(failure.requests) <= 3


def test_a_right_allocator_breaks_nothing_and_an_error_says_little_of_laws():
    assert broken_laws(BestFit, 2, 0, BACKENDS).found == {}
    verdicts = broken_laws(Unreliable, 5, 0, ("plain",))
    assert verdicts.found.keys() == {""}
    assert 2 * verdicts.cut > verdicts.lists


def test_the_laws_of_safety_are_laws():
    known = {"planner": PLANNER_LAWS, "allocator": ALLOCATOR_LAWS, "bands": BANDS_LAWS,
             "law": LAW_LAWS}  # fmt: skip
    assert SAFETY.keys() == known.keys()
    assert all(set(SAFETY[kind]) <= set(known[kind]) for kind in known)
    assert "P1" in GRAVE


UNSAFE = (
    Row("law", "law P1", 0.0, 1.0, "b1 and b2 overlap", "all", public="hidden", unsafe=True),
    Row("test", "test_x[3]", 0.0, 9.0, "reads abc", "reads abc\nassert 1 == 2", public="hidden"),
    Row("test", "test_y", 90.0, 90.0),
)


def test_nobody_passes_without_safety():
    found = Grade("", UNSAFE, 60.0)
    assert not found.passed
    assert found.points < 60
    assert "P1" in found.unsafe
    assert Grade("", UNSAFE[1:], 60.0).passed


class OverlapsWhereLarge(BestFit):
    """Right with the small blocks of the laws, and wrong with a network's."""

    def allocate(self, nbytes, tag=""):
        block = super().allocate(nbytes, tag)
        if nbytes > 1 << 20:
            block.address -= 1 << 19
        return block

    def free(self, block, after=()):
        if block.requested_bytes > 1 << 20:
            block.address += 1 << 19
        super().free(block, after)


def test_blocks_on_each_other_in_a_real_step_are_unsafe_too(tmp_path):
    assert broken_laws(OverlapsWhereLarge, 3, 0, ("plain",)).found == {}
    part = Replay("resnet18", 8, "50%", "v100-pcie", "lru", "best-fit", 1.02, 1.5, 20)
    path = tmp_path / "large.py"
    path.write_text(
        "from strangers.test_graded_liars import OverlapsWhereLarge\nLarge = OverlapsWhereLarge\n"
    )
    named = choose_allocator(f"{path}:Large", 1 << 30, binding=False)
    addresses = addresses_given(log_of(part), named.make(DryMemory(1 << 30)))
    with pytest.raises(ValueError, match="which is live"):
        extent_bytes(log_of(part), addresses)


def test_a_report_for_students_shows_no_hidden_case():
    results = results_of(Grade("", UNSAFE, 60.0))
    shown = str(results)
    assert "abc" not in shown
    assert "overlap" not in shown
    assert "P1" in results["output"]
    assert results["score"] < 60


@pytest.mark.parametrize("name", NAMES)
def test_every_assertion_of_an_assignment_says_a_sentence(name):
    rubric = read_rubric(ASSIGNMENTS / name)
    tree = ast.parse((rubric.folder / rubric.tests.file).read_text())
    silent = [n.lineno for n in ast.walk(tree) if isinstance(n, ast.Assert) and n.msg is None]
    assert silent == []


def test_all_that_depends_on_the_seed_is_hidden():
    for name in NAMES:
        rubric = read_rubric(ASSIGNMENTS / name)
        source = (rubric.folder / rubric.tests.file).read_text()
        for node in ast.parse(source).body:
            if isinstance(node, ast.FunctionDef) and node.name in rubric.tests.points:
                seeded = {arg.arg for arg in node.args.args} & {"request", "seed"}
                assert bool(seeded) == (node.name in rubric.tests.hidden), node.name


def test_no_rule_but_lru_passes_the_hidden_reads():
    test = load_from_file(str(ASSIGNMENTS / "lru_planner" / "test_lru.py"), "telling_reads")
    inside = SimpleNamespace(**test.__globals__)
    for seed in range(20):
        order, places = test(random.Random(seed))
        right = inside.fetched_by_lru(order, places)
        assert inside.fetched_by(
            lambda there, later: min(there, key=lambda name: there[name][1]), order, places
        ) == right  # fmt: skip
        assert all(inside.fetched_by(r, order, places) != right for r in inside.RIVALS)
    assert "test_hidden_reads" in read_rubric(ASSIGNMENTS / "lru_planner").tests.required


SIMPLEST = {
    "lru_planner": LRU_STUB + SOLUTION,
    "window_planner": AHEAD_STUB + AHEAD,
    "recompute_chain": AGAIN_STUB + AGAIN,
}


@pytest.mark.parametrize("name", quick([*SIMPLEST], 0))
def test_par_is_no_slower_than_the_simplest_right_planner(name):
    names: dict = {}
    exec(SIMPLEST[name], names)
    for part in read_rubric(ASSIGNMENTS / name).measures:
        plan = names["Solved"]().plan(
            Question(
                step_of(part),
                budget_bytes_of(part),
                machine(part.machine),
                granule=granule_of(part),
            )
        )
        ratio = plan.makespan_us / par_us(part)
        print(f"{name}, {part.model}, {part.budget}: {ratio:.3f} x par")
        assert ratio >= 1


@pytest.mark.slow
def test_an_allocator_that_overlaps_in_a_real_step_alone_does_not_pass(tmp_path):
    path = tmp_path / "large.py"
    path.write_text(
        FIT_STUB
        + FITTING
        + """

class Large(Solved):
    def allocate(self, nbytes, tag=""):
        block = super().allocate(nbytes, tag)
        block.address -= (1 << 19) * (nbytes > 1 << 20)
        return block

    def free(self, block, after=()):
        block.address += (1 << 19) * (block.requested_bytes > 1 << 20)
        super().free(block, after)
"""
    )
    found = grade(read_rubric(ASSIGNMENTS / "best_fit"), f"{path}:Large")
    assert [row.kind for row in found.rows if row.unsafe] == ["replay"]
    assert found.rows[0].unsafe
    assert not found.passed
    assert found.points < found.pass_points
