"""The map of the arena, as text and as picture, and the error that shows it."""

from __future__ import annotations

import contextlib
import pickle
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ooctrain.alloc.arena_map import arena_line, arena_text, largest_holders, pieces_of
from ooctrain.alloc.best_fit import BestFit
from ooctrain.alloc.dry_run import DryMemory
from ooctrain.alloc.log import Recorder
from ooctrain.alloc.registry import allocators, choose_allocator
from ooctrain.alloc.replay import replay, serve, snapshot_at_peak
from ooctrain.alloc.virtual import VirtualAddressing
from ooctrain.cli import main
from ooctrain.errors import OutOfDeviceMemory
from ooctrain.report.arena import arena_svg
from ooctrain.units import MIB

SECTOR = 512
BUDGET = 64 * SECTOR
NAMES = ["best-fit", "bump", "buddy", "first-fit", "va:chunk=4KiB", "passthrough"]


def with_holes() -> BestFit:
    """Sixteen sectors: a hole of two, a small hole, 40 sectors at the end."""
    allocator = BestFit(DryMemory(BUDGET))
    sizes = {"a": 2, "large.out": 12, "b": 4, "c": 1, "d": 5}
    blocks = {name: allocator.allocate(n * SECTOR, name) for name, n in sizes.items()}
    allocator.free(blocks["a"])
    allocator.free(blocks["c"])
    return allocator


