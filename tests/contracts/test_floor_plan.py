"""The picture of docs/architecture.md is true: a room imports only from lower floors.

Every import counts: at the top of a file, in a function, for annotations alone, by `import_module`,
and by a name of the whole package (`oc.plan` is an import of `ooctrain.api`). A room is a folder or
a loose file of `ooctrain/`; the table below is the picture, floor by floor.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Callable, Hashable, Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest
from support.each_file import nodes, parse
from support.quick import quick

import ooctrain

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "ooctrain"
FLOORS = (
    ("errors", "units", "plugins", "activity"),
    ("step",),
    ("layers",),
    ("engine", "devices", "sched"),
    ("functional", "optim", "rewrite", "alloc", "data", "planning"),
    ("nn", "execution", "distributed", "report"),
    ("models", "split", "tracing"),
    ("api", "doors", "train", "testing"),
    ("experiments", "machine", "course", "explain", "interop", "laws"),
    ("cli",),
    ("__main__",),
)
FLOOR = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}
#: On the ground units may import errors, and plugins both.
ON_THE_GROUND = {("units", "errors"), ("plugins", "errors"), ("plugins", "units")}
#: Rooms whose folders are compared with each other.
WITH_FOLDERS = ("sched", "alloc", "devices")
#: What starts at once: files loaded by `import ooctrain`, and by the verifier alone.
MOST_LOADED_AT_ONCE, MOST_LOADED_BY_THE_VERIFIER = 7, 24
#: What a command that only plans must not wait for.
SLOW_TO_LOAD = {"numba", "llvmlite", "highspy", "pytest", "hypothesis", "PIL", "multiprocessing"}
#: Numba compiles here; everybody else asks these rooms. The plug-in serves Numba's own arrays, the
#: emulator compiles CUDA kernels for the CPU.
NUMBA_ROOMS = ("layers.kernels", "sched.search", "alloc.numba", "testing.emulator")
#: Who may call `import_module`, and why no import statement does it. All others' calls are refused.
BY_NAME = {
    "": "public names, each when it is first used",
    "alloc.registry": "allocators that are there to be compared with, when one is asked for",
    "cli": "the file of a command, when it is given",
    "course.cage.given": "the package itself, as a submission sees it",
    "data.extras": "packages that may be missing, for several readers of files",
    "devices.cuda.open": "the versions of packages, when a GPU is looked for",
    "execution.compile_apart": "kernels that a child is to compile, by their names",
    "layers.kernels.cpu.conv.conv2d": "an algorithm's kernels, when it first runs",
    "layers.kernels.cuda.conv.conv2d": "an algorithm's kernels, when it first runs",
    "layers.kernels.cuda.every_kernel": "all that its folder holds, so that none is forgotten",
    "layers.kernels.cuda.runtime.cubins": "a package that may be missing or broken",
    "layers.kernels.cuda.runtime.shim": "whichever of two packages works; its types are unknown",
    "layers.kernels.kernel_table": "a device's kernels, when an operation first runs",
    "machine.doctor": "what may be broken; each check survives its own import",
    "plugins": "the plug-ins of other packages, when a name is not one of ours",
    "rewrite.tile.carried_sums": "a device's kernels, when a sum first runs",
}
#: They stand for the package: the names that they hand out are not what they use.
FACES = ("", "course.cage.given")


def modules() -> dict[str, Path]:
    """{dotted name below the package: file}; "" is the package itself."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = modules()


def tree_of(module: str) -> ast.Module:
    return parse(MODULES[module])


@cache
def imports_of(module: str) -> Mapping[str, frozenset[str]]:
    """{module of the package that a module imports: names that it takes}, every import counted."""
    found = imports_in(tree_of(module), module not in FACES)
    return {name: frozenset(taken) for name, taken in found.items() if name not in ("", module)}


