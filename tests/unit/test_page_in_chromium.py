"""The page of a step as its readers use it, in headless Chromium: steps, zoom, search, comparison,
keyboard, screen reader, dark, phone, paper, no scripts; and a step of 50,000 instructions.

Everything here is slow and needs the extra `browser` and a Chromium: playwright's own, or one of
the system's.
"""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from statistics import median

import pytest
from support.long_step import long_record

import ooctrain as oc
from ooctrain.report.page import step_page
from ooctrain.report.record import drawing, read_record
from ooctrain.report.waits import waits_of
from ooctrain.step.presets import v100_pcie

pytestmark = pytest.mark.slow
WCAG = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]
SYSTEMS = ("chromium", "chromium-browser", "google-chrome", "chrome")
FIRST_PAINT_MS, STEP_MS = 1000, 50
#: Runs an action, and says how long the script needs to draw it, in ms.
TIMED = """async (act) => {
    let from; requestAnimationFrame(() => { from = performance.now(); }); act();
    return await new Promise((done) => requestAnimationFrame(() => {
        document.body.offsetHeight; done(performance.now() - from); })); }"""


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="extra `browser` is missing")
    with playwright.sync_playwright() as started:
        found = next(filter(None, map(shutil.which, SYSTEMS)), None)
        try:
            own = started.chromium.launch(executable_path=found, args=["--no-sandbox"])
        except playwright.Error as error:
            pytest.skip(f"no Chromium on this machine: {str(error).splitlines()[0]}")
        yield own
        own.close()


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    """Two lists for LeNet; the first as if it had been measured on a slower machine."""
    trace = oc.trace(oc.models.build("lenet"), (8, 3, 32, 32), threads=1)
    folder, machine, found = tmp_path_factory.mktemp("records"), v100_pcie(), []
    slower = replace(machine, memory_bytes_per_us=machine.memory_bytes_per_us / 3)
    for planner in ("belady", "window"):
        plan = oc.plan(trace, "30%", planner=planner, machine=machine)
        predicted = oc.simulate(plan, plan.trace, machine)
        timeline = oc.simulate(plan, plan.trace, slower)
        path = folder / f"{planner}.json"
        numbers = {"model": "lenet", "budget_bytes": plan.peak_bytes, "planned_by": planner}
        path.write_text(json.dumps({**numbers, **drawing(plan, timeline, predicted)}))
        found.append(read_record(str(path)))
    return found


class Reader:
    """Somebody who has opened a page."""

    def __init__(self, browser, path, **settings):
        settings = {"viewport": {"width": 1200, "height": 900}, **settings}
        self.context = browser.new_context(**settings)
        self.page, self.said = self.context.new_page(), []
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("request", lambda request: self.said.append(request.url))
        self.page.goto(path.as_uri())
        assert self.said == [path.as_uri()], "nothing is asked of elsewhere"
        self.said.clear()

    def text(self, place):
        self.page.evaluate("() => new Promise(requestAnimationFrame)")
        return self.page.inner_text(place)

    def lines(self, place="#list"):
        self.page.evaluate("() => new Promise(requestAnimationFrame)")
        return self.page.locator(f"{place} li button").all_inner_texts()

    def picture(self, place="#plot"):
        self.page.evaluate("() => new Promise(requestAnimationFrame)")
        return self.page.evaluate("(id) => document.querySelector(id).toDataURL()", place)

    def at(self):
        return int(self.page.input_value("#scrub"))


@pytest.fixture
def opened(browser, records, tmp_path):
    """Opens the page of the first record; `against`: beside the second."""
    readers = []

    def opens(against=False, **settings):
        path = tmp_path / "step.html"
        path.write_text(step_page(records[0], records[1] if against else None), encoding="utf-8")
        readers.append(Reader(browser, path, **settings))
        return readers[-1]

    yield opens
    for reader in readers:
        assert reader.said == [], "no message of the console, and nothing fetched"
        reader.context.close()


def plain(text):
    return re.sub(r"\s+", " ", text).strip()


