"""In a notebook a step shows itself: a short text, and a picture that stays small."""

from __future__ import annotations

from dataclasses import replace
from html.parser import HTMLParser
from xml.etree import ElementTree

import numpy as np
import pytest

import ooctrain as oc
from ooctrain.alloc.best_fit import BestFit
from ooctrain.alloc.dry_run import DryMemory
from ooctrain.alloc.virtual import VirtualAddressing
from ooctrain.api import Executed
from ooctrain.sched.schedule import Run, Schedule, SwapIn, SwapOut
from ooctrain.sched.timeline import TimelineEvent, make_timeline

SCREEN_LINES, SCREEN_COLUMNS = 24, 400
MOST_BYTES = 400_000
#: Elements that HTML closes by themselves.
VOID = {"br", "hr", "img"}


class Balanced(HTMLParser):
    """Fails at an end tag that closes another element than the last one opened."""

    def __init__(self):
        super().__init__()
        self.open, self.seen = [], set()

    def handle_starttag(self, tag, attrs):
        self.seen.add(tag)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.seen.add(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


@pytest.fixture(scope="module")
def shown():
    sizes, times = [100] * 41, [10] * 40
    trace = oc.chain(sizes, sizes, times, [20] * 40, [0] * 40, [0] * 40)
    plan = oc.plan(trace, "50%", planner="window", machine="cpu-generic")
    arena = BestFit(DryMemory(1 << 16))
    blocks = [arena.allocate(1000 * size, f"<v{size}>") for size in range(1, 9)]
    arena.free(blocks[3])
    pages = VirtualAddressing(DryMemory(1 << 20))
    pages.allocate(1 << 18, "x")
    return {
        "trace": plan.trace,
        "plan": plan,
        "schedule": plan.schedule,
        "timeline": oc.simulate(plan, plan.trace, "cpu-generic"),
        "arena": arena.snapshot(),
        "pages": pages.snapshot(),
    }


KINDS = ("trace", "plan", "schedule", "timeline", "arena", "pages")


@pytest.mark.parametrize("kind", KINDS)
def test_its_text_fits_a_screen(kind, shown):
    lines = repr(shown[kind]).splitlines()
    assert len(lines) <= SCREEN_LINES
    assert max(map(len, lines)) <= SCREEN_COLUMNS


@pytest.mark.parametrize("kind", KINDS)
def test_its_picture_is_a_picture_and_its_page_holds_it(kind, shown):
    picture = shown[kind]._repr_svg_()
    assert ElementTree.fromstring(picture).tag == "{http://www.w3.org/2000/svg}svg"
    page = Balanced()
    page.feed(shown[kind]._repr_html_())
    assert not page.open
    assert {"table", "svg"} <= page.seen
    assert not page.seen & {"script", "style", "link"}


def test_a_snapshot_is_still_plain_data(shown):
    assert {**shown["arena"]} == shown["arena"]
    assert "holes" in shown["arena"]


def long_timeline(count):
    events = [TimelineEvent("C", f"call{i}", float(i), i + 1.0, i) for i in range(count)]
    ledger = tuple((float(i), 1 + i % 7) for i in range(count))
    return make_timeline(
        events, rerun=frozenset(), copied_bytes=(0, 0), peak_bytes=(7, 0), ledger=ledger
    )


def test_a_long_step_has_a_small_picture_of_the_same_length():
    found = long_timeline(20_000)
    assert len(found._repr_html_()) < MOST_BYTES
    boxes = [
        box.attrib
        for box in ElementTree.fromstring(found._repr_svg_()).iter(
            "{http://www.w3.org/2000/svg}rect"
        )
    ]
    drawn = sum(float(box["width"]) for box in boxes if box["fill"] == "#3b6fb6")
    (lane,) = {float(box["width"]) for box in boxes if box["fill"] == "#f3f3f3"}
    assert drawn == pytest.approx(lane, rel=0.01), "the stream is busy all the time"
    assert "more" in found._repr_svg_()


def test_of_a_long_curve_the_peak_is_drawn():
    found = long_timeline(20_000)
    peak_at = 11_234
    ledger = (*found.ledger[:peak_at], (float(peak_at), 700), *found.ledger[peak_at + 1 :])
    with_peak = replace(found, ledger=ledger, peak_bytes=700)
    assert "700 bytes" in with_peak._repr_svg_()
    line = ElementTree.fromstring(with_peak._repr_svg_()).find(
        "{http://www.w3.org/2000/svg}polyline"
    )
    heights = [float(point.split(",")[1]) for point in line.attrib["points"].split()]
    assert max(heights) - min(heights) > 70, "the curve reaches the top of its plot"


@pytest.mark.parametrize("length", [0, 1, 5000])
def test_a_list_of_any_length_is_drawn(length):
    kinds = (lambda i: Run(i), lambda i: SwapOut(i, 0, 8), lambda i: SwapIn(i, 0, 8))
    listed = Schedule(tuple(kinds[i % 3](i) for i in range(length)))
    assert len(listed._repr_html_()) < MOST_BYTES
    ElementTree.fromstring(listed._repr_svg_())
    assert f"{length} instructions" in repr(listed)


def test_what_is_run_shows_no_gradients(shown):
    many = {f"w{i}": np.zeros(100) for i in range(100)}
    run = Executed(shown["timeline"], 2.5, many, many)
    assert repr(run).startswith("Executed(loss 2.5, 100 gradients, Timeline(")
    assert len(repr(run)) < SCREEN_COLUMNS
