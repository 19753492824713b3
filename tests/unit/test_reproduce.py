"""Tables of the papers: figures are printed as the papers have them, cells are what they claim."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from ooctrain.cli import main
from ooctrain.experiments import table1
from ooctrain.experiments.table1 import BASELINE, METHODS, OURS, batch_cells, method_named
from ooctrain.units import GIB, MIB

ROOT = Path(__file__).parents[2]
MODEL, PHYSICAL = "resnet18", 1 * GIB


def documented(command: str) -> set[str]:
    """The keys that docs/json.md names for a command."""
    text = (ROOT / "docs" / "json.md").read_text(encoding="utf-8")
    section = text.split(f"## `ooctrain reproduce {command} --json`")[1].split("\n## ")[0]
    return set(re.findall(r"`(\w+)`", section))


@pytest.fixture(scope="module")
def cells():
    """A batch that fits in-core, and one that is several times too large."""
    return [cell for batch in (16, 56) for cell in batch_cells((MODEL, batch, PHYSICAL))]


def test_the_printed_shares_are_those_of_the_papers_text():
    kept = {(m.name, b): table1.printed_kept(m, b) for m in METHODS for b in m.printed}
    assert round(kept["schedule + VA", 1440], 2) == 0.55
    assert round(kept["schedule", 928], 2) == 0.69
    assert round(kept["LMS", 928], 2) == 0.53
    assert kept[BASELINE, 190] == 1
    assert max(method_named("LMS").printed) == 928
    assert method_named(OURS).printed == {}


def test_every_cell_keeps_its_promise(cells):
    assert [cell.method for cell in cells] == [method.name for method in METHODS] * 2
    for cell in cells:
        if cell.images_per_s is None:
            continue
        assert cell.reserved_bytes <= PHYSICAL
        assert cell.budget_bytes <= PHYSICAL
        assert 0 < cell.images_per_s <= cell.compute_images_per_s


def test_swapping_trains_what_does_not_fit_and_loses_speed(cells):
    speed = {(cell.method, cell.batch): cell.images_per_s for cell in cells}
    assert speed[BASELINE, 56] is None
    assert table1.largest_batch(cells, BASELINE) == 16
    for method in ("schedule", "schedule + VA", OURS):
        assert table1.largest_batch(cells, method) == 56
    assert speed[OURS, 16] == pytest.approx(speed[BASELINE, 16])
    assert speed[OURS, 56] >= speed["schedule", 56]
    in_core = table1.in_core_images_per_s(cells)
    assert in_core == speed[BASELINE, 16]
    assert table1.speed_kept(replace(cells[0], images_per_s=in_core / 2), in_core) == 0.5


def test_what_does_not_fit_has_no_speed():
    for cell in batch_cells((MODEL, 56, 64 * MIB)):
        assert cell.images_per_s is None
        assert cell.budget_bytes is None
    assert table1.in_core_images_per_s(batch_cells((MODEL, 56, 64 * MIB))) is None


def test_table1_prints_draws_and_writes(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(table1, "MODEL", MODEL)
    monkeypatch.setattr(table1, "QUICK_BATCHES", (16, 64))
    figure, numbers = tmp_path / "x.svg", tmp_path / "x.json"
    arguments = ["--quick", "--physical", "1GiB", "--figure", str(figure), "--json", str(numbers)]
    assert main(["reproduce", "table1", *arguments]) == 0
    shown = capsys.readouterr().out
    for words in ("Images per second", "in-core speed", "agrees", "does not, and why", "schedule"):
        assert words in shown
    assert ElementTree.fromstring(figure.read_text()).tag.endswith("svg")
    found = json.loads(numbers.read_text())
    assert set(found) | set(found["cells"][0]) <= documented("table1")
    assert len(found["cells"]) == 2 * len(METHODS)
