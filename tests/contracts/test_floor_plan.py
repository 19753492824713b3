"""The picture of docs/architecture.md is true: a room imports from its own floor or below, never in
a cycle, and only the doors to the kernels know Numba.

The table below is that picture, room by room; the longest entry that starts a module's name
decides.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "ooctrain"
FLOORS = {
    "errors": 0, "units": 0, "specs": 0,
    "trace": 1, "cost": 1, "machines": 1, "autograd": 1, "tape": 1, "backward": 1,
    "tensors": 1, "eager": 1,
    "module": 1, "nn": 1, "optim": 1, "functional": 1, "utils": 1, "tracing": 1, "losses": 1,
    "layers": 1, "incore": 1, "lr_scheduler": 1, "alloc": 1, "devices": 1,
    "sched.instructions": 2, "sched.schedule": 2, "sched.ledger": 2, "sched.spans": 2,
    "sched.verify": 2, "sched.rules": 2,
    "sched.simulate": 2, "sched.timeline": 2, "sched.lower": 2, "sched.decisions": 2,
    "sched.bounds": 2, "sched.base": 2, "sched.budget": 2, "sched.profile": 2, "sched.host": 2,
    "sched.host_life": 2, "sched.fluid": 2, "sched.linear": 2, "chain": 2, "rewrite": 2,
    "tile": 2, "models": 2, "data": 2,
    "sched": 3, "executor": 3, "execution": 3,
    "api": 4, "train": 4, "prepare": 4, "sessions": 4, "residence": 4, "checkpoint": 4,
    "calibrate": 4, "measured": 4, "memory_speed": 4, "advice": 4, "experiments": 4,
    "report": 5,
    "cli": 6, "explain": 6, "doctor": 6, "__main__": 6,
    "testing": 6, "laws": 6, "course": 6,
}  # fmt: skip
#: Numba compiles here; everybody else asks these rooms. The plug-in serves Numba's own arrays, the
#: emulator compiles CUDA kernels for the CPU.
NUMBA_ROOMS = ("layers.kernels", "sched.search", "alloc.numba_plugin", "testing.emulator")


def modules() -> dict[str, Path]:
    """{dotted name below the package: file}; "" is the package itself."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = modules()


def floor_of(module: str) -> int | None:
    parts = module.split(".")
    names = [".".join(parts[:end]) for end in range(len(parts), 0, -1)]
    return next((FLOORS[name] for name in names if name in FLOORS), None)


@cache
def imports_of(module: str, *, top_level_only: bool = False) -> frozenset[str]:
    """Modules of the package that a module imports, annotations' imports left out."""
    tree = ast.parse(MODULES[module].read_text(encoding="utf-8"))
    found = set()
    for node in _walk(tree, top_level_only):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("ooctrain"):
            base = (node.module or "").removeprefix("ooctrain").removeprefix(".")
            for alias in node.names:
                inner = f"{base}.{alias.name}".removeprefix(".")
                found.add(inner if inner in MODULES else base)
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names if alias.name.startswith("ooctrain.")]
            found |= {name.removeprefix("ooctrain.") for name in names}
    return frozenset(found - {module, ""})


def _walk(node: ast.AST, top_level_only: bool):
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            continue
        if top_level_only and isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        yield child
        yield from _walk(child, top_level_only)


@pytest.mark.parametrize("module", [name for name in MODULES if name])
def test_a_room_imports_from_its_own_floor_or_below(module):
    here = floor_of(module)
    assert here is not None, (
        f"{module} has no floor: add it to the table and to docs/architecture.md"
    )
    too_high = sorted(name for name in imports_of(module) if (floor_of(name) or 0) > here)
    assert not too_high, f"{module} (floor {here}) imports from above: {too_high}"


def test_there_is_no_cycle_of_imports():
    done: set[str] = set()

    def visit(module: str, path: tuple[str, ...]) -> None:
        assert module not in path, " -> ".join((*path[path.index(module) :], module))
        if module not in done:
            for name in sorted(imports_of(module, top_level_only=True)):
                if name in MODULES:
                    visit(name, (*path, module))
            done.add(module)

    for module in MODULES:
        visit(module, ())
    assert done == set(MODULES)


def test_the_table_is_the_picture_of_the_architecture_page():
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    picture = re.search(r"## Floors.*?```\n(.*?)```", text, re.S).group(1)
    drawn, floor = {}, -1
    for line in picture.splitlines():
        floor = int(line[0]) if line[:1].isdigit() else floor
        drawn[floor] = drawn.get(floor, "") + line
    for name, floor in FLOORS.items():
        room = re.split(r"[./]", name)[-1]
        assert re.search(rf"\b{room}\b", drawn[floor]), f"{name} is not drawn on floor {floor}"


def test_every_entry_of_the_table_is_a_room():
    missing = [n for n in FLOORS if not any(m == n or m.startswith(f"{n}.") for m in MODULES)]
    assert not missing


@pytest.mark.parametrize("module", [m for m in MODULES if not m.startswith(NUMBA_ROOMS)])
def test_only_kernel_rooms_import_numba(module):
    tree = ast.parse(MODULES[module].read_text(encoding="utf-8"))
    for node in _walk(tree, False):
        names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        assert not any(name.split(".")[0] in ("numba", "llvmlite", "cuda") for name in names)


def test_planning_loads_no_kernel():
    script = """
import sys
import ooctrain as oc
trace = oc.trace(oc.models.build("lenet"), (8, 3, 32, 32))
plan = oc.plan(trace, "50%", planner="window")
oc.verify(plan, trace, "50%")
heavy = [name for name in ("numba", "llvmlite", "rich", "pytest") if name in sys.modules]
assert not heavy, heavy
print("light")
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert done.stdout == "light\n", done.stderr


HELP = [["--help"], *([name, "--help"] for name in ("plan", "train", "report", "grade"))]


@pytest.mark.parametrize("arguments", HELP, ids=" ".join)
def test_help_loads_no_kernel(arguments):
    script = f"""
import sys
from ooctrain.cli import main
status = main({arguments!r})
assert status == 0, status
assert not [name for name in ("numba", "llvmlite", "highspy") if name in sys.modules]
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "Usage" in done.stdout
