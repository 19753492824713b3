"""`docs/one_page.md` and the pictures that `docs/draw.py` writes are what the library computes, and
the page is one page.

The page is compared as a whole with the one made anew; then its numbers are found a second way.
"""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
from functools import cache
from itertools import combinations
from pathlib import Path
from types import ModuleType

import pytest
from markdown_it import MarkdownIt

import ooctrain as oc
from ooctrain.report.one_step import ValueStay, stays
from ooctrain.sched.schedule import Schedule

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = DOCS / "one_page.md"
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")


@cache
def draw() -> ModuleType:
    """`docs/draw.py`, which is a script."""
    found = importlib.util.spec_from_file_location("draw", DOCS / "draw.py")
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def blocks() -> list[str]:
    """The page's code blocks: the trace, the list, the ledger."""
    return re.findall(r"```\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S)


def timeline() -> tuple[oc.Plan, oc.Timeline]:
    plan = draw().page_plan()
    return plan, oc.simulate(plan.schedule, plan.trace, oc.toy_machine())


def test_the_page_and_the_pictures_are_what_the_library_computes(capsys):
    assert draw().main(["--check"]) == 0, capsys.readouterr().out


def test_the_check_sees_one_changed_number(tmp_path, monkeypatch, capsys):
    changed = {tmp_path / "one_page.md": draw().page()}
    (tmp_path / "one_page.md").write_text(draw().page().replace("245", "246", 1))
    monkeypatch.setattr(draw(), "drawn", lambda: changed)
    monkeypatch.setattr(draw(), "DOCS", tmp_path / "docs")
    assert draw().main(["--check"]) == 1
    assert "one_page.md is not what the library computes" in capsys.readouterr().out


def test_the_list_on_the_page_is_a_legal_list_of_the_step():
    _, text, _ = blocks()
    columns = [re.findall(r"\S+ \S+", line) for line in text.splitlines()]
    words = [row[at] for at in range(len(columns[0])) for row in columns if at < len(row)]
    start = "device nothing\nhost x0\n"
    trace = oc.equal_stages(8)
    ended = "\n".join(f"{w}\nend {w.split()[1]}" if w.startswith("run") else w for w in words)
    schedule = Schedule.parse(start + ended, trace)
    oc.verify(schedule, trace, draw().BUDGET_BYTES)
    assert schedule == draw().page_plan().schedule


def test_the_numbers_in_the_text_are_those_that_one_works_out_by_hand():
    text = PAGE.read_text(encoding="utf-8")
    in_core = "in-core*) the step takes 1100 bytes and 240 us"
    assert in_core in text, "x0 to x8, y8 and y7; 8 x 30 us"
    plan, line = timeline()
    assert plan.makespan_us == 240 + 100 / 20, "the first input takes 5 us, all else is hidden"
    assert line.bytes_in == line.bytes_out + 2 * 100, "x0 comes twice and never leaves"


def held_at(found: list[ValueStay], time_us: float) -> int:
    return sum(stay.size_bytes for stay in found if stay.begin_us <= time_us < stay.end_us)


def test_the_boxes_at_each_moment_add_up_to_the_ledger():
    plan, line = timeline()
    found = stays(plan, line)
    for time_us, size_bytes in line.ledger:
        assert held_at(found, time_us) == size_bytes


def test_no_two_values_lie_at_one_address_at_one_time():
    plan, line = timeline()
    found, offsets = stays(plan, line), draw().page_offsets(plan)
    assert len(found) == len(offsets)
    placed = list(zip(found, offsets, strict=True))
    for (one, low), (two, other) in combinations(placed, 2):
        apart = one.end_us <= two.begin_us or two.end_us <= one.begin_us
        assert apart or abs(low - other) >= 100, f"{one} and {two}"
    assert max(offsets) + 100 == draw().BUDGET_BYTES


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
def test_the_page_prints_on_one_sheet_of_a4(tmp_path):
    html = MarkdownIt("commonmark").enable("table").render(PAGE.read_text(encoding="utf-8"))
    style = (DOCS / "_static" / "print.css").read_text(encoding="utf-8")
    page = tmp_path / "page.html"
    page.write_text(
        f'<base href="{DOCS.as_uri()}/"><meta charset="utf-8"><style>{style}</style>{html}',
        encoding="utf-8",
    )
    subprocess.run(
        [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--no-pdf-header-footer",
         f"--user-data-dir={tmp_path / 'user'}", f"--print-to-pdf={tmp_path / 'page.pdf'}",
         page.as_uri()],
        check=True, capture_output=True, timeout=120,
    )  # fmt: skip
    made = (tmp_path / "page.pdf").read_bytes()
    assert len(re.findall(rb"/Type\s*/Page\b", made)) == 1