def test_the_scrubber_goes_instruction_by_instruction(opened, records):
    reader, lines = opened(), records[0].listed.lines
    for place, act in [
        (0, lambda: None),
        (1, lambda: reader.page.click("#on")),
        (2, lambda: reader.page.press("#scrub", "ArrowRight")),
        (1, lambda: reader.page.press("#plot", "ArrowLeft")),
        (21, lambda: reader.page.press("#plot", "PageDown")),
        (len(lines) - 1, lambda: reader.page.press("#plot", "End")),
    ]:
        act()
        assert reader.text("#line-title") == f"{place} {lines[place].text}"
        assert reader.at() == place
        shown = plain(reader.page.inner_text("#list [aria-current]"))
        assert shown == plain(f"{place} {lines[place].text}")
        assert len(reader.lines()) >= 8
        if place:
            assert lines[place].text in reader.text("#said")
    reader.page.fill("#number", "17")
    reader.page.press("#number", "Enter")
    assert reader.text("#line-title") == f"17 {lines[17].text}"


def test_each_line_tells_its_ledger_and_its_waits(opened, records):
    reader = opened()
    for place, line in enumerate(records[0].listed.lines[:40]):
        reader.page.fill("#number", str(place))
        reader.page.press("#number", "Enter")
        told = reader.text("#line")
        assert oc.units.format_bytes(line.ledger_bytes) in told
        jumps = reader.page.locator("#waits li > button:first-child").all_inner_texts()
        others = [int(text.split()[0]) for text in jumps]
        assert others[: len(line.waits)] == [wait.index for wait in line.waits]
        memory = [wait for wait in line.waits if wait.why == "memory"]
        assert reader.text("#waits").count("it needs memory") == len(memory)


def test_sizes_and_times_read_as_those_of_the_commands(opened, records):
    reader = opened()
    for place, h in enumerate(records[0].listed.lines):
        if place % 12 == 0:
            reader.page.fill("#number", str(place))
            reader.page.press("#number", "Enter")
            assert oc.units.format_bytes(h.ledger_bytes) in reader.text("#line")
    for event in records[0].timeline.events[::9]:
        reader.page.fill("#number", str(event.index))
        reader.page.press("#number", "Enter")
        start, end = (oc.units.format_us(time) for time in (event.start_us, event.end_us))
        assert f"{start} to {end}" in reader.text("#line")


def test_the_longest_wait_is_one_click_away(opened, records):
    reader, longest = opened(), waits_of(records[0].timeline)[0]
    reader.page.click("#wait")
    assert f"stands idle for {oc.units.format_us(longest.length_us)} before" in reader.text("#idle")
    assert reader.text("#line-title").endswith(f"run {longest.call}")


def test_an_instruction_that_does_not_wait_says_what_was_before_it(opened, records):
    reader, seen = opened(), set()
    for event in sorted(records[0].timeline.events, key=lambda one: one.start_us)[:40]:
        reader.page.fill("#number", str(event.index))
        reader.page.press("#number", "Enter")
        told = reader.text("#idle")
        if told.startswith(("It does not wait", "The step begins")):
            late = event.start_us > 0
            busy = "It does not wait: its stream is busy till then."
            assert told == (busy if late else "The step begins with it.")
            seen.add(late)
    assert seen == {False, True}


def test_a_wait_leads_to_what_is_waited_for(opened, records):
    reader = opened()
    place = next(k for k, line in enumerate(records[0].listed.lines) if line.waits)
    reader.page.fill("#number", str(place))
    reader.page.press("#number", "Enter")
    reader.page.click("#waits button >> nth=0")
    assert reader.text("#line-title").split()[0] == str(
        records[0].listed.lines[place].waits[0].index
    )


def test_holders_and_addresses_are_those_at_the_cursor(opened, records):
    reader, record = opened(), records[0]
    start = {event.index: event.start_us for event in record.timeline.events}
    pictures = set()
    for place in sorted(start)[5::20]:
        reader.page.fill("#number", str(place))
        reader.page.press("#number", "Enter")
        reader.text("#held")
        held = [h for h in record.holdings if h.from_us <= start[place] < h.until_us]
        rows = reader.page.locator("#holders tr").all_inner_texts()
        top = max(held, key=lambda one: one.size_bytes)
        assert oc.units.format_bytes(top.size_bytes) in rows[0]
        assert f"in {len(held)} pieces" in reader.text("#held")
        pictures.add(reader.picture("#arena"))
    assert len(pictures) >= 5


