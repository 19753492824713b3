"""Every typed error that a command can end in says what to do about it.

Looked for in the sources, so an error that no test provokes is held to it as well: each place that
makes an error of the library gives a likely fix, which is not empty in any case. The rooms that
only programs call (the language of modules and tensors, and what tests are made of) are outside.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.each_file import nodes, parse

import ooctrain
from ooctrain import errors

PACKAGE = Path(ooctrain.__file__).parent
#: Rooms that no command calls with what its user has typed.
OF_PROGRAMS = {"engine", "functional", "layers", "nn", "testing", "laws", "errors.py"}
CLASSES = {
    name
    for name, value in vars(errors).items()
    if isinstance(value, type) and issubclass(value, errors.OoctrainError)
}


def made_errors(tree: ast.Module) -> Iterator[ast.Call]:
    """All calls that make an error; one that hands its keywords on is another's."""
    for node in nodes(tree, ast.Call):
        if isinstance(node.func, ast.Name | ast.Attribute):
            name = node.func.id if isinstance(node.func, ast.Name) else node.func.attr
            if name in CLASSES and all(keyword.arg for keyword in node.keywords):
                yield node


def lacks_fix(error: ast.Call) -> bool:
    """Whether there is no fix, or one that is empty in some case."""
    given = [keyword.value for keyword in error.keywords if keyword.arg == "fix"]
    return not given or _may_be_empty(given[0])


def _may_be_empty(value: ast.expr) -> bool:
    if isinstance(value, ast.IfExp):
        return _may_be_empty(value.body) or _may_be_empty(value.orelse)
    if isinstance(value, ast.BoolOp):
        return _may_be_empty(value.values[-1])
    if isinstance(value, ast.Call) and getattr(value.func, "attr", "") == "get":
        return len(value.args) < 2 or _may_be_empty(value.args[1])
    return isinstance(value, ast.Constant) and not value.value


ROOMS = sorted({p.relative_to(PACKAGE).parts[0] for p in PACKAGE.rglob("*.py")} - OF_PROGRAMS)


@pytest.mark.parametrize("room", ROOMS)
def test_every_error_has_a_likely_fix(room):
    place = PACKAGE / room
    files = [place] if place.is_file() else sorted(place.rglob("*.py"))
    lacking = [
        f"{file.relative_to(PACKAGE)}:{error.lineno}"
        for file in files
        for error in made_errors(parse(file))
        if lacks_fix(error)
    ]
    assert not lacking


def test_the_search_notices_what_lacks_one():
    text = """
a = ConfigError("what", fix="x")
b = ConfigError("what")
c = errors.DriverError("what", call="open", fix="x" if near else "")
d = errors.DriverError("what", call="open", fix=near or "")
e = ConfigError("what", **details)
f = ConfigError("what", fix=FIXES.get(number, ""))
"""
    found = {error.lineno: lacks_fix(error) for error in made_errors(ast.parse(text))}
    assert found == {2: False, 3: True, 4: True, 5: True, 7: True}
