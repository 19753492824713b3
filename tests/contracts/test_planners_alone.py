"""A published planner is its method and no other planner's: its file imports none of them.

Where a paper composes methods, or a file lends a function to another, that stands in `IMPORTS`,
with the place that says so. `auto`, `combined` and `portfolio` run planners, `registry` names them,
and `by_search` is the search of `combined`; all five are ours. Read next: `test_floor_plan.py`,
for what rooms import.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PLANNERS = Path(__file__).resolve().parents[2] / "ooctrain" / "sched" / "planners"
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
