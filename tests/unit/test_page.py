"""The page of a step without a browser: its numbers are the record's, its names do no harm, and it
stays small.
"""

from __future__ import annotations

import json
import random
import re
from dataclasses import replace
from itertools import accumulate

import pytest
from support.long_step import long_plan, long_record

import ooctrain as oc
from ooctrain.errors import ConfigError
from ooctrain.report.holdings import GROUPS
from ooctrain.report.listing import WHYS, list_from_json, list_to_json
from ooctrain.report.page import data_text, listed_of, resource, step_page
from ooctrain.report.record import Record, drawing, read_record
from ooctrain.report.shapes import MOST_POINTS, thinned
from ooctrain.report.svg import MOST_BOXES, lane_boxes
from ooctrain.sched.planners.registry import get_planner
from ooctrain.sched.planning.question import Question
from ooctrain.sched.simulate import simulate
from ooctrain.sched.timeline import Timeline, TimelineEvent
from ooctrain.testing.check_planner import random_case

NASTY = ["</script><script>alert(1)</script>", "<!--", '"quoted" & <b>', "a b;c", "ünï☃", ""]


def record_of(plan, machine, path, predicted=None):
    timeline = simulate(plan.schedule, plan.trace, machine)
    numbers = {"model": "m", "budget_bytes": 9, **drawing(plan, timeline, predicted)}
    path.write_text(json.dumps(numbers))
    return read_record(str(path))


def small_record(seed, path):
    case = random_case(random.Random(seed))
    plan = get_planner("naive").plan(Question(case.trace, 10**6, case.machine))
    return record_of(plan, case.machine, path, simulate(plan.schedule, plan.trace, case.machine))


def texts_of(run):
    """The lines as the script puts them together."""
    for place, (verb, name, rest) in enumerate(
        zip(run["verb"], run["name"], run["rest"], strict=True)
    ):
        word = run["names"][name]
        plain = run["verbs"][verb] + (f" {word}" if word else "") + run["rests"][rest]
        yield run["odd"].get(str(place), plain)


@pytest.mark.parametrize("seed", range(6))
def test_the_columns_give_back_the_record(seed, tmp_path):
    record = small_record(seed, tmp_path / "x.json")
    (run,) = json.loads(data_text(record))["runs"]
    lines = record.listed.lines
    assert list(texts_of(run)) == [line.text for line in lines]
    assert list(accumulate(run["ledger"])) == [line.ledger_bytes for line in lines]
    start = list(accumulate(run["start"]))
    for event in record.timeline.events:
        assert start[event.index] == round(event.start_us * 1000)
        assert start[event.index] + run["length"][event.index] == round(event.end_us * 1000)
        assert run["predicted"]["start"][event.index] == start[event.index]
        assert run["predicted"]["end"][event.index] == round(event.end_us * 1000)
    for place, line in enumerate(lines):
        flat = run["needs"][place]
        triples = zip(flat[::3], flat[1::3], flat[2::3], strict=True)
        found = [
            (place - far, WHYS[why], place - giver if giver else -1) for far, why, giver in triples
        ]
        assert found == [(wait.index, wait.why, wait.giver) for wait in line.waits]
    hold = run["hold"]
    found = zip(
        hold["name"], hold["group"], hold["size"], accumulate(hold["from"]), hold["length"],
        strict=True,
    )  # fmt: skip
    assert [
        (run["names"][name], GROUPS_IN_ORDER[int(group)], size, first, first + length)
        for name, group, size, first, length in found
    ] == [
        (h.name, h.group, h.size_bytes, round(h.from_us * 1000), round(h.until_us * 1000))
        for h in record.holdings
    ]


GROUPS_IN_ORDER = list(GROUPS)


def nasty_record(tmp_path):
    """A step whose calls and variables have names that mean something to HTML."""
    record = small_record(1, tmp_path / "x.json")
    names = sorted({line.name for line in record.listed.lines})
    new = {name: NASTY[k % len(NASTY)] + name for k, name in enumerate(names)}

    def renamed(line):
        name = new[line.name]
        return replace(line, name=name, text=f"{line.text.partition(' ')[0]} {json.dumps(name)}")

    listed = replace(record.listed, lines=tuple(map(renamed, record.listed.lines)))
    events = tuple(replace(event, name=new[event.name]) for event in record.timeline.events)
    held = tuple(replace(one, name=new.get(one.name, one.name)) for one in record.holdings)
    timeline = replace(record.timeline, events=events)
    return Record(NASTY[0], timeline, record.budget_bytes, record.phases, held, listed)


