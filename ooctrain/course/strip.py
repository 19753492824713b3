"""What a student installs: the library without the solution of one assignment.

`stripped` takes a file's text and leaves out the bodies of what it is told to: functions, classes,
or all of the file. Names, parameters, fields and constants stay, so they can still be imported;
a function or method that is called raises `Withheld`, which names it and the assignment (an object
of a dataclass can be made). Docstrings, comments and private names go too, as they explain the
method. Which parts of which files are left out is said by the assignment's `grade.toml`: `withheld
= ["sched/planners/lru.py", "alloc/best_fit.py:BestFit"]`. Read next: `handout.py`, which makes a
wheel of the result.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from pathlib import Path

from ooctrain.errors import ConfigError

PACKAGE = Path(__file__).resolve().parents[1]
_Function = ast.FunctionDef | ast.AsyncFunctionDef
#: They look at the fields of an object that has been made.
_MAKERS = ("__post_init__", "__init_subclass__", "__set_name__")


def stripped_files(withheld: Iterable[str], assignment: str) -> dict[str, str]:
    """{file below the package: its text without what is withheld}.

    Args:
        withheld: "file.py", or "file.py:name" for a function or class at the file's top.

    Raises:
        ConfigError: there is no such file or name.
    """
    wanted: dict[str, set[str]] = {}
    for entry in withheld:
        file, _, name = entry.partition(":")
        wanted.setdefault(file, set()).add(name)
    return {file: stripped(file, names, assignment) for file, names in wanted.items()}


def stripped(file: str, names: Iterable[str], assignment: str) -> str:
    """A file of the package without the bodies of what is named; "": of all that it defines."""
    try:
        tree = ast.parse((PACKAGE / file).read_text(encoding="utf-8"))
    except OSError as error:
        raise _none_such(file) from error
    defined = {node.name: node for node in tree.body if isinstance(node, _Function | ast.ClassDef)}
    chosen = set(names)
    if "" in chosen:
        tables = [node for node in tree.body if isinstance(node, ast.Assign | ast.AnnAssign)]
        named = {n.id for table in tables for n in ast.walk(table) if isinstance(n, ast.Name)}
        chosen = {name for name in defined if not _is_private(name) or name in named}
        gone = [node for name, node in defined.items() if name not in chosen]
        tree.body = [node for node in tree.body if node not in gone]
    for name in sorted(chosen):
        if name not in defined:
            raise _none_such(f"{file}:{name}")
        _empty(defined[name], f"{file}: {name}", assignment)
    raiser = ast.ImportFrom("ooctrain.errors", [ast.alias("Withheld", "_Withheld")], 0)
    later = [n for n in tree.body if isinstance(n, ast.ImportFrom) and n.module == "__future__"]
    rest = [node for node in tree.body if node not in later and not _is_text(node)]
    text = f'"""Part of this file is left out: assignment {assignment} asks for it."""'
    tree.body = [*ast.parse(text).body, *later, raiser, *rest]
    return f"{ast.unparse(ast.fix_missing_locations(tree))}\n"


def _empty(node: ast.stmt, told: str, assignment: str) -> None:
    """Leaves out what a function does, or what a class's methods do."""
    if isinstance(node, ast.ClassDef):
        kept = [inner for inner in node.body if not _is_text(inner)]
        kept = [inner for inner in kept if not _is_private(getattr(inner, "name", ""))]
        node.body = kept or [ast.Pass()]
        for inner in node.body:
            _empty(inner, f"{told}.{getattr(inner, 'name', '')}", assignment)
    elif isinstance(node, _Function):
        raising = f"raise _Withheld({told!r}, {assignment!r})"
        node.body = [ast.Pass()] if node.name in _MAKERS else ast.parse(raising).body


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("__")


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _none_such(what: str) -> ConfigError:
    return ConfigError(
        f"the library has no {what!r}, which the assignment withholds", code="OOC-119",
        fix='withheld = ["file.py", "file.py:name"], below ooctrain/, of a function or class there',
    )  # fmt: skip
