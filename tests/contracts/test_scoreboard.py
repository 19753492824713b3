"""docs/scoreboard.md is what its command prints, and no strategy of it beats the bound.

A part of the page is generated again and compared, line by line, since all of it takes minutes. The
times on the page are compared with each other.
"""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

from ooctrain.execution.planners import get_planner, planners
from ooctrain.experiments.compare import compare

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/scoreboard.md"


@pytest.fixture(scope="module")
def board() -> ModuleType:
    """The module that generates the page."""
    spec = importlib.util.spec_from_file_location("scoreboard", ROOT / "docs/pages/scoreboard.py")
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def lines_of(planner: str, text: str) -> list[str]:
    return [line for line in text.splitlines() if f"| `{planner}` |" in line]


def test_the_page_has_every_strategy_on_every_network(board: ModuleType) -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert text.startswith(board.INTRO)
    for names in board.STRATEGIES.values():
        for planner in names:
            assert get_planner(planner)
            assert len(lines_of(planner, text)) == len(board.NETWORKS)
    named = {name.partition(":")[0] for names in board.STRATEGIES.values() for name in names}
    assert named | {*board.LEFT_OUT} == set(planners())
    assert not named & {*board.LEFT_OUT}
    assert all(f"`{name}` {why}" in board.INTRO for name, why in board.LEFT_OUT.items())
    ratios = [float(cell) for cell in re.findall(r"\| (\d+\.\d{3}) ", text)]
    assert min(ratios) >= 1


@pytest.mark.slow
def test_the_page_is_what_its_command_prints(board: ModuleType) -> None:
    some, network = ("greedy", "belady", "dtr", "checkmate-lp"), board.NETWORKS[-1]
    rows = compare(board.cases([network], some))
    printed = board.table(rows, network)
    shown = PAGE.read_text(encoding="utf-8").split(printed.splitlines()[0])[1]
    for line in printed.splitlines()[2:]:
        assert line in shown, line
    assert not lines_of("combined", printed)