def imports_in(tree: ast.Module, by_name: bool = True) -> Mapping[str, set[str]]:
    """What `imports_of` says of a file, itself included.

    Args:
        by_name: whether calls of `import_module` count.
    """
    found: dict[str, set[str]] = {}
    for name in names_of_the_whole(tree):
        home = ooctrain._HOME.get(name) or ooctrain._MODULES.get(name)
        if home is not None:
            found.setdefault(home, set()).add(name)
    for call in calls_by_name(tree) if by_name else ():
        for name in filter(named_by(call), MODULES):
            found.setdefault(name, set()).add("import_module")
    for node in nodes(tree, ast.ImportFrom, ast.Import):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "ooctrain":
            base = (node.module or "").removeprefix("ooctrain").removeprefix(".")
            for alias in node.names:
                inner = f"{base}.{alias.name}".removeprefix(".")
                home = inner if inner in MODULES else base or ooctrain._HOME.get(alias.name, "")
                found.setdefault(home, set()).add(alias.name)
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.startswith("ooctrain."):
                    found.setdefault(alias.name.removeprefix("ooctrain."), set()).add(alias.name)
    return found


def names_of_the_whole(tree: ast.Module) -> set[str]:
    """What a file takes of the whole package: {"plan"} of `import ooctrain as oc; oc.plan`."""
    imported = [alias for node in nodes(tree, ast.Import) for alias in node.names]
    whole = {
        alias.asname or "ooctrain"
        for alias in imported
        if alias.name == "ooctrain" or (alias.name.startswith("ooctrain.") and not alias.asname)
    }
    return {
        node.attr for node in nodes(tree, ast.Attribute) if getattr(node.value, "id", None) in whole
    }


def calls_by_name(tree: ast.Module) -> list[ast.Call]:
    """The calls of `import_module`, under whatever name, and of `__import__`."""
    called = {"import_module", "__import__"} | {
        alias.asname
        for node in nodes(tree, ast.ImportFrom)
        if node.module == "importlib"
        for alias in node.names
        if alias.name == "import_module"
    }
    calls = nodes(tree, ast.Call)
    return [c for c in calls if called & {getattr(c.func, a, "") for a in ("attr", "id")}]


def named_by(call: ast.Call) -> Callable[[str], object]:
    """Says of each module whether such a call may import it; computed parts may be anything."""
    named, pattern, begin = call.args[0], "", re.escape("ooctrain.")
    for piece in named.values if isinstance(named, ast.JoinedStr) else [named]:
        known = isinstance(piece, ast.Constant)
        pattern += re.escape(str(piece.value)) if known else r"[\w.]+"
    inner = pattern.removeprefix(begin) if pattern.startswith(begin) else "(?!)"
    return re.compile(inner).fullmatch


def room_of(module: str) -> str:
    return module.split(".")[0]


def folder_of(module: str) -> str:
    """The folder below its room that a module stands in; "" for the room's own files."""
    folders = MODULES[module].relative_to(PACKAGE).parts[1:-1]
    return folders[0] if folders else ""


def arrows(kind: Callable[[str], Hashable]) -> dict[Hashable, set[Hashable]]:
    """{x: all that x imports}, for files, rooms or folders, as `kind` says; nothing to itself."""
    found: dict[Hashable, set[Hashable]] = {kind(module): set() for module in MODULES if module}
    for module in filter(None, MODULES):
        found[kind(module)] |= {kind(name) for name in imports_of(module)} - {kind(module)}
    return found


def circles(graph: Mapping[Hashable, set[Hashable]]) -> list[str]:
    """Ways from something back to itself, one for each start that has one."""
    found, done = [], set()

    def visit(here: Hashable, path: tuple[Hashable, ...]) -> None:
        if here in path:
            found.append(" -> ".join(map(str, (*path[path.index(here) :], here))))
        elif here not in done:
            for there in sorted(graph[here], key=str):
                visit(there, (*path, here))
            done.add(here)

    for start in graph:
        visit(start, ())
    return found


