"""What is reserved is counted from addresses: books that say otherwise are named, and not believed.

Right allocators, all of the library's among them, book what their blocks span; liars, each as
somebody writes one by mistake, are found by the replay, by the map of the arena and by law P19.
"""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest

from ooctrain.alloc.arena_map import pieces_of
from ooctrain.alloc.best_fit import BestFit
from ooctrain.alloc.dry_run import DryMemory
from ooctrain.alloc.log import AllocationLog, Request
from ooctrain.alloc.registry import allocators, choose_dry
from ooctrain.alloc.replay import replay, snapshot_at_peak
from ooctrain.cli import main
from ooctrain.testing.check_allocator import broken_laws
from ooctrain.units import Granule

HERE = Path(__file__).resolve().parent
FIRST_HOLE = f"{HERE / 'allocators.py'}:FirstHole"
FORGETS = f"{HERE / 'allocators.py'}:ForgetsHoles"


def log_of(seed, steps=3):
    """Requests that leave holes; each step the same."""
    rng, requests, key = random.Random(seed), [], 0
    for step in range(steps):
        live = []
        requests.append(Request("step", step))
        for _ in range(60):
            if live and rng.random() < 0.45:
                requests.append(Request("free", live.pop(rng.randrange(len(live)))))
            else:
                key += 1
                live.append(key)
                size = rng.choice((3000, 70_000, 5_000, 40_000)) + rng.randrange(512)
                requests.append(Request("allocate", key, size, tag=f"b{key}"))
        requests += [Request("free", one) for one in live]
    return AllocationLog(tuple(requests), "", Granule(512, ranges=False), 1 << 21)


def reach_of(log, name):
    """By hand: the highest end of a block above the arena's first byte, of best fit or the like."""
    memory = DryMemory(1 << 24)
    allocator = choose_dry(name, 1 << 24).make(memory)
    live, most = {}, 0
    for request in log.requests:
        if request.op == "allocate":
            live[request.key] = block = allocator.allocate(request.nbytes, request.tag)
            most = max(most, block.address + block.granted_bytes - memory.linear())
        elif request.op == "free":
            allocator.free(live.pop(request.key))
    return most


@pytest.mark.parametrize("name", allocators())
def test_no_allocator_of_the_library_reserves_less_than_its_blocks_span(name):
    for seed in range(3):
        found = replay(log_of(seed), name)
        assert found.failure is None
        assert found.misbooked == ""
        assert found.reserved_bytes == found.stats.peak_reserved_bytes
        assert found.granted_bytes == found.stats.peak_granted_bytes


def test_holes_count_whatever_the_books_say():
    log = log_of(1)
    right, wrong = replay(log, FIRST_HOLE), replay(log, FORGETS)
    assert right.misbooked == ""
    assert wrong.stats.peak_reserved_bytes < right.stats.peak_reserved_bytes
    assert wrong.reserved_bytes == right.reserved_bytes
    assert wrong.external_share == right.external_share > 0
    assert "first-hole" in wrong.misbooked
    print(wrong.misbooked)


def test_the_replay_agrees_with_a_count_by_hand():
    for seed in range(5):
        log = log_of(seed)
        assert replay(log, "best-fit").reserved_bytes == reach_of(log, "best-fit")


class SaysLess(BestFit):
    """Statistics that are better than the truth, in each way."""

    wrong = "peak_reserved_bytes"

    def stats(self):
        found = super().stats()
        return replace(found, **{self.wrong: getattr(found, self.wrong) // 2})


class GrantsLess(SaysLess):
    wrong = "peak_granted_bytes"


class RequestsLess(SaysLess):
    wrong = "peak_requested_bytes"


class SaysMoreThanThereIs(BestFit):
    def stats(self):
        return replace(super().stats(), peak_reserved_bytes=3 * self.budget_bytes)


class NamesNoPlace(SaysLess):
    """Nothing in its snapshot but blocks."""

    def snapshot(self):
        return {"blocks": super().snapshot()["blocks"]}


class ShowsOthers(BestFit):
    """A snapshot in which not all blocks stand."""

    def snapshot(self):
        shot = super().snapshot()
        return {**shot, "blocks": shot["blocks"][1:]}


class ShowsThemElsewhere(BestFit):
    def snapshot(self):
        shot = super().snapshot()
        return {**shot, "blocks": [{**b, "address": b["address"] - 512} for b in shot["blocks"]]}


class BeginsElsewhere(BestFit):
    def snapshot(self):
        shot = super().snapshot()
        return {**shot, "base": shot["base"] + 512}


LIARS = (SaysLess, GrantsLess, RequestsLess, SaysMoreThanThereIs, NamesNoPlace, ShowsOthers,
         ShowsThemElsewhere, BeginsElsewhere)  # fmt: skip


@pytest.mark.parametrize("kind", LIARS)
def test_a_liar_is_named_and_counted_right(kind, tmp_path):
    path = tmp_path / "liar.py"
    path.write_text(
        f"from strangers.test_books_that_lie import {kind.__name__}\nLiar = {kind.__name__}\n"
    )
    log = log_of(2)
    found, right = replay(log, f"{path}:Liar"), replay(log, "best-fit")
    assert found.misbooked
    assert found.reserved_bytes == right.reserved_bytes
    assert found.external_share == right.external_share
    assert found.internal_share == right.internal_share
    shot = snapshot_at_peak(log, found)
    assert pieces_of(shot) == pieces_of({**snapshot_at_peak(log, right), "budget": shot["budget"]})


@pytest.mark.parametrize("name", ["RoundsDown", "OverlapsLate", "StartsTooLarge"])
def test_blocks_that_are_no_good_are_named(name):
    """Too small, in one place with others, or beyond the arena: no count says what they hold."""
    found = replay(log_of(2), f"{HERE / 'allocators.py'}:{name}", budget="1MiB")
    assert found.misbooked or "cannot be used" in found.failure.text


def test_law_p19_is_kept_by_who_counts_holes_and_by_no_liar():
    from strangers.allocators import FirstHole, ForgetsHoles

    assert "P19" not in broken_laws(FirstHole, 10, 0, ("plain",)).found
    assert "P19" in broken_laws(ForgetsHoles, 10, 0, ("plain",)).found
    for name in ("best-fit", "bump", "buddy", "stalloc"):
        assert "P19" not in broken_laws(choose_dry(name, 1 << 20).make, 2, 0, ("plain",)).found


def test_the_command_counts_names_and_draws(tmp_path, capsys):
    path, numbers, picture = (tmp_path / name for name in ("log.jsonl", "r.json", "a.svg"))
    log_of(1).save(path)
    status = main(["replay", str(path), "--allocator", f"best-fit,{FORGETS}", "--json",
                   str(numbers), "--picture", str(picture)])  # fmt: skip
    assert status == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "holes included" in shown
    rows = json.loads(numbers.read_text())["rows"]
    assert [bool(row["misbooked"]) for row in rows] == [False, True]
    assert rows[1]["external_share"] > 0
    assert picture.read_text().startswith("<svg")
