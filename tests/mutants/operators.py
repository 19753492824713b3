"""Every small mistake that an operator can make in a file: the mutants of its functions.

A mutation gives one field of one node of the syntax tree another value (`<` becomes `<=`, `and`
becomes `or`, a statement is left out). So it is undone as easily as it is made, and its text is
the statement, printed before and after. Mutants stand in bodies and default values of functions;
annotations, messages of errors, classes' fields and modules' constants are left alone. The
operators are those of Offutt et al., "An experimental determination of sufficient mutant operators"
(1996), with those for statements, arguments and ranges. Read next: `planted.py`.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
#: Kernels have judges of their own: definitions in NumPy, the emulator, the interpreter of PTX, and
#: planted bugs (`tests/zoo/kernel_bugs.py`,
#: `tests/zoo/ptx_bugs.py`). Numba compiles them, for minutes each.
LEFT_OUT = "ooctrain/layers/kernels/"


def _rooms() -> tuple[str, ...]:
    """The package's folders and loose files, as the floor plan counts rooms."""
    found = (ROOT / "ooctrain").iterdir()
    return tuple(sorted(p.name for p in found if p.suffix == ".py" or (p / "__init__.py").exists()))


ROOMS = _rooms()

_COMPARED = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip
_COMPUTED = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult,
    ast.Div: ast.Mult, ast.Mod: ast.FloorDiv, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
    ast.LShift: ast.RShift, ast.RShift: ast.LShift,
}  # fmt: skip
_ENDS = {"min": "max", "max": "min", "any": "all", "all": "any"}
#: Whose arguments may change places, or must not.
_SYMMETRIC = {
    "min", "max", "minimum", "maximum", "gcd", "suppress",
    "isinstance", "issubclass", "hasattr", "getattr", "cast",
}  # fmt: skip
#: What decorates a function that Numba compiles.
COMPILED = {"compiled", "inlined", "inner"}
BLOCKS = ("body", "orelse", "finalbody")
FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class Change:
    """A field of a node with another value.

    Args:
        text: what stands for the statement afterwards, where the tree says it in another way.
    """

    operator: str
    node: ast.AST
    field: str
    value: object
    text: str = ""


@dataclass(frozen=True, slots=True)
class Site:
    """Where a change stands.

    Args:
        function: the outermost one around it.
        place: its name with its class: "Choice.step".
        statement: the innermost one around the changed node.
        block: where the block begins that the statement stands in; see `block_of`.
    """

    function: ast.FunctionDef | ast.AsyncFunctionDef
    place: str
    statement: ast.stmt
    block: int


@dataclass(frozen=True, slots=True)
class Mutant:
    """One function with one mistake.

    Args:
        file: from the repository's root.
        place: the function, with its class.
        before, after: the changed statement, as `ast.unparse` prints it.
        which: of several equal ones in the function.
        block: see `block_of`.
        number: of the change, in the order of `changes_in`.
        source: digest of the whole function as it is.
        compiled: whether Numba compiles the function.
    """

    file: str
    place: str
    line: int
    operator: str
    before: str
    after: str
    which: int
    number: int
    block: int
    source: str
    compiled: bool

    @property
    def room(self) -> str:
        return self.file.split("/")[1]

    @property
    def key(self) -> tuple[str, str, str, int]:
        """Its name: function and statement, so that it outlives moves of lines and of files."""
        return self.place, self.before, self.after, self.which

    @property
    def reached(self) -> str:
        """The name of its block, as probes tell it."""
        return block_name(self.file, self.place, self.block)

    @property
    def is_default(self) -> bool:
        """Whether it changes a default value, which a caller meets before the function runs."""
        return self.before.startswith(("def ", "async def "))

    def digest(self, seed: str = "") -> str:
        return digest_of([repr((seed, self.key))])


def is_compiled(function: ast.AST) -> bool:
    """Whether Numba compiles a function (`ooctrain/sched/search/jit.py`)."""
    names = {getattr(name, "id", "") for name in getattr(function, "decorator_list", ())}
    return bool(names & COMPILED)


def files(rooms: tuple[str, ...] = ROOMS) -> list[str]:
    """All files of the rooms, from the repository's root."""
    places = [ROOT / "ooctrain" / room for room in rooms]
    found = [path for p in places for path in ([p] if p.is_file() else sorted(p.rglob("*.py")))]
    names = [path.relative_to(ROOT).as_posix() for path in found]
    return [name for name in names if not name.startswith(LEFT_OUT)]


def parsed(file: str) -> ast.Module:
    """The tree of a file."""
    return ast.parse((ROOT / file).read_text(encoding="utf-8"))