def functions() -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for module in MODULES:
        for node in nodes(tree_of(module), ast.FunctionDef, ast.AsyncFunctionDef):
            yield module, node


def imports_in_functions() -> list[tuple[str, int]]:
    """(module, line) of each import statement inside a function."""
    found = {
        (module, node.lineno)
        for module, function in functions()
        for node in nodes(tree_of(module), ast.Import, ast.ImportFrom)
        if function.lineno <= node.lineno <= function.end_lineno
    }
    return sorted(found)


# One direction


@pytest.mark.parametrize("room", FLOOR)
def test_a_room_imports_only_from_lower_floors(room):
    wrong = {
        (module, name): sorted(taken)
        for module in MODULES
        if room_of(module) == room
        for name, taken in imports_of(module).items()
        if room_of(name) != room
        and FLOOR[room_of(name)] >= FLOOR[room]
        and (room, room_of(name)) not in ON_THE_GROUND
    }
    assert not wrong, f"{room} (floor {FLOOR[room]}) takes from its own floor or above: {wrong}"


def test_imports_are_statements_but_where_a_name_is_computed():
    """No way round this picture: `import_module` where a reason is given, and nothing relative."""
    callers = {module for module in MODULES if calls_by_name(tree_of(module))}
    assert callers == set(BY_NAME), callers ^ set(BY_NAME)
    for module in MODULES:
        for node in nodes(tree_of(module), ast.ImportFrom):
            assert not node.level, (module, node.lineno)


WAYS = {
    "import ooctrain as oc\ndef f(m): return oc.split(m)": {"api"},
    "import ooctrain\nclass A(ooctrain.nn.Module): pass": {"nn"},
    "import ooctrain.sched.verify\nooctrain.Trainer": {"sched.verify", "train"},
    "from ooctrain import plan, nn": {"api", "nn"},
    "from importlib import import_module as x\nx('ooctrain.api')": {"api"},
    "importlib.import_module(f'ooctrain.models.{name}net')": {
        name for name in MODULES if re.fullmatch(r"models\.\w+net", name)
    },
    "import ooctrain\nooctrain.__version__\nimport_module('numba.cuda')": set(),
}


@pytest.mark.parametrize("text", WAYS)
def test_the_picture_sees_every_way_to_import(text):
    assert WAYS[text] == set(imports_in(ast.parse(text)))


def test_there_is_no_circle_of_files():
    """Tables whose rows are found by name may know files that import the table."""
    graph = arrows(lambda module: module)
    for module in BY_NAME.keys() & graph.keys():
        taken = imports_of(module)
        graph[module] -= {name for name in taken if taken[name] == {"import_module"}}
    assert not circles(graph)


def test_there_is_no_circle_of_rooms():
    assert not circles(arrows(room_of))


@pytest.mark.parametrize("room", WITH_FOLDERS)
def test_there_is_no_circle_of_folders(room):
    graph = arrows(lambda module: (room_of(module), folder_of(module)))
    folders = {place: near for place, near in graph.items() if place[0] == room and place[1]}
    assert not circles({place: near & set(folders) for place, near in folders.items()})


def test_the_list_imports_nothing_below_its_room_but_rules():
    own = [m for m in MODULES if room_of(m) == "sched" and not folder_of(m) and m != "sched"]
    wrong = {
        (module, name)
        for module in own
        for name in imports_of(module)
        if room_of(name) == "sched" and folder_of(name) not in ("", "rules")
    }
    assert not wrong


def test_operations_know_no_device():
    own = [m for m in MODULES if room_of(m) == "layers" and not m.startswith("layers.kernels")]
    assert not [(m, n) for m in own for n in imports_of(m) if n.startswith("layers.kernels")]


