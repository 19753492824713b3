"""A tutorial asks before it shows: no prediction is written in advance, none is answered by a
constant, and a reader needs to know little of the package's inside.

The laws read the scripts as text and as syntax; each is tried on a script that breaks it.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

SCRIPTS = sorted((Path(__file__).parents[2] / "tutorials").glob("[0-9]*.py"))
each_tutorial = pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
#: These compute nothing: of constants they make constants.
PLAIN = {"round", "abs", "int", "float", "len", "max", "min", "sum"}
MOST_INSIDE = 3


@cache
def text_of(script: Path) -> str:
    """A tutorial."""
    return script.read_text(encoding="utf-8")


@cache
def tree_of(script: Path) -> ast.Module:
    """Its syntax."""
    return ast.parse(text_of(script))


def lesson_calls(tree: ast.AST, method: str) -> list[ast.Call]:
    """The calls `lesson.<method>(..)`, in the order of their lines."""
    calls = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == method
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id == "lesson"
    ]
    return sorted(calls, key=lambda call: call.lineno)


def written_values(tree: ast.AST) -> dict[str, list[ast.expr]]:
    """{name: everything that is assigned to it or to an entry of it}."""
    found: dict[str, list[ast.expr]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                while isinstance(target, ast.Subscript):
                    target = target.value
                for part in ast.walk(target):
                    if isinstance(part, ast.Name):
                        found.setdefault(part.id, []).append(node.value)
        elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
            found.setdefault(node.target.id, []).append(
                ast.Await(node.value)
            )  # counted: no constant
        elif isinstance(node, ast.Attribute) and node.attr in ("append", "extend", "update"):
            for part in ast.walk(node.value):
                if isinstance(part, ast.Name):
                    found.setdefault(part.id, []).append(ast.Await(ast.Constant(0)))
        elif isinstance(node, (ast.For, ast.With, ast.FunctionDef, ast.Import, ast.ImportFrom)):
            for part in ast.walk(node.target if isinstance(node, ast.For) else node):
                if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store):
                    found.setdefault(part.id, []).append(ast.Await(ast.Constant(0)))
    return found


def is_constant(value: ast.expr, written: dict[str, list[ast.expr]]) -> bool:
    """Whether a value was typed, not computed by the experiment."""
    if isinstance(value, ast.Constant):
        return True
    if isinstance(value, ast.Name):
        others = {name: values for name, values in written.items() if name != value.id}
        return value.id in written and all(is_constant(v, others) for v in written[value.id])
    if isinstance(value, ast.Call):
        named = isinstance(value.func, ast.Name) and value.func.id in PLAIN
        return named and all(is_constant(v, written) for v in value.args)
    if isinstance(value, (ast.BinOp, ast.UnaryOp, ast.Tuple, ast.List, ast.Dict, ast.Subscript)):
        parts = [part for part in ast.iter_child_nodes(value) if isinstance(part, ast.expr)]
        return all(is_constant(part, written) for part in parts)
    return False


def guesses_in_advance(tree: ast.AST) -> list[str]:
    """The predictions that the script answers for its reader."""
    return [
        ast.unparse(call)
        for call in lesson_calls(tree, "predict")
        if len(call.args) != 1 or any(keyword.arg == "guess" for keyword in call.keywords)
    ]


def revealed_constants(tree: ast.AST) -> list[str]:
    """The measurements that were typed, not measured."""
    written = written_values(tree)
    return [
        ast.unparse(call)
        for call in lesson_calls(tree, "reveal")
        if is_constant(call.args[1], written)
    ]


def imports_from_inside(tree: ast.AST) -> list[str]:
    """The imports of parts of the package, wherever they stand; `import ooctrain as oc` is none."""
    return [
        ast.unparse(node)
        for node in ast.walk(tree)
        if (isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "ooctrain")
        or (isinstance(node, ast.Import) and any("ooctrain." in a.name for a in node.names))
    ]


def shown_before_the_question(text: str) -> list[str]:
    """The predictions that share a cell with what they are about."""
    wrong = []
    for cell in text.split("\n# %%")[1:]:
        if "lesson.predict(" in cell and not cell.startswith(" [markdown]"):
            body = ast.parse(cell.partition("\n")[2]).body
            kinds = {
                node.value.func.attr
                if isinstance(node, ast.Expr)
                and isinstance(node.value, ast.Call)
                and isinstance(node.value.func, ast.Attribute)
                else "code"
                for node in body
            }
            if not kinds <= {"cell", "predict"}:
                wrong.append(cell.strip().splitlines()[0])
    return wrong


@each_tutorial
def test_no_prediction_is_made_for_the_reader(script):
    assert guesses_in_advance(tree_of(script)) == []


@each_tutorial
def test_what_is_measured_was_computed(script):
    assert revealed_constants(tree_of(script)) == []


@each_tutorial
def test_every_prediction_is_answered_and_every_answer_was_asked_for(script):
    tree = tree_of(script)
    asked, answered = (
        [ast.unparse(call.args[0]) for call in lesson_calls(tree, method)]
        for method in ("predict", "reveal")
    )
    assert sorted(asked) == sorted(answered)
    assert asked, "a tutorial asks at least one prediction"


@each_tutorial
def test_a_prediction_has_a_cell_of_its_own_before_the_experiment(script):
    assert shown_before_the_question(text_of(script)) == []


@each_tutorial
def test_a_tutorial_imports_at_most_three_parts_from_inside(script):
    inside = imports_from_inside(tree_of(script))
    assert len(inside) <= MOST_INSIDE, "\n".join(inside)


def test_the_laws_see_a_tutorial_that_breaks_them():
    text = (
        "# %%\nimport ooctrain.units\nfrom ooctrain.step.op import Op\n"
        "hunger = {'naive': 2.0}\nlesson.predict('a', guess=1)\nlesson.reveal('a', 2 / 3)\n"
        "\n# %%\nlesson.reveal('b', hunger['naive'])\nlesson.reveal('c', measure())\n"
    )
    tree = ast.parse(text)
    assert guesses_in_advance(tree) == ["lesson.predict('a', guess=1)"]
    assert [call.split("'")[1] for call in revealed_constants(tree)] == ["a", "b"]
    assert len(imports_from_inside(tree)) == 2
    assert shown_before_the_question("\n" + text) == ["import ooctrain.units"]