def test_a_name_that_looks_like_html_does_no_harm(tmp_path):
    record = nasty_record(tmp_path)
    page = step_page(record, record)
    assert page.count("</script>") == page.count("<script") == 3
    assert "<!--" not in page
    assert "<b>" not in page
    (data,) = re.findall(r'id="step-data">(.*?)</script>', page, re.S)
    assert list(texts_of(json.loads(data)["runs"][0])) == [x.text for x in record.listed.lines]


def test_the_script_is_short_and_puts_no_text_in_as_html():
    script = resource("page.js")
    assert len(script.splitlines()) <= 600
    assert max(map(len, script.splitlines())) <= 120
    for word in ("innerHTML", "outerHTML", "insertAdjacent", "eval(", "Function(", "document.write",
                 "fetch(", "import ", "http", "</script"):  # fmt: skip
        assert word not in script


def test_a_step_that_nothing_ran_in_has_the_still_page_alone(tmp_path):
    record = small_record(1, tmp_path / "x.json")
    empty = Record("nothing", replace(record.timeline, events=(), ledger=()), 7)
    assert "<script" not in step_page(empty)
    assert "<script" in step_page(record)


def test_an_old_record_shows_what_ran(tmp_path):
    record = replace(small_record(2, tmp_path / "x.json"), listed=None)
    lines, ran = listed_of(record).lines, sorted(record.timeline.events, key=lambda e: e.index)
    assert [line.name for line in lines] == [event.name for event in ran]
    for line, event in zip(lines, ran, strict=True):
        held = [size for time_us, size in record.timeline.ledger if time_us <= event.start_us]
        assert (line.ledger_bytes, line.stream) == (held[-1] if held else 0, event.stream)
    (run,) = json.loads(data_text(record))["runs"]
    assert not run["complete"]
    assert list(texts_of(run)) == [line.text for line in lines]


def test_a_thinned_line_keeps_its_ends_and_its_extremes():
    rng = random.Random(3)
    points = [(k / 10, rng.random()) for k in range(MOST_POINTS + 1000)]
    thin = thinned(points)
    assert len(thin) <= 4 * (points[-1][0] + 1)
    assert (thin[0], thin[-1]) == (points[0], points[-1])
    for pick in (min, max):
        assert pick(thin, key=lambda p: p[1]) == pick(points, key=lambda p: p[1])
    assert sorted(thin) == list(thin)
    assert thinned(points[:100]) == points[:100]


@pytest.mark.parametrize("count", [300, MOST_BOXES + 1000])
def test_a_lane_of_very_many_boxes_leaves_out_what_nobody_sees(count):
    events = tuple(TimelineEvent("C", f"e{k}", float(k), k + 0.9, k) for k in range(count))
    timeline = Timeline(float(count), 0, 0, 0, 0, 0.0, 0.0, 0.0, events)
    boxes, _ = lane_boxes(timeline, timeline.makespan_us, {}, 0)
    drawn = sum("<title>" in box for box in boxes)
    assert drawn == count if count <= MOST_BOXES else 800 < drawn < 2 * 860


@pytest.mark.slow
def test_the_long_step_is_a_legal_list_and_its_page_at_most_8_mb(tmp_path):
    plan = long_plan(40)
    oc.verify(plan.schedule, plan.trace, None)
    record = long_record(7143, tmp_path)
    assert len(record.listed.lines) >= 49_990
    assert len(step_page(record)) <= 8_000_000


def test_a_list_of_another_step_is_refused(tmp_path):
    path = tmp_path / "x.json"
    small_record(1, path)
    data = json.loads(path.read_text())
    data["list"]["lines"] = data["list"]["lines"][:1]
    data["list"]["predicted"] = []
    path.write_text(json.dumps(data))
    with pytest.raises(ConfigError, match="is not a record"):
        read_record(str(path))


def test_the_list_in_a_file_is_plain_data():
    plan = long_plan(3)
    data = list_to_json(plan, None)
    assert json.loads(json.dumps(data)) == data
    assert list_from_json(data).predicted == {}
