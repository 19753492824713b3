"""A step as page, trace, snapshot and text: each shows what the record holds, and can be read."""

from __future__ import annotations

import json
import pickle
import pickletools
import random
from html.parser import HTMLParser
from itertools import pairwise
from xml.etree import ElementTree

import pytest
from support.quick import quick

from ooctrain.cli import main
from ooctrain.errors import ConfigError
from ooctrain.report.page import step_page
from ooctrain.report.perfetto import perfetto_trace
from ooctrain.report.record import Record, drawing, read_record
from ooctrain.report.snapshot import snapshot, snapshot_pickle
from ooctrain.report.step import step_svg
from ooctrain.report.waits import peak_of
from ooctrain.sched.planners.registry import get_planner
from ooctrain.sched.planning.question import Question
from ooctrain.sched.simulate import simulate
from ooctrain.testing.check_planner import random_case
from ooctrain.units import format_bytes

SMALL = ["lenet", "--batch", "8", "--threads", "1", "--machine", "v100-pcie"]
#: What memory_viz's reader of pickles knows besides the opcodes of plain values.
UNREADABLE = {"GLOBAL", "STACK_GLOBAL", "REDUCE", "BUILD", "NEWOBJ", "BYTEARRAY8", "NEXT_BUFFER"}
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def record_path(tmp_path):
    path = tmp_path / "record.json"
    arguments = ["simulate", *SMALL, "--budget", "30%", "--planner", "belady", "--json", str(path)]
    assert main(arguments) == 0
    return path


@pytest.fixture
def record(record_path):
    return read_record(str(record_path))


def test_a_record_read_back_is_the_one_that_was_written(tmp_path):
    case = random_case(random.Random(1))
    plan = get_planner("naive").plan(Question(case.trace, 10**6, case.machine))
    timeline = simulate(plan.schedule, plan.trace, case.machine)
    path = tmp_path / "x.json"
    path.write_text(json.dumps({"model": "m", "budget_bytes": 7, **drawing(plan, timeline)}))
    again = read_record(str(path))
    assert again.timeline == timeline
    assert again.budget_bytes == 7
    assert sum(one.size_bytes for one in again.holdings) > 0


@pytest.mark.parametrize("command", quick(["plan", "simulate", "train"], 2))
def test_what_each_command_writes_can_be_drawn(command, tmp_path, capsys):
    path, *files = (tmp_path / f"x.{kind}" for kind in ("json", "html", "trace", "pickle", "svg"))
    arguments = [command, "lenet", "--batch", "8", "--threads", "1", "--budget", "40%"]
    arguments += ["--steps", "2"] if command == "train" else []
    assert main([*arguments, "--json", str(path)]) == 0
    capsys.readouterr()
    options = zip(("--html", "--perfetto", "--snapshot", "--svg"), files, strict=True)
    assert main(["report", str(path), *(str(word) for pair in options for word in pair)]) == 0
    shown = capsys.readouterr().out
    numbers = json.loads(path.read_text())
    assert numbers["planned_by"] != "auto"
    assert f"lenet, batch 8, planner {numbers['planned_by']} on {numbers['machine']}" in shown
    assert f"of {format_bytes(numbers['budget_bytes'])}, at " in shown
    record = read_record(str(path))
    assert record.holdings
    assert "".join(shown.split()).endswith("".join(f"wrote{f}" for f in files))
    page, trace, pickled, picture = files
    assert page.read_text() == step_page(record)
    assert json.loads(trace.read_text()) == perfetto_trace(record)
    assert pickled.read_bytes() == snapshot_pickle(record)
    assert picture.read_text() == step_svg(record)


def test_the_picture_has_axes_with_units_a_budget_line_a_legend_and_names_the_peak(record):
    svg = ElementTree.fromstring(step_svg(record))
    texts = [text.text or "" for text in svg.iter(f"{SVG}text")]
    peak = peak_of(record.timeline)
    assert f"budget {format_bytes(record.budget_bytes)}" in texts
    assert f"most at one moment: {format_bytes(peak.size_bytes)}, {peak.call}" in texts
    assert {"compute", "swap out", "swap in", "forward", "backward", "activations"} <= set(texts)
    assert any(text.endswith((" us", " ms")) for text in texts)
    assert any(text.endswith(("KiB", "MiB")) for text in texts)
    for text in svg.iter(f"{SVG}text"):
        assert 0 <= float(text.get("x")) <= 960
        assert 0 <= float(text.get("y")) <= float(svg.get("height"))


class Page(HTMLParser):
    """Whether all that is opened is closed, and what is asked of elsewhere."""

    VOID = ("meta", "input")

    def __init__(self, text):
        super().__init__()
        self.open, self.foreign, self.cells = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        if tag not in self.VOID:
            self.open.append(tag)
        self.foreign += [(tag, key) for key, _ in attrs if key in ("src", "href")]
        self.foreign += [tag] * (tag in ("link", "iframe", "img"))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.cells.append(data)


def test_the_page_is_whole_in_itself_and_names_holders_and_waits(record):
    text = step_page(record)
    page = Page(text)
    assert page.open == page.foreign == []
    assert "url(" not in text
    assert "import(" not in text
    holder = max(record.holdings, key=lambda one: one.size_bytes)
    assert holder.name in page.cells
    assert any(cell.startswith("What holds") for cell in page.cells)


def test_a_name_that_looks_like_html_stays_a_name(record):
    nasty = Record("<b>&", record.timeline, record.budget_bytes)
    assert "&lt;b&gt;&amp;" in step_page(nasty)
    assert "<b>" not in step_page(nasty)