def test_the_table_is_the_picture_of_the_architecture_page():
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    picture = re.search(r"## Floors.*?```\n(.*?)```", text, re.S).group(1)
    drawn = {}
    for line in picture.splitlines():
        number, rooms, _ = re.split(r"\s{2,}", line.strip(), maxsplit=2)
        drawn[int(number)] = sorted(re.sub(r"(/|\.py)$", "", room) for room in rooms.split())
    assert drawn == {n: sorted(rooms) for n, rooms in enumerate(FLOORS) if n < len(FLOORS) - 1}


def test_every_room_of_the_table_is_there():
    assert {room_of(module) for module in MODULES if module} == set(FLOOR)


def test_an_import_in_a_function_says_why():
    for module, number in imports_in_functions():
        lines = MODULES[module].read_text(encoding="utf-8").splitlines()
        above = number - 2
        while re.match(r"\s*((from|import) .*)?$", lines[above]):
            above -= 1
        assert "#" in lines[number - 1] or lines[above].strip().startswith("#"), (module, number)


# The laboratory is not shipped


def test_neither_the_package_nor_a_lesson_needs_the_tests():
    laboratory = {path.name for path in (ROOT / "tests").iterdir() if path.is_dir()}
    for path in [*MODULES.values(), *sorted((ROOT / "tutorials").rglob("*.py"))]:
        tree = parse(path)
        taken = [a.name for node in nodes(tree, ast.Import) for a in node.names]
        taken += [node.module or "" for node in nodes(tree, ast.ImportFrom)]
        assert not laboratory & {name.split(".")[0] for name in taken}, path


def test_the_package_is_python_alone():
    assert not [path for suffix in ("c", "h", "cu", "ptx") for path in PACKAGE.rglob(f"*.{suffix}")]


# What is loaded


def test_only_kernel_rooms_import_numba():
    for module in (name for name in MODULES if not name.startswith(NUMBA_ROOMS)):
        for node in nodes(tree_of(module), ast.Import, ast.ImportFrom):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            roots = {name.split(".")[0] for name in names}
            assert not roots & {"numba", "llvmlite", "cuda"}, module


def loaded_by(script: str) -> list[str]:
    """All modules that a fresh process has loaded after `script`."""
    done = subprocess.run(
        [sys.executable, "-c", f"{script}\nimport sys\nprint(*sys.modules, sep='\\n')"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_importing_the_package_loads_next_to_nothing():
    loaded = [name for name in loaded_by("import ooctrain") if name.startswith("ooctrain")]
    assert len(loaded) <= MOST_LOADED_AT_ONCE


def test_the_verifier_loads_little_and_no_operation_rewrite_or_allocator():
    verifier = "ooctrain.sched.verify"
    loaded = [name for name in loaded_by(f"import {verifier}") if name.startswith("ooctrain")]
    assert len(set(loaded) - {verifier}) <= MOST_LOADED_BY_THE_VERIFIER
    unwanted = tuple(f"ooctrain.{room}" for room in ("layers", "rewrite", "alloc"))
    assert not [name for name in loaded if name.startswith(unwanted)]


def test_planning_loads_no_kernel():
    script = """
import ooctrain as oc
trace = oc.trace(oc.models.build("lenet"), (8, 3, 32, 32))
plan = oc.plan(trace, "50%", planner="window")
oc.verify(plan, trace, "50%")
"""
    assert not {"numba", "llvmlite", "rich", "pytest"} & set(loaded_by(script))


HELP = [["--help"], *([name, "--help"] for name in ("plan", "train", "report", "grade"))]


@pytest.mark.parametrize("arguments", quick(HELP, 0, 2), ids=" ".join)
def test_help_loads_no_kernel(arguments):
    loaded = loaded_by(f"from ooctrain.cli import main\nassert main({arguments!r}) == 0")
    assert "Usage" in "\n".join(loaded)
    assert not {"numba", "llvmlite", "highspy"} & set(loaded)


def test_the_command_plan_loads_nothing_that_is_slow_to_load():
    loaded = loaded_by("import ooctrain.cli.plan_command")
    assert not SLOW_TO_LOAD & set(loaded)
