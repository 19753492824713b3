"""Contracts of the sources themselves: exports are true, codes are explained, tests assert
something, CUDA stays in its rooms, and modules keep no state.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.each_file import each_file, nodes, parse

import ooctrain as oc
from ooctrain.explain import all_codes, codes_with_a_page, explain_code, find_code
from ooctrain.sched.rules import RULES

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = sorted((ROOT / "ooctrain").rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("test_*.py"))
#: What counts as an assertion besides `assert`: the library's own checkers, and pytest's.
ASSERTING = re.compile(
    r"\bassert\b|pytest\.(raises|warns|fail)|\bassert_\w+\(|\bcheck_\w+\(|\brun_requests\(|run_state_machine"
)
CUDA_ROOMS = ("devices", "layers/kernels/cuda", "alloc/numba_plugin.py")
CUDA_MODULES = ("cuda", "cupy", "numba_cuda", "pynvml")
MUTABLE = (ast.List, ast.Dict, ast.Set, ast.ListComp, ast.DictComp, ast.SetComp)


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def test_every_exported_name_is_there():
    for name in oc.__all__:
        assert getattr(oc, name) is not None, name
    assert sorted(set(oc.__all__)) == sorted(oc.__all__)


def test_type_checkers_see_every_exported_name():
    (block,) = [n for n in parse(ROOT / "ooctrain/__init__.py").body if isinstance(n, ast.If)]
    # "x as x" and an assignment are public to a type checker; a plain import is not.
    taken = [a for n in block.body if isinstance(n, ast.ImportFrom) for a in n.names]
    seen = {a.asname for a in taken if a.asname == a.name}
    seen |= {t.id for n in block.body if isinstance(n, ast.Assign) for t in n.targets}
    assert seen == set(oc.__all__) - {"__version__"}


def test_the_package_loads_no_more_than_it_needs():
    code = "import sys, ooctrain; print(*[m for m in sys.modules if m.startswith('ooctrain')])"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert 1 <= len(loaded.stdout.split()) <= 7


@each_file(PACKAGE)
def test_what_a_module_exports_is_defined_in_it(path):
    tree = parse(path)
    exported = [
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign)
        and ast.unparse(node.targets[0]) == "__all__"
        and isinstance(node.value, ast.List)
    ]
    defined = set()
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            defined.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            defined |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.Assign):
            defined |= {ast.unparse(target) for target in node.targets}
        elif isinstance(node, ast.AnnAssign):
            defined.add(ast.unparse(node.target))
        if isinstance(node, ast.FunctionDef) and node.name == "__getattr__":
            return  # names are made on demand: `test_every_exported_name_is_there` asks for each
    assert not [name for names in exported for name in names if name not in defined]


def codes_raised() -> set[str]:
    text = "\n".join(path.read_text(encoding="utf-8") for path in PACKAGE)
    return set(re.findall(r"code(?: == |=| = )\"(OOC-\d+)\"", text))


def test_every_code_that_is_raised_and_every_rule_has_a_page_and_nothing_else_has():
    assert codes_raised() | set(RULES) == set(codes_with_a_page())


def test_every_explanation_is_whole():
    for code, title in all_codes().items():
        known, entry = find_code(code)
        assert known == code
        assert entry.text.startswith(f"{code}: {title}")
        assert entry.meaning
        assert textwrap.indent(entry.example, "    ") in entry.text, code
        assert (entry.fix != "") == code.startswith("OOC"), code
        assert explain_code(code).startswith(entry.text)


@pytest.mark.parametrize("code", RULES)
def test_the_page_of_a_rule_means_what_its_function_says(code):
    assert find_code(code)[1].meaning == " ".join((RULES[code].__doc__ or "").split())


def test_an_unknown_code_suggests_a_known_one():
    with pytest.raises(oc.OoctrainError, match="OOC-12") as caught:
        explain_code("OOC-12")
    assert "OOC-" in caught.value.fix


@each_file(TESTS)
def test_every_test_asserts_something(path):
    lines = path.read_text(encoding="utf-8").splitlines()
    functions = sorted(nodes(parse(path), ast.FunctionDef), key=lambda f: f.col_offset)
    bodies = {f.name: "\n".join(lines[f.lineno - 1 : f.end_lineno]) for f in functions}
    # A test may leave the asserting to a helper beside it.
    asserting = {name for name, body in bodies.items() if ASSERTING.search(body)}
    idle = [
        f"{path.name} {name}"
        for name, body in bodies.items()
        if name.startswith("test_")
        and name not in asserting
        and not any(re.search(rf"\b{helper}\(", body) for helper in asserting)
    ]
    assert not idle


def outside_cuda_rooms(path: Path) -> bool:
    return not path.relative_to(ROOT / "ooctrain").as_posix().startswith(CUDA_ROOMS)


@each_file(filter(outside_cuda_rooms, PACKAGE))
def test_cuda_is_imported_in_its_rooms_only(path):
    for node in nodes(parse(path), ast.Import, ast.ImportFrom):
        before = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
        names = [f"{before}{alias.name}" for alias in node.names]
        assert not [n for n in names if n.startswith(CUDA_MODULES) or n.startswith("numba.cuda")]


def test_one_file_of_the_kernels_imports_the_cuda_target():
    """`runtime/shim.py`, so that a successor of Numba's CUDA target costs that file."""
    target = re.compile(r"(from|import) numba(\.| import )cuda")
    sources = (ROOT / "ooctrain/layers/kernels").rglob("*.py")
    found = {path.name for path in sources if target.search(path.read_text(encoding="utf-8"))}
    assert found == {"shim.py"}


