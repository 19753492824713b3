"""A range goes after all its last uses, however often it was kept and handed out in between."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ooctrain.alloc.dry_run import DryMemory
from ooctrain.alloc.registry import choose_dry
from ooctrain.errors import OutOfDeviceMemory

PAGE, PAGES = 4096, 12
#: All that map, with chunks of a page, and with few mappings, so that ranges have to go.
NAMES = (
    "best-fit-caching:small=4KiB,chunk=4KiB", "gmlake:chunk=4KiB", "passthrough:chunk=4KiB",
    "va:chunk=4KiB", "va-nnabla:chunk=4KiB,waiting=0", "va-paper:chunk=4KiB",
)  # fmt: skip
Step = tuple[str, int, int]  # what; pages, or which of the live blocks; events of its last uses


class Event:
    """A last use; over once somebody has waited for it, or once it is said to be."""

    over = False

    def wait(self):
        self.over = True

    def done(self):
        return self.over


class Watched(DryMemory):
    """Notes the last uses of what lies at each address, and who goes before they are over.

    Attributes:
        gone: how many ranges, or parts of them, went or lost what was mapped there.
        too_early: how many last uses were not over then.
    """

    def __init__(self):
        super().__init__(PAGES * PAGE, PAGE, PAGES)
        self.gone = self.too_early = 0
        self._sizes = {}
        self._mapped = set()
        self._uses = []

    def used(self, lo, hi, events):
        self._uses += [(lo, hi, event) for event in events]

    def reserve(self, size_bytes):
        address = super().reserve(size_bytes)
        self._sizes[address] = size_bytes
        return address

    def map(self, address, offset, size_bytes):
        for page in range(address, address + size_bytes, PAGE):
            if page in self._mapped:
                self._goes(page, page + PAGE)
            self._mapped.add(page)

    def unmap(self, address, size_bytes):
        self._goes(address, address + size_bytes)

    def release(self, address):
        self._goes(address, address + self._sizes.pop(address))

    def _goes(self, lo, hi):
        self.gone += 1
        there = [event for begin, end, event in self._uses if begin < hi and lo < end]
        self.too_early += sum(not event.over for event in there)


def played(name, steps):
    """The memory after blocks have come and gone."""
    memory = Watched()
    allocator = choose_dry(name, memory.size_bytes).make(memory)
    live = []
    for what, value, uses in steps:
        events = [Event() for _ in range(uses)]
        if what == "allocate":
            try:
                live.append(allocator.allocate(value * PAGE))
            except OutOfDeviceMemory:
                continue
        elif what == "parts" and allocator.granule.ranges:
            _hold_a_part(allocator, memory, value, events)
        elif what == "free" and live:
            block = live.pop(value % len(live))
            memory.used(block.address, block.address + block.requested_bytes, events)
            allocator.free(block, events)
        allocator.check()
    return memory


def _hold_a_part(allocator, memory, pages, events):
    """A block comes in parts: its first page, with last uses, and then all of it, with none."""
    block = allocator.reserve(pages * PAGE)
    try:
        allocator.map_range(block, 0, PAGE)
        memory.used(block.address, block.address + PAGE, events)
        allocator.unmap_range(block, 0, PAGE, events)
        allocator.map_range(block, 0, PAGE)
        allocator.unmap_range(block, 0, PAGE)
    except OutOfDeviceMemory:
        pass
    allocator.free(block)


#: Holes, over which ranges are stitched; each is used, handed out again and left without a use.
KEPT = [
    *[("allocate", 1, 0)] * PAGES, *[("free", place, 0) for place in range(PAGES // 2)],
    ("allocate", 3, 0), ("free", -1, 2), ("allocate", 3, 0), ("free", -1, 0),
    ("parts", 3, 1), *[("allocate", 4, 0), ("free", -1, 1)] * 2, ("allocate", 5, 0),
    ("free", -1, 1), ("allocate", 6, 0), ("free", -1, 0), ("allocate", 2, 0),
    *[("free", 0, 1)] * PAGES, ("allocate", 12, 0), ("free", 0, 0), ("allocate", 7, 0),
    ("allocate", 5, 0), ("free", 0, 1), ("free", 0, 0), ("allocate", 11, 0), ("allocate", 1, 0),
]  # fmt: skip
#: A part whose last use is not over, in a range that then has to go.
PARTS = [
    *[("allocate", 1, 0)] * PAGES, *[("free", place, 0) for place in range(PAGES // 2)],
    ("parts", 5, 2), *[("allocate", size, 0) for size in (2, 3)], ("free", -1, 0), ("free", -1, 0),
    *[("allocate", 6, 0), ("free", -1, 0), ("allocate", 4, 0), ("free", -1, 0)],
]  # fmt: skip
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["allocate", "allocate", "free", "free", "parts"]),
        st.integers(1, PAGES), st.integers(0, 2),
    ),
    max_size=40,
)  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=40)
@given(STEPS)
@example(KEPT)
@example(PARTS)
def test_a_range_goes_after_all_its_last_uses(name, steps):
    assert played(name, steps).too_early == 0


@pytest.mark.parametrize("name", NAMES)
def test_ranges_do_go(name):
    assert played(name, KEPT).gone > 0


def ranges_of(allocator):
    """The ranges that it keeps, by itself or in an arena of chunks."""
    return allocator._arena.mappings if hasattr(allocator, "_arena") else allocator._cache


@pytest.mark.parametrize("name", NAMES)
def test_last_uses_that_are_over_are_forgotten(name):
    """A training step repeats itself for hours; what a range remembers must not grow."""
    allocator = choose_dry(name, PAGES * PAGE).make(Watched())
    kept = []
    for _ in range(50):
        event = Event()
        allocator.free(allocator.allocate(3 * PAGE), [event])
        event.wait()
        kept.append(
            sum(len(events) for mapping in ranges_of(allocator) for events in mapping.uses.values())
        )
    assert kept[-1] == kept[4] <= 4