def mutants_of(file: str, places: set[str] | None = None) -> list[Mutant]:
    """All mutants of a file's functions, or of those named."""
    found: list[Mutant] = []
    seen: dict[tuple[str, str, str], int] = {}
    digests = sources(file)
    for number, (change, site) in enumerate(changes_in(parsed(file))):
        if places is not None and site.place not in places:
            continue
        before, after = texts(change, site.statement)
        which = seen[site.place, before, after] = seen.get((site.place, before, after), -1) + 1
        around = site.statement if change.text == "pass" else change.node
        line = getattr(around, "lineno", site.statement.lineno)
        found.append(
            Mutant(file, site.place, line, change.operator, before, after, which, number,
                   site.block, digests[site.place], is_compiled(site.function))
        )  # fmt: skip
    return found


@cache
def sources(file: str) -> dict[str, str]:
    """{a function, with its class: digest of it}: comments and moves of lines leave it as it is."""
    texts_of: dict[str, list[str]] = {}
    for place, function in functions_in(parsed(file).body):
        texts_of.setdefault(place, []).append(ast.unparse(function))
    return {place: digest_of(parts)[:16] for place, parts in texts_of.items()}


def digest_of(parts: Iterable[str]) -> str:
    """One digest of several texts."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def sample(mutants: list[Mutant], count: int, seed: str) -> list[Mutant]:
    """`count` of them, drawn evenly: the same ones wherever they are drawn, and neither an edit of
    one function nor a move to another file draws others elsewhere.
    """
    return sorted(mutants, key=lambda mutant: (mutant.digest(seed), mutant.file))[:count]


def texts(change: Change, statement: ast.stmt) -> tuple[str, str]:
    """The statement before and after a change; of a compound one its first line."""
    before = _head(statement)
    if change.text:
        return before, change.text
    right = getattr(change.node, change.field)
    setattr(change.node, change.field, change.value)
    after = _head(statement)
    setattr(change.node, change.field, right)
    return before, after


def _head(statement: ast.stmt) -> str:
    hidden = {name: getattr(statement, name) for name in BLOCKS if hasattr(statement, name)}
    for name in hidden:
        setattr(statement, name, [ast.Pass()] if name == "body" else [])
    decorators = getattr(statement, "decorator_list", None)
    if decorators is not None:
        statement.decorator_list = []  # type: ignore[attr-defined]
    text = ast.unparse(statement)
    for name, value in hidden.items():
        setattr(statement, name, value)
    if decorators is not None:
        statement.decorator_list = decorators  # type: ignore[attr-defined]
    return text.removesuffix("\n    pass") if hidden else text


def changes_in(tree: ast.Module) -> Iterator[tuple[Change, Site]]:
    """All changes of a file's functions, in the order of its text."""
    for place, function in functions_in(tree.body):
        begin = block_of(function, function.body)
        yield from _in_function(function, Site(function, place, function, begin))


def functions_in(
    members: list[ast.stmt], prefix: str = ""
) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """(name with its class, function) of the outermost functions and the methods of a module."""
    for member in members:
        if isinstance(member, ast.ClassDef):
            yield from functions_in(member.body, f"{prefix}{member.name}.")
        elif isinstance(member, FUNCTIONS):
            yield f"{prefix}{member.name}", member


def first_line(block: list[ast.stmt]) -> int:
    """Of a block's first statement that does something."""
    return block[_is_docstring(block[0]) and len(block) > 1].lineno


def block_of(function: ast.FunctionDef | ast.AsyncFunctionDef, block: list[ast.stmt]) -> int:
    """Where a block of a function begins: lines below its `def`, so that edits elsewhere in the
    file leave it as it is.
    """
    return first_line(block) - function.lineno


def block_name(file: str, place: str, begin: int) -> str:
    """The name of a block."""
    return f"{file}:{place}+{begin}"