def test_zoom_pan_minimap_and_wheel_change_what_is_shown(opened):
    reader = opened()
    seen = [reader.picture()]
    for act in (
        lambda: reader.page.click("#closer"), lambda: reader.page.click("#later"),
        lambda: reader.page.press("#plot", "+"), lambda: reader.page.press("#plot", "["),
        lambda: reader.page.click("#map", position={"x": 900, "y": 20}),
    ):  # fmt: skip
        act()
        seen.append(reader.picture())
        assert seen[-1] != seen[-2]
    reader.page.click("#whole")
    assert reader.picture() == seen[0]
    reader.page.hover("#plot", position={"x": 600, "y": 60})
    reader.page.mouse.wheel(0, -400)
    assert reader.picture() != seen[0]
    zoomed = reader.picture()
    reader.page.mouse.down()
    reader.page.mouse.move(300, 300, steps=3)
    reader.page.mouse.up()
    assert reader.picture() != zoomed
    assert reader.at() == 0, "who drags does not choose"


def test_a_click_on_a_lane_goes_to_the_instruction_there(opened, records):
    reader, events = opened(), records[0].timeline.events
    longest = max((e for e in events if e.stream == "C"), key=lambda e: e.end_us - e.start_us)
    width = reader.page.evaluate("document.getElementById('plot').clientWidth")
    middle = (longest.start_us + longest.end_us) / 2 / records[0].timeline.makespan_us
    reader.page.click("#plot", position={"x": 84 + middle * (width - 84), "y": 10})
    assert reader.text("#line-title").split()[0] == str(longest.index)


def test_search_shows_the_life_of_a_variable(opened, records):
    reader, listed = opened(), records[0].listed
    name = next(line.name for line in listed.lines if line.stream == "D")
    blank = reader.picture()
    reader.page.fill("#search", name.upper())
    reader.page.press("#search", "Enter")
    places = {k for k, line in enumerate(listed.lines) if line.name == name}
    places |= {
        k for k, line in enumerate(listed.lines)
        if line.stream == "C" and name in {*listed.uses[line.name][0], *listed.uses[line.name][1]}
    }  # fmt: skip
    shown = reader.text("#life-said")
    assert shown.startswith(f"{name}: on the device ")
    assert {
        int(text.split()[0]) for text in reader.page.locator("#life button").all_inner_texts()
    } == places
    assert reader.at() == min(places)
    reader.page.fill("#number", "0")
    assert reader.picture() != blank, "its life is drawn"
    reader.page.click("#forget")
    assert reader.text("#life-said").startswith("Choose a name")
    reader.page.fill("#search", "no such thing")
    assert reader.text("#found-said") == "nothing has this name"


def test_predicted_stands_beside_measured(opened, records):
    reader, record = opened(), records[0]
    assert "predicted" in reader.text(".panel-late")
    place, (start_us, end_us) = next(iter(record.listed.predicted.items()))
    reader.page.fill("#number", str(place))
    reader.page.press("#number", "Enter")
    assert oc.units.format_us(end_us - start_us) in reader.text("#line")
    reader.page.click(".panel-late button >> nth=0")
    assert reader.text("#line-title") == reader.page.inner_text(".panel-late button >> nth=0")


def test_two_runs_part_at_the_first_instruction_that_differs(opened, records):
    reader = opened(against=True)
    ours, theirs = ([line.text for line in record.listed.lines] for record in records)
    first = next(k for k, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b)
    said = reader.text(".panel-runs")
    assert f"Instruction {first} is {ours[first]} in A and {theirs[first]} in B" in said
    reader.page.click("text=First difference")
    assert reader.at() == first
    shared = next(k for k in range(first + 5, len(ours)) if ours[k].startswith("run "))
    reader.page.fill("#number", str(shared))
    reader.page.press("#number", "Enter")
    reader.text("#line")
    mine, other = (
        plain(reader.page.inner_text(f"{x} [aria-current]")) for x in ("#list", "#list-b")
    )
    assert mine == f"{shared} {ours[shared]}"
    assert other == f"{theirs.index(ours[shared])} {ours[shared]}"
    lonely = {
        plain(x).split(" ", 1)[1] for x in reader.page.locator("#list .lonely").all_inner_texts()
    }
    assert all(ours.count(text) > theirs.count(text) for text in lonely)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("against", [False, True])
def test_axe_finds_nothing_of_a_or_aa(opened, scheme, against):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    reader = opened(against, color_scheme=scheme)
    reader.page.click("#on")
    reader.page.fill("#search", "conv")
    reader.text("#found")
    options = {"runOnly": {"type": "tag", "values": WCAG}}
    response = axe.Axe().run(reader.page, options=options).response
    assert response["passes"]
    found = [(v["id"], [node["html"] for node in v["nodes"]]) for v in response["violations"]]
    assert found == []


