"""The laws of allocators bite: each planted bug passes an ordinary test, and a law kills it.

The programs with which every check begins (`allocator_laws.histories`, and each refusal once)
find the bug. A search finds each too, but how soon is luck.
"""

from __future__ import annotations

import pytest
from properties import test_allocators as LAWS
from support.quick import quick
from zoo import allocator_bugs as ZOO

from ooctrain.testing.allocator_grounds import make_ground
from ooctrain.testing.check_allocator import UNITS, find_failure

#: Lists that are drawn besides.
EXAMPLES = 1

PAGE = ZOO.PAGE


def an_ordinary_test(make):
    """Blocks of whole pages, one stream, work done at once, nothing refused, all freed."""
    ground = make_ground("strict", UNITS * PAGE, PAGE)
    allocator = make(ground.memory)
    for sizes in ((1, 2, 3), (3, 1, 2), (2, 2)):
        blocks = [allocator.allocate(size * PAGE, f"{size} pages") for size in sizes]
        for number, block in enumerate(blocks):
            ground.fill(block.address, block.requested_bytes, number + 1, 0)
        for number, block in enumerate(blocks):
            ground.expect(block.address, block.requested_bytes, number + 1, 0, block.tag)
        assert ground.finish() == ""
        assert allocator.stats().granted_bytes == sum(sizes) * PAGE
        for block in reversed(blocks):
            allocator.free(block, [ground.event(0)])
    assert allocator.stats().granted_bytes == 0
    assert allocator.close() == []


def killer(bug) -> str | None:
    """The law that kills an allocator; None: it lives."""
    failure = find_failure(bug.make, EXAMPLES, 0, [bug.backend], shortest=False)
    return None if failure is None else failure.law or str(failure)


@pytest.mark.parametrize("name", quick([*ZOO.BUGS], *range(0, len(ZOO.BUGS), 5)))
def test_a_bug_is_killed_by_a_law_and_passes_an_ordinary_test(name, monkeypatch):
    bug = ZOO.BUGS[name]
    ZOO.plant(monkeypatch, bug)
    if name not in ZOO.LOUD:
        an_ordinary_test(bug.make)
    assert killer(bug) in bug.laws.split()


def test_a_lost_free_is_killed(monkeypatch):
    LAWS.test_a_free_within_an_allocate_is_put_off_and_not_lost()
    ZOO.plant(monkeypatch, ZOO.LOST_FREE)
    an_ordinary_test(ZOO.LOST_FREE.make)
    with pytest.raises(AssertionError):
        LAWS.test_a_free_within_an_allocate_is_put_off_and_not_lost()