def test_pieces_tile_the_arena():
    found = [(p.lo // SECTOR, p.hi // SECTOR, p.kind, p.tag) for p in pieces_of(snapshot())]
    assert found == [
        (0, 2, "hole", ""), (2, 14, "block", "large.out"), (14, 18, "block", "b"),
        (18, 19, "hole", ""), (19, 24, "block", "d"), (24, 64, "end", ""),
    ]  # fmt: skip


def snapshot():
    return with_holes().snapshot()


def test_the_line_shows_what_most_of_each_cell_is():
    assert arena_line(snapshot(), 64) == ".." + 12 * "A" + 4 * "C" + "." + 5 * "B" + 40 * " "
    assert arena_line(snapshot(), 16) == ".AAA" + "CB" + 10 * " "
    text = arena_text(snapshot(), 16)
    assert text.startswith("|.AAACB          |\nA large.out 6.00 KiB, B d 2.50 KiB, C b 2.00 KiB")
    assert text.endswith(
        ". 2 holes of 1.50 KiB, the largest 1.00 KiB, free at the end 20.0 KiB"
    )  # fmt: skip


def test_an_empty_and_a_full_arena():
    allocator = BestFit(DryMemory(BUDGET))
    assert arena_line(allocator.snapshot(), 8) == 8 * " "
    allocator.allocate(BUDGET)
    assert arena_line(allocator.snapshot(), 8) == 8 * "A"
    assert "A block 1 32.0 KiB" in arena_text(allocator.snapshot())


def test_virtual_addressing_is_drawn_by_its_physical_chunks():
    page = 4096
    allocator = VirtualAddressing(DryMemory(8 * page), page)
    blocks = [allocator.allocate(page, f"v{n}") for n in range(8)]
    for block in blocks[::2]:
        allocator.free(block)
    scattered = allocator.allocate(3 * page, "scattered")
    line = arena_line(allocator.snapshot(), 8)
    assert line.count("A") == 3
    assert "AA" not in line
    assert largest_holders(allocator.snapshot())[scattered.id][1] == "scattered"


@pytest.mark.parametrize("name", NAMES)
@given(st.lists(st.tuples(st.booleans(), st.integers(1, 9000)), max_size=25))
def test_pieces_tile_whatever_the_allocator(name, operations):
    allocator = choose_allocator(name, BUDGET, probe=lambda: "").make(DryMemory(BUDGET))
    live = []
    for is_free, size in operations:
        if is_free and live:
            allocator.free(live.pop(size % len(live)))
        elif not is_free:
            with contextlib.suppress(OutOfDeviceMemory):
                live.append(allocator.allocate(size, f"b{size}"))
    found = pieces_of(allocator.snapshot())
    ends = [0, *(piece.hi for piece in found)]
    assert [piece.lo for piece in found] == ends[:-1]
    assert ends[-1] == BUDGET or not found
    held = sum(piece.hi - piece.lo for piece in found if piece.kind == "block")
    assert held == allocator.stats().granted_bytes
    assert len(arena_line(allocator.snapshot())) == 64


def test_out_of_memory_draws_the_arena_and_says_what_would_fit():
    allocator = with_holes()
    with pytest.raises(OutOfDeviceMemory) as caught:
        allocator.allocate(41 * SECTOR, "too.large")
    error, text = caught.value, str(caught.value)
    assert "arena: |..AAAAAAAAAAAACCCC.BBBBB" in text
    assert "A large.out 6.00 KiB" in text
    assert "2 holes of 1.50 KiB, the largest 1.00 KiB" in text
    assert "20.0 KiB would fit now" in text
    assert error.fragmented
    assert (error.free_bytes, error.largest_bytes) == (43 * SECTOR, 40 * SECTOR)
    assert error.enough_bytes == (24 + 41) * SECTOR
    assert f"this fits a --budget of {error.enough_bytes} B" in error.fix
    assert str(pickle.loads(pickle.dumps(error))) == text
    with pytest.raises(OutOfDeviceMemory, match="the arena is full") as caught:
        allocator.allocate(44 * SECTOR)
    assert not caught.value.fragmented
    assert "va" not in caught.value.fix


@pytest.mark.parametrize("name", ["best-fit", "bump", "buddy", "first-fit", "va:chunk=4KiB"])
@given(st.lists(st.tuples(st.booleans(), st.integers(1, 9000)), min_size=5, max_size=40))
def test_the_budget_that_is_named_is_enough_for_this_request(name, operations):
    memory = DryMemory(BUDGET)
    recorder = Recorder(choose_allocator(name, BUDGET, probe=lambda: "").make(memory))
    live = []
    for is_free, size in operations:
        if is_free and live:
            recorder.free(live.pop(size % len(live)))
        elif not is_free:
            try:
                live.append(recorder.allocate(size))
            except OutOfDeviceMemory as refused:
                asked = [*recorder.requests[:-1]]
                larger = choose_allocator(name, refused.enough_bytes, probe=lambda: "")
                again = larger.make(DryMemory(refused.enough_bytes))
                serve(asked, again)
                assert again.allocate(size)
                return


def test_the_picture_is_whole_xml_and_names_the_blocks():
    shots = {"best-fit": snapshot(), "empty": BestFit(DryMemory(BUDGET)).snapshot()}
    root = ElementTree.fromstring(arena_svg(shots))
    space = "{http://www.w3.org/2000/svg}"
    titles = [title.text for title in root.iter(f"{space}title")]
    assert "large.out: 6.00 KiB at 1.00 KiB" in titles
    assert "free: 512 B at 9.00 KiB" in titles
    texts = " ".join("".join(text.itertext()) for text in root.iter(f"{space}text"))
    assert "10.5 KiB live, 1.50 KiB in 2 holes, 20.0 KiB free at the end" in texts
    assert "A large.out" in texts
    widths = [float(rect.get("width")) for rect in root.iter(f"{space}rect")]
    assert max(widths) == pytest.approx(960 - 16 - 16 - 0.6, abs=0.01)  # the empty arena's


def test_every_allocator_of_ours_has_a_map():
    for name in allocators():
        choice = choose_allocator(name, 1 << 28, probe=lambda: "", binding=False)
        allocator = choice.make(DryMemory(1 << 28))
        allocator.allocate(5 << 20, "x")
        assert "A x " in arena_text(allocator.snapshot())


def a_log():
    """The second of three blocks goes and a larger one comes."""
    recorder = Recorder(BestFit(DryMemory(BUDGET)))
    blocks = [recorder.allocate(n * SECTOR, name) for n, name in ((2, "a"), (3, "b"), (1, "c"))]
    recorder.free(blocks[1])
    high = recorder.allocate(4 * SECTOR, "high")
    recorder.free(high)
    recorder.allocate(SECTOR, "small")
    return recorder.log()


@pytest.mark.parametrize("name", ["best-fit", "bump", "first-fit"])
def test_the_arena_is_drawn_when_it_needs_most(name):
    log = a_log()
    found = replay(log, name, budget=10 * SECTOR)
    assert found.failure is None
    assert arena_line(snapshot_at_peak(log, found), 10) == "BB...CAAAA"


def test_where_blocks_lie_anywhere_it_is_drawn_when_most_is_granted():
    log = a_log()
    shot = snapshot_at_peak(log, replay(log, "va:chunk=4KiB", budget=BUDGET))
    assert [block["tag"] for block in shot["blocks"]] == ["a", "b", "c"]


def test_where_it_fails_the_arena_is_drawn_as_it_was_then():
    log = a_log()
    found = replay(log, "best-fit", budget=9 * SECTOR)
    assert found.failure is not None
    assert {b["tag"] for b in snapshot_at_peak(log, found)["blocks"]} == {"a", "c"}


def test_replay_draws_a_picture(tmp_path):
    a_log().save(tmp_path / "log.jsonl")
    words = ["replay", str(tmp_path / "log.jsonl"), "--allocator", "best-fit,first-fit,va"]
    assert main([*words, "--picture", str(tmp_path / "arena.svg")]) == 0
    texts = "".join(ElementTree.parse(tmp_path / "arena.svg").getroot().itertext())
    assert "first-fit" in texts
    assert "high: 2.00 KiB" in texts


def test_an_arena_of_no_size_in_particular_is_drawn_as_large_as_it_had_to_be(tmp_path):
    a_log().save(tmp_path / "log.jsonl")
    picture = tmp_path / "arena.svg"
    words = ["replay", str(tmp_path / "log.jsonl"), "--picture", str(picture)]
    for budget, shown in (([], ", 0 B free"), (["--budget", "8KiB"], ", 3.00 KiB free")):
        assert main([*words, "--allocator", "best-fit", *budget]) == 0
        assert f"{shown} at the end" in picture.read_text()


def test_segments_are_drawn_one_behind_the_other():
    allocator = choose_allocator("best-fit-caching", 64 * MIB, probe=lambda: "").make(
        DryMemory(64 * MIB)
    )
    sizes = [8 * MIB, 12 * MIB, 10 * MIB]
    for size in sizes:
        allocator.allocate(size)
    found = [(piece.lo, piece.hi) for piece in pieces_of(allocator.snapshot())]
    assert found[:3] == [(0, 8 * MIB), (8 * MIB, 20 * MIB), (20 * MIB, 30 * MIB)]