@each_file(PACKAGE)
def test_no_function_changes_what_a_module_keeps(path):
    tree = parse(path)
    globals_changed = [node.lineno for node in nodes(tree, ast.Global)]
    assert not globals_changed, f"`global` in {path.name}, lines {globals_changed}"
    kept = {
        target.id
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, MUTABLE)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    functions = nodes(tree, ast.FunctionDef)
    changed = [
        line
        for line, name in _changes(tree)
        if name in kept and any(f.lineno <= line <= f.end_lineno for f in functions)
    ]
    assert not changed, f"{path.name} changes a value of the module in lines {changed}"


#: Methods that change what they belong to.
VERBS = ("append", "extend", "add", "update", "setdefault", "pop", "clear", "insert")


def _changes(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """(line, name) of item assignments and changing calls."""
    for node in nodes(tree, ast.Assign, ast.AugAssign):
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            if isinstance(target, ast.Subscript) and isinstance(target.value, ast.Name):
                yield node.lineno, target.value.id
    for node in nodes(tree, ast.Call):
        verb, owner = getattr(node.func, "attr", None), getattr(node.func, "value", None)
        if verb in VERBS and isinstance(owner, ast.Name):
            yield node.lineno, owner.id


def test_no_source_leaves_work_undone():
    marks = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b|raise NotImplementedError\b")
    found = [
        f"{relative(path)}:{number}"
        for path in PACKAGE + [p for p in TESTS if p != Path(__file__)]
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if marks.search(line)
    ]
    assert not found


@each_file(PACKAGE)
def test_every_room_says_what_it_is_for(path):
    text = ast.get_docstring(parse(path)) or ""
    assert text, "no docstring"
    if len(path.read_text(encoding="utf-8").splitlines()) > 40:
        assert re.search(r"\bIn(:| and out:|put)|Read\s+next", text), "not what flows in and out"


#: What the head of a file is not: a form that is filled in.
FORM = re.compile(r"^In: |\bOut: |\bThe\s+one\s+idea\b", re.MULTILINE)


def test_no_file_opens_with_a_form_that_is_filled_in():
    folders = ("ooctrain", "tests", "tutorials", "benchmarks")
    files = [path for name in folders for path in (ROOT / name).rglob("*.py")]
    heads = {path: path.read_text(encoding="utf-8").split('"""')[1:2] for path in files}
    assert len(heads) > 600
    assert not [relative(path) for path, head in heads.items() if head and FORM.search(head[0])]
