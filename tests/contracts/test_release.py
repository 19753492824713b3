"""What a release says of itself is true: dependencies, version, types, workflows."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from functools import cache
from pathlib import Path

import pytest
from support.each_file import nodes, parse

import ooctrain

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
#: {distribution: the module that it brings}, where the names differ.
MODULE_OF = {
    "pillow": "PIL", "pytest-xdist": "xdist", "numba-cuda": "numba", "myst-nb": "myst_nb",
    "mpich": "mpi4py",  # the library that mpi4py loads
    "axe-playwright-python": "axe_playwright_python",
}  # fmt: skip
#: Distributions that are programs: who calls them is the Makefile.
PROGRAMS = {"ruff": "ruff", "mypy": "mypy", "pytest-xdist": "pytest -n", "sphinx": "sphinx"}
#: Modules of our own, of tests' and tutorials' folders included, and torch, which only benchmarks
#: and tests of `.venv-peers` import; numba-cuda brings `cuda`.
OURS = {
    "ooctrain", "support", "zoo", "strangers", "benchmarks", "lesson", "adapters", "conftest",
    "contracts", "assignments", "stub", "solution", "torch", "cuda", "nvidia",
}  # fmt: skip


def names(requirements: list[str]) -> set[str]:
    return {re.split(r"[\[<>=;! ]", text)[0].lower() for text in requirements}


EXTRAS = {extra: names(needed) for extra, needed in PROJECT["optional-dependencies"].items()}
CORE = names(PROJECT["dependencies"])


def called(node: ast.Call) -> str:
    return getattr(node.func, "attr", "") or getattr(node.func, "id", "")


@cache
def imported(folder: str) -> frozenset[str]:
    found = set()
    for path in (ROOT / folder).rglob("*.py"):
        for node in nodes(parse(path), ast.Import, ast.ImportFrom, ast.Call):
            if isinstance(node, ast.Import):
                found |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level:
                found.add((node.module or "").split(".")[0])
            elif isinstance(node, ast.Call) and called(node) in ("importorskip", "extra"):
                found.add(ast.literal_eval(node.args[0]).split(".")[0])
    return frozenset(found)


def imported_anywhere() -> frozenset[str]:
    return imported("ooctrain").union(*map(imported, ("tests", "benchmarks", "docs", "tutorials")))


@pytest.mark.parametrize("name", sorted(CORE))
def test_each_core_dependency_is_imported_by_the_package(name):
    assert MODULE_OF.get(name, name) in imported("ooctrain")


@pytest.mark.parametrize(
    ("extra", "name"), [(extra, name) for extra in sorted(EXTRAS) for name in sorted(EXTRAS[extra])]
)
def test_each_extra_is_imported_or_called(extra, name):
    called = (ROOT / "Makefile").read_text(encoding="utf-8")
    settings = (ROOT / "docs" / "conf.py").read_text(encoding="utf-8")
    module = MODULE_OF.get(name, name)
    used = module in imported_anywhere() or f'"{module}"' in settings
    used = used or (name in PROGRAMS and PROGRAMS[name] in called)
    assert used, f"nobody uses {name}, of extra {extra}"


def test_each_import_is_declared():
    declared = {MODULE_OF.get(name, name) for name in CORE.union(*EXTRAS.values())}
    allowed = declared | OURS | set(sys.stdlib_module_names)
    assert imported("ooctrain") <= allowed, imported("ooctrain") - allowed


def test_the_version_stands_in_one_place():
    assert PROJECT["dynamic"] == ["version"]
    assert f"\nversion: {ooctrain.__version__}\n" in (ROOT / "CITATION.cff").read_text()
    assert re.search(rf"^## {re.escape(ooctrain.__version__)}\b", changelog(), re.MULTILINE)


def changelog() -> str:
    return (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_the_package_says_that_it_is_typed():
    assert (ROOT / "ooctrain" / "py.typed").is_file()


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_what_a_workflow_calls_is_there(path):
    text = path.read_text(encoding="utf-8")
    targets = re.findall(r"^(\w[\w-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    called = re.findall(r"\bmake ([\w-]+)", text)
    assert set(called) <= set(targets)
    tests = re.findall(r"\btests/[\w/]+(?:\.py)?", text)
    assert all((ROOT / name).exists() for name in tests), tests
    extras = re.findall(r'"\.\[(\w+)\]"', text)
    assert set(extras) <= set(EXTRAS)