def test_the_keyboard_reaches_everything_and_the_focus_is_seen(opened):
    reader, names = opened(against=True), []
    for _ in range(60):
        reader.page.keyboard.press("Tab")
        names.append(reader.page.evaluate("document.activeElement.id"))
        shown = reader.page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        assert shown != "none" or names[-1] == ""
    wanted = ["back", "on", "scrub", "number", "closer", "wider", "whole", "search", "plot"]
    assert [name for name in names if name in wanted][: len(wanted)] == wanted
    current = reader.page.locator("#list [aria-current] button")
    current.focus()
    reader.page.keyboard.press("ArrowDown")
    reader.text("#said")
    assert reader.page.evaluate("document.activeElement.closest('[aria-current]') !== null")
    assert reader.at() == 1


def test_dark_is_dark_and_follows_the_reader(opened):
    reader = opened(color_scheme="dark")
    ground = "getComputedStyle(document.body).backgroundColor"
    dark, drawn = reader.page.evaluate(ground), reader.picture()
    reader.page.emulate_media(color_scheme="light")
    assert reader.page.evaluate(ground) != dark
    assert reader.picture() != drawn


def test_nothing_moves_by_itself_for_those_who_ask_for_less_motion(opened):
    reader = opened(reduced_motion="reduce")
    reader.page.click("#closer")
    first = reader.picture()
    reader.page.wait_for_timeout(200)
    assert reader.picture() == first
    assert reader.page.evaluate("document.getAnimations().length") == 0


@pytest.mark.parametrize("against", [False, True])
def test_a_phone_shows_the_page_without_scrolling_sideways(opened, against):
    reader = opened(against, viewport={"width": 390, "height": 800})
    reader.page.fill("#search", "conv")
    reader.page.press("#search", "Enter")
    reader.text("#life")
    assert reader.page.evaluate("document.documentElement.scrollWidth") <= 390


def test_without_scripts_and_in_print_the_still_picture_stays(browser, opened):
    phone = {"viewport": {"width": 390, "height": 800}}
    reader = opened(java_script_enabled=False, **phone)
    assert reader.page.evaluate("document.documentElement.scrollWidth") <= 390
    assert reader.page.is_visible(".still svg")
    assert not reader.page.is_visible(".app")
    assert "What holds" in reader.page.inner_text(".still")
    live = opened()
    assert live.page.is_visible(".app")
    assert not live.page.is_visible(".still")
    live.page.emulate_media(media="print")
    assert live.page.is_visible(".still svg")
    assert not live.page.is_visible(".app")


def test_a_name_that_is_a_script_runs_nothing(browser, records, tmp_path):
    evil = (
        "</script><script>document.title='taken'</script><img src=x onerror=document.title='taken'>"
    )
    listed = records[0].listed
    lines = tuple(
        replace(line, name=evil, text=f"run {json.dumps(evil)}") if line.stream == "C" else line
        for line in listed.lines
    )
    held = tuple(replace(one, name=evil) for one in records[0].holdings)
    record = replace(records[0], title=evil, listed=replace(listed, lines=lines), holdings=held)
    path = tmp_path / "evil.html"
    path.write_text(step_page(record, record), encoding="utf-8")
    reader = Reader(browser, path)
    reader.page.fill("#search", "script")
    reader.page.press("#search", "Enter")
    reader.page.click("#on")
    assert evil in reader.text("#holders")
    assert reader.page.title() == f"{evil}, against {evil}"
    assert reader.page.locator("img").count() == 0
    assert reader.said == []
    reader.context.close()


def test_fifty_thousand_instructions_are_shown_and_stepped_through_quickly(browser, tmp_path):
    path = tmp_path / "long.html"
    path.write_text(step_page(long_record(7143, tmp_path)), encoding="utf-8")
    assert path.stat().st_size <= 8_000_000
    paints, steps = [], []
    for _ in range(3):
        reader = Reader(browser, path)
        reader.text("#line")
        paint = "performance.getEntriesByName('first-contentful-paint')[0].startTime"
        paints.append(reader.page.evaluate(paint))
        for place in range(1000, 49_000, 4000):
            act = (f"() => {{ const s = document.getElementById('scrub'); s.value = {place};"
                   " s.dispatchEvent(new Event('input')); }")  # fmt: skip
            steps.append(reader.page.evaluate(f"({TIMED})({act})"))
            assert reader.at() == place
        assert reader.said == []
        reader.context.close()
    # Whatever else runs on this machine may take the processor away, so not every one counts.
    assert min(paints) <= FIRST_PAINT_MS, paints
    assert median(steps) <= STEP_MS, steps