def test_slices_of_a_thread_never_cross_and_the_counters_end_with_the_step(record):
    trace = json.loads(json.dumps(perfetto_trace(record)))
    entries = [entry for entry in trace["traceEvents"] if "ts" in entry]
    assert [entry["ts"] for entry in entries] == sorted(entry["ts"] for entry in entries)
    slices = [entry for entry in entries if entry["ph"] == "X"]
    assert len(slices) == len(record.timeline.events)
    for thread in {entry["tid"] for entry in slices}:
        own = [entry for entry in slices if entry["tid"] == thread]
        for before, after in pairwise(own):
            assert before["ts"] + before["dur"] <= after["ts"] + 1e-6
    memory = [entry for entry in entries if entry["ph"] == "C" and "device" in entry["name"]]
    assert len({tuple(entry["args"]) for entry in memory}) == 1, "the same keys in every sample"
    assert memory[-1]["ts"] == record.timeline.makespan_us
    assert sum(memory[-1]["args"].values()) > 0
    held = max(sum(entry["args"].values()) for entry in memory)
    assert held == peak_of(record.timeline).size_bytes


def test_an_arrow_lies_within_the_two_slices_that_it_joins(record):
    entries = perfetto_trace(record)["traceEvents"]
    slices = [entry for entry in entries if entry["ph"] == "X"]
    ends = [entry for entry in entries if entry["ph"] in "sf"]
    assert ends
    for end in ends:
        assert any(
            one["tid"] == end["tid"] and one["ts"] <= end["ts"] <= one["ts"] + one["dur"]
            for one in slices
        )
    starts = {end["id"]: end["ts"] for end in ends if end["ph"] == "s"}
    assert all(starts[end["id"]] <= end["ts"] for end in ends if end["ph"] == "f")


def test_a_snapshot_is_a_pickle_of_plain_values(record):
    opcodes = {op.name for op, _, _ in pickletools.genops(snapshot_pickle(record))}
    assert not opcodes & UNREADABLE
    assert pickle.loads(snapshot_pickle(record)) == snapshot(record)


def test_blocks_of_a_snapshot_never_overlap_and_what_is_kept_tiles_the_segment(record):
    shot = snapshot(record)
    live = {}
    for entry in shot["device_traces"][0]:
        if entry["action"] == "alloc":
            lo, hi = entry["addr"], entry["addr"] + entry["size"]
            assert all(hi <= other or end <= lo for other, end in live.items())
            live[lo] = hi
        elif entry["action"] == "free_completed":
            assert live.pop(entry["addr"]) == entry["addr"] + entry["size"]
    (segment,) = shot["segments"]
    at = segment["address"]
    for block in segment["blocks"]:
        assert block["address"] == at
        at += block["size"]
    assert at == segment["address"] + segment["total_size"]
    kept = {b["address"] for b in segment["blocks"] if b["state"] == "active_allocated"}
    assert kept == set(live)


@pytest.mark.peers
def test_pytorch_s_own_reader_takes_the_snapshot(record):
    viz = pytest.importorskip("torch.cuda._memory_viz")
    shot = snapshot(record)
    assert viz.segsum(shot).startswith("Summary of segments")
    assert f"{len(shot['device_traces'][0])} entries" in viz.trace(shot)


WRONG = {
    "nothing there": (None, "is not a record"),
    "not JSON": ("{]", "is not a record"),
    "another object": ("[1]", "has no time line"),
    "a plan file": ('{"schedule": {}}', "is a plan file"),
    "a failed command": ('{"timeline": null, "error": "[OOC-120] no"}', "no step: [OOC-120] no"),
    "a broken time line": ('{"timeline": {"makespan_us": 1}}', "is not a record"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_what_is_no_record_is_one_clear_block(kind, tmp_path, capsys):
    content, told = WRONG[kind]
    path = tmp_path / "x.json"
    if content is not None:
        path.write_text(content)
    assert main(["report", str(path)]) == 2
    shown = capsys.readouterr().err
    assert "[OOC-118]" in shown
    assert told in shown
    assert "likely fix" in shown
    assert "Traceback" not in shown


def spoil(numbers, kind):
    event = numbers["timeline"]["events"][0]
    if kind == "ends before it starts":
        event["end_us"] = event["start_us"] - 1
    elif kind == "unknown stream":
        event["stream"] = "X"
    elif kind == "not a number":
        numbers["timeline"]["makespan_us"] = float("nan")
    elif kind == "less than nothing":
        numbers["timeline"]["peak_bytes"] = -1
    else:
        numbers["holdings"][0][1] = "nobody's"
    return numbers


@pytest.mark.parametrize(
    "kind",
    ["ends before it starts", "unknown stream", "not a number", "less than nothing", "group"],
)
def test_a_number_that_cannot_be_is_refused(kind, record_path):
    record_path.write_text(json.dumps(spoil(json.loads(record_path.read_text()), kind)))
    with pytest.raises(ConfigError, match="is not a record"):
        read_record(str(record_path))


def test_a_record_of_before_has_a_picture_and_no_snapshot(record, record_path):
    numbers = json.loads(record_path.read_text())
    del numbers["holdings"], numbers["phases"]
    record_path.write_text(json.dumps(numbers))
    old = read_record(str(record_path))
    assert "most at one moment" in step_svg(old)
    assert perfetto_trace(old)["traceEvents"]
    with pytest.raises(ConfigError, match="by which variables"):
        snapshot(old)
