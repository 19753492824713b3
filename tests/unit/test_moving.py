"""Moving pictures stand still where they must, and show what really happened."""

from __future__ import annotations

import math
import random
import re
from xml.etree import ElementTree

import pytest

import ooctrain as oc
from ooctrain.alloc.replay import BlockLife
from ooctrain.report.moving_memory import (
    MOVING,
    Film,
    Layer,
    arena_film,
    mapping_film,
    moving_svg,
    on_device,
    window_spans,
)
from ooctrain.sched.planners.window import Walk
from ooctrain.units import format_bytes

FILM = Film(["<g/>"], [Layer(["<g/>"], 0), Layer(["<g/>"], 1, 3), Layer(["<g/>"], 3)], 4, 1, 50)


def style_of(svg: str) -> tuple[str, str]:
    """What holds everywhere, and what holds where things may move."""
    still, _, moving = re.search(r"<style>(.*)</style>", svg, re.S)[1].partition(MOVING)
    return still, moving


def test_without_motion_one_frame_is_seen():
    still, moving = style_of(moving_svg(FILM))
    assert "animation" not in still, "print and reduced motion see no animation"
    assert re.findall(r"\.(f\d-\d)", still) == ["f3-4"], "what the still frame lacks is hidden"
    assert moving.count("animation:") == moving.count("@keyframes") == 3


def test_each_layer_is_seen_in_its_frames_and_the_last_frame_pauses():
    _, moving = style_of(moving_svg(FILM, frame_s=1))
    assert "8s step-end infinite" in moving, "4 frames, and a pause of 4"
    assert "{0% {opacity: 0} 12.5% {opacity: 1} 37.5% {opacity: 0}}" in moving
    assert "{0% {opacity: 0} 37.5% {opacity: 1} 100% {opacity: 1}}" in moving, "to the end"


def test_a_moving_picture_is_well_formed_and_needs_no_script():
    root = ElementTree.fromstring(moving_svg(FILM))
    assert len(root.findall("{http://www.w3.org/2000/svg}g")) == 4
    assert "script" not in moving_svg(FILM)


@pytest.mark.parametrize("budget", [500, 600, 800])
def test_the_window_that_is_drawn_is_the_planners(budget, monkeypatch):
    chain, heads = oc.equal_stages(8), {}
    fill = Walk._fill_window

    def noting(walk, call_id):
        fill(walk, call_id)
        order = walk.sequence.order
        heads[call_id] = order[walk.head][0] if walk.head < len(order) else len(chain.calls)

    monkeypatch.setattr(Walk, "_fill_window", noting)
    plan = oc.plan(chain, budget, "window", oc.toy_machine())
    drawn = dict(window_spans(chain, round(plan.notes["window"] * budget)))
    assert heads, "the planner walked"
    assert all(heads[call] <= drawn[call] for call in heads), "it may be short of room"
    assert sum(heads[call] == drawn[call] for call in heads) > len(heads) / 2


def test_what_is_drawn_on_the_device_is_what_the_list_has_claimed():
    plan = oc.plan(oc.equal_stages(8), 500, "window", oc.toy_machine())
    columns = on_device(plan.trace, plan.schedule)
    assert len(columns) == len(plan.trace.calls)
    for call, (present, going, coming) in zip(plan.trace.calls, columns, strict=True):
        assert set(call.touched()) <= present
        assert going | coming <= present
        assert 100 * len(present) <= 500


def test_lives_of_blocks_overlap_nowhere_and_add_up_to_what_the_list_needs():
    plan = oc.plan(oc.equal_stages(8), 500, "window", oc.toy_machine())
    log = oc.allocation_log(plan.trace, plan.schedule, plan.peak_bytes, steps=1)
    for allocator in ("best-fit", "va:chunk=64KiB"):
        lives = oc.alloc.block_lives(log, allocator, 1 << 20)
        assert len(lives) == sum(request.op == "allocate" for request in log.requests)
        for number, one in enumerate(lives):
            for two in lives[:number]:
                apart = one.end <= two.begin or two.end <= one.begin
                assert apart or one.hi <= two.lo or two.hi <= one.lo
        most = max(sum(o.begin <= life.begin < o.end for o in lives) for life in lives)
        assert most * 100 == plan.peak_bytes


@pytest.mark.parametrize("seed", range(20))
def test_a_film_of_blocks_shows_each_while_it_lives_and_stands_still_at_the_most(seed):
    rng, requests = random.Random(seed), 9
    lives = []
    for number in range(6):
        begin = rng.randrange(requests)
        end, lo = rng.randint(begin + 1, requests + 1), rng.randrange(0, 90)
        lives.append(BlockLife(f"b{number % 4}", begin, end, lo, lo + rng.randint(1, 30)))
    film = mapping_film(lives, 10, 12, requests)
    blocks = {(life.tag, life.begin): life.end for life in lives}
    shown = sorted((layer.first, layer.last) for layer in film.layers)
    assert shown == sorted((begin, min(end, requests)) for (_, begin), end in blocks.items())
    live = [sum(begin <= t < end for (_, begin), end in blocks.items()) for t in range(requests)]
    assert (film.frames, film.still) == (requests, live.index(max(live)))
    for (tag, begin), layer in zip(blocks, film.layers, strict=True):
        own = [life for life in lives if (life.tag, life.begin) == (tag, begin)]
        chunks = sum(len(range(life.lo // 10, math.ceil(life.hi / 10))) for life in own)
        assert sum(part.count(f"<title>{tag}: chunk ") for part in layer.parts) == chunks
    film = arena_film(lives, 150, requests, 99)
    placed, captions = film.layers[: len(lives)], film.layers[len(lives) : -1]
    assert [layer.first for layer in placed] == [life.begin for life in lives]
    for now, layer in enumerate(captions[:-1]):
        held = [(life.lo, life.hi) for life in lives if life.begin <= now < life.end]
        free = max([hi for _, hi in held], default=0) - sum(hi - lo for lo, hi in held)
        assert (layer.first, layer.last) == (now, now + 1)
        assert f"request {now + 1}: {format_bytes(free)} in" in layer.parts[-1]
    assert (captions[-1].first, captions[-1].last) == (requests - 1, None)
    assert "150 B; the list needs 99 B" in captions[-1].parts[-1]


def test_lives_end_with_the_request_that_is_refused():
    log = oc.alloc.AllocationLog(
        [oc.alloc.Request("allocate", n, 100 << 10, tag=f"b{n}") for n in range(3)],
        "",
        oc.Granule(),
        200 << 10,
    )
    lives = oc.alloc.block_lives(log, "best-fit", 200 << 10)
    assert [life.tag for life in lives] == ["b0", "b1"]
