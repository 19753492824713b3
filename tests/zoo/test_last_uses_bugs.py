"""Planted bugs of what a range remembers of its last uses: each is killed by the law of them."""

from __future__ import annotations

import pytest
from properties import test_last_uses as LAWS
from zoo.planting import plant

from ooctrain.alloc import mappings

#: {what: (owner, function, text, text with the bug)}
BUGS = {
    "a use ends the memory of those before": (
        mappings.ChunkMapping, "used", "(*earlier, *after)", "tuple(after)",
    ),
    "a block without uses ends the memory of those before": (
        mappings.ChunkMapping, "used", "if earlier or after:", "if after:",
    ),
    "what is over is kept": (mappings.ChunkMapping, "used", "if not is_over(event)", ""),
    "what is not over is forgotten": (
        mappings.ChunkMapping, "used", "if not is_over(event)", "if is_over(event)",
    ),
    "the uses of parts are not waited for": (
        mappings.MappingCache, "drop", "mapping.uses.values()",
        "[mapping.uses.get((0, mapping.slots), ())]",
    ),
}  # fmt: skip


def all_held():
    """The laws, on the histories in which ranges are kept."""
    for name in LAWS.NAMES:
        LAWS.test_last_uses_that_are_over_are_forgotten(name)
        assert LAWS.played(name, LAWS.KEPT).too_early == 0
        assert LAWS.played(name, LAWS.PARTS).too_early == 0
    return len(LAWS.NAMES)


def test_the_histories_hold_without_a_bug():
    assert all_held() == len(LAWS.NAMES)


@pytest.mark.parametrize("bug", BUGS)
def test_bug(bug, monkeypatch):
    plant(monkeypatch, *BUGS[bug])
    with pytest.raises(AssertionError):
        all_held()
