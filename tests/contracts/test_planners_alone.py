"""A published planner is its method and no other planner's: its file imports none of them.

Where a paper composes methods, or a file lends a function to another, that stands in `IMPORTS`,
with the place that says so. `auto`, `combined` and `portfolio` run planners, `registry` names them,
and `by_search` is the search of `combined`; all five are ours. Where a planner is not as published
its first lines say so, and docs/planners.md puts all of these side by side. Read next:
`test_floor_plan.py`, for what rooms import.
"""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

import pytest

from ooctrain.execution.planners import get_planner, planners

ROOT = Path(__file__).resolve().parents[2]
PLANNERS = ROOT / "ooctrain" / "sched" / "planners"
ROOM = "ooctrain.sched.planners"
#: Those that run, name or begin with other planners, and are nothing else.
OURS = ("__init__", "auto", "by_search", "combined", "portfolio", "registry")
#: {file: ({module: names that it imports}, where the method is composed so, or what is lent)}
IMPORTS = {
    "bn_recompute": (
        {"belady": ["Belady"], "hmms": ["Hmms"], "lms": ["LmsAuto"], "window": ["WindowCyclic"]},
        "paper 004, section 6.3: the step is edited, and a planner that swaps plans it",
    ),
    "pofo": (
        {"dynprog": ["DynProg", "SlotChain", "in_slots"], "rotor": ["CostTable", "Rotor"]},
        "Beaumont et al. 2021: rotor differentiates a run between checkpoints; paper 002 for the "
        "states, which are dynprog's slots. Their own plans take part",
    ),
    "prefix": ({"belady": ["offload"]}, "ours: Belady's rule offloads what is not dropped"),
    "tflms_hybrid": (
        {"lms": ["tuned_list"]},
        "paper 001, section 3.2, figure 2: recomputation first, then TFLMS tunes itself",
    ),
    "window": (
        {"keep_all": ["KeepAll"]},
        "ours: of window-cyclic, where what persists may stay and everything fits",
    ),
}


def planners_imported(text: str) -> dict[str, list[str]]:
    """{module of the planners' room: names} that a file imports, wherever in it."""
    found: dict[str, list[str]] = {}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.startswith(ROOM):
                    found[alias.name.removeprefix(ROOM).lstrip(".")] = ["*"]
        elif isinstance(node, ast.ImportFrom):
            module = f"{ROOM}.{node.module or ''}" if node.level == 1 else node.module or ""
            names = [alias.name for alias in node.names]
            if module.rstrip(".") == ROOM:
                found |= {name: ["*"] for name in names}
            elif module.startswith(f"{ROOM}."):
                found.setdefault(module.removeprefix(f"{ROOM}."), []).extend(names)
    return found


@pytest.mark.parametrize("name", sorted(path.stem for path in PLANNERS.glob("*.py")))
def test_a_published_planner_imports_no_other_one(name):
    found = planners_imported((PLANNERS / f"{name}.py").read_text(encoding="utf-8"))
    if name not in OURS:
        assert found == IMPORTS.get(name, ({}, ""))[0]


def test_the_table_names_only_files_that_import_others():
    assert all((PLANNERS / f"{name}.py").is_file() for name in (*IMPORTS, *OURS))
    assert all(imports and why for imports, why in IMPORTS.values())


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("from ooctrain.sched.planners.dtr import Dtr", {"dtr": ["Dtr"]}),
        ("def plan():\n    from ooctrain.sched.planners.dtr import Dtr as D", {"dtr": ["Dtr"]}),
        ("import ooctrain.sched.planners.dtr", {"dtr": ["*"]}),
        ("from ooctrain.sched.planners import dtr", {"dtr": ["*"]}),
        ("from .dtr import Dtr", {"dtr": ["Dtr"]}),
        ("from . import dtr", {"dtr": ["*"]}),
        ("from ooctrain.sched.planning.planner import ask", {}),
    ],
)
def test_every_way_to_import_one_is_seen(line, found):
    assert planners_imported(line) == found


# What the names are


def named_on_the_page() -> tuple[list[str], list[str]]:
    """Names of planners in docs/planners.md: published ones, and ours."""
    text = (ROOT / "docs/planners.md").read_text(encoding="utf-8")
    _, _, after = text.partition("\n## Published names\n")
    table, _, rest = after.partition("\nThe others are ours:")
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    ours, _, _ = rest.partition("\n\n")
    return re.findall("`([^`]+)`", "".join(rows)), re.findall("`([^`]+)`", ours)


def test_every_name_is_said_to_be_published_or_ours():
    published, ours = named_on_the_page()
    assert sorted(published + ours) == sorted(planners())


@pytest.mark.parametrize("name", named_on_the_page()[0])
def test_the_first_lines_of_a_published_planner_name_its_source_and_where_it_departs(name):
    head = sys.modules[type(get_planner(name)).__module__].__doc__
    assert head is not None
    assert "Source" in head
    assert re.search("[Dd]epart|as published", head)