def _is_docstring(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _in_function(function: ast.AST, site: Site) -> Iterator[tuple[Change, Site]]:
    own = Site(site.function, site.place, function, site.block)  # type: ignore[arg-type]
    arguments = function.args  # type: ignore[attr-defined]
    for default in [*arguments.defaults, *filter(None, arguments.kw_defaults)]:
        if isinstance(default, ast.Constant):
            yield from ((change, own) for change in _of_expression(default))
    yield from _in_block(function, "body", site)


def _in_block(parent: ast.AST, field: str, site: Site) -> Iterator[tuple[Change, Site]]:
    block = getattr(parent, field)
    if not block:
        return
    first = block_of(site.function, block)
    for position, statement in enumerate(block):
        if _is_docstring(statement):
            continue
        here = Site(site.function, site.place, statement, first)
        if _may_go(statement):
            gone = ast.copy_location(
                ast.If(ast.copy_location(ast.Constant(0), statement), [statement], []), statement
            )
            without = [*block[:position], gone, *block[position + 1 :]]
            yield Change("statement", parent, field, without, "pass"), here
        yield from _in_statement(statement, here)


def _may_go(statement: ast.stmt) -> bool:
    """A name that is not bound any more would be found by anybody who runs the line."""
    if isinstance(statement, ast.Assign):
        return all(isinstance(t, ast.Attribute | ast.Subscript) for t in statement.targets)
    simple = ast.Expr | ast.AugAssign | ast.Raise | ast.Continue | ast.Break | ast.Delete
    return isinstance(statement, simple)


def _in_statement(statement: ast.stmt, site: Site) -> Iterator[tuple[Change, Site]]:
    if isinstance(statement, ast.ClassDef | ast.Import | ast.ImportFrom | ast.Raise | ast.Assert):
        return
    if isinstance(statement, FUNCTIONS):
        yield from _in_function(statement, site)
        return
    yield from ((change, site) for change in _of_statement(statement))
    for field, value in ast.iter_fields(statement):
        if field in BLOCKS or field in ("annotation", "handlers", "cases"):
            continue
        for node in value if isinstance(value, list) else [value]:
            if isinstance(node, ast.AST):
                yield from ((change, site) for change in _in_expression(node))
    for field in BLOCKS:
        if isinstance(getattr(statement, field, None), list):
            yield from _in_block(statement, field, site)
    for inner in [*getattr(statement, "handlers", ()), *getattr(statement, "cases", ())]:
        yield from _in_block(inner, "body", site)


def _in_expression(node: ast.AST) -> Iterator[Change]:
    if isinstance(node, ast.JoinedStr):
        return
    if isinstance(node, ast.keyword) and node.arg == "strict":
        return  # an assertion like any other: it says that two lengths are the same
    yield from _of_expression(node)
    for child in ast.iter_child_nodes(node):
        yield from _in_expression(child)


# What may be changed


def _of_statement(node: ast.stmt) -> Iterator[Change]:
    if isinstance(node, ast.If | ast.While):
        yield Change("negation", node, "test", _not(node.test))
    if isinstance(node, ast.AugAssign) and type(node.op) in _COMPUTED:
        yield Change("arithmetic", node, "op", _COMPUTED[type(node.op)]())
    plain = isinstance(node, ast.Return) and node.value is not None
    if plain and not isinstance(node.value, ast.Constant):
        # Both values are named, so that the function has the names that it had.
        nothing = ast.IfExp(ast.Constant(1), ast.Constant(None), node.value)
        yield Change("return", node, "value", nothing, "return None")


def _of_expression(node: ast.AST) -> Iterator[Change]:
    if isinstance(node, ast.Compare) and type(node.ops[0]) in _COMPARED:
        yield Change("comparison", node, "ops", [_COMPARED[type(node.ops[0])](), *node.ops[1:]])
    elif isinstance(node, ast.BinOp) and type(node.op) in _COMPUTED and not _of_text(node):
        yield Change("arithmetic", node, "op", _COMPUTED[type(node.op)]())
    elif isinstance(node, ast.BoolOp):
        yield Change("and/or", node, "op", ast.Or() if isinstance(node.op, ast.And) else ast.And())
    elif isinstance(node, ast.IfExp):
        yield Change("negation", node, "test", _not(node.test))
    elif isinstance(node, ast.comprehension):
        for position, test in enumerate(node.ifs):
            tests = [*node.ifs[:position], _not(test), *node.ifs[position + 1 :]]
            yield Change("negation", node, "ifs", tests)
    elif isinstance(node, ast.Constant):
        yield from _of_constant(node)
    elif isinstance(node, ast.Call):
        yield from _of_call(node)


def _of_constant(node: ast.Constant) -> Iterator[Change]:
    if isinstance(node.value, bool):
        yield Change("constant", node, "value", not node.value)
    elif isinstance(node.value, int | float):
        yield Change("constant", node, "value", node.value + 1)
        yield Change("constant", node, "value", node.value - 1)


def _of_call(node: ast.Call) -> Iterator[Change]:
    name = getattr(node.func, "id", getattr(node.func, "attr", ""))
    starred = any(isinstance(value, ast.Starred) for value in node.args)
    if name in _ENDS and isinstance(node.func, ast.Name):
        yield Change("min/max", node.func, "id", _ENDS[name])
    if name == "range" and not starred:
        end = 0 if len(node.args) == 1 else 1
        for operator in (ast.Add(), ast.Sub()):
            other = ast.BinOp(node.args[end], operator, ast.Constant(1))
            yield Change("range", node, "args", [*node.args[:end], other, *node.args[end + 1 :]])
    elif len(node.args) > 1 and not starred and name not in _SYMMETRIC:
        first, second, *rest = node.args
        if ast.dump(first) != ast.dump(second):
            yield Change("arguments", node, "args", [second, first, *rest])


def _not(test: ast.expr) -> ast.expr:
    return test.operand if _is_not(test) else ast.UnaryOp(ast.Not(), test)  # type: ignore


def _is_not(test: ast.expr) -> bool:
    return isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not)


def _of_text(node: ast.BinOp) -> bool:
    sides = (node.left, node.right)
    return any(
        isinstance(side, ast.JoinedStr)
        or (isinstance(side, ast.Constant) and isinstance(side.value, str | bytes))
        for side in sides
    )
