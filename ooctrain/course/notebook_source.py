"""A class out of a notebook, with what it needs and nothing else.

A notebook has plots, experiments and shell commands among its cells, which do not run where a
submission is tried. So of all statements at the top of a cell only those count that the class
needs: its definition, the last one where there are several, and, again and again, whatever binds or
changes a name that is needed so far. The rest is left out, with the magics. A cell in which the
class stands and which is not Python is named, with its line. Sources: the notebook format,
versions 3 and 4 (nbformat.readthedocs.io); IPython, "Magics". Read next: `handed_in.py`.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from typing import Any

_ASSIGNED = re.compile(r"^(\s*)([\w, ]+)=\s*[!%].*$")
_MAGIC = re.compile(r"^(\s*)(?:[!%?].*|[\w.]+\?{1,2}\s*)$")
#: Magics of a whole cell whose text is Python that runs.
_PYTHON_CELLS = ("%%time", "%%timeit", "%%capture", "%%prun", "%%python", "%%python3")
#: Of a line of a cell that may be a magic.
MOST_LETTERS = 1000
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)


def source_of_notebook(content: bytes, name: str) -> str:
    """The source of a class.

    Args:
        content: of the file.
        name: of the class.

    Raises:
        ValueError: it is not a notebook, or no cell defines the class; in one line.
    """
    statements: list[ast.stmt] = []
    broken = ""
    for number, cell in enumerate(_code_cells(content), 1):
        try:
            statements += _parsed(cell)
        except SyntaxError as error:
            if re.search(rf"^class\s+{re.escape(name)}\b", cell, re.MULTILINE):
                broken = f"code cell {number} is not Python: {error.msg} (line {error.lineno})"
        except ValueError as error:  # a null byte
            broken = broken or f"code cell {number} is not Python: {error}"
    if broken or not any(name in _bound(statement) for statement in statements):
        raise ValueError(broken or f"no code cell defines {name}")
    return "\n\n".join(ast.unparse(statement) for statement in _needed(statements, name)) + "\n"


def _code_cells(content: bytes) -> Iterator[str]:
    """The texts of the code cells, in their order. Raises ValueError."""
    try:
        book = json.loads(content.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise ValueError("it is not a notebook: its text is not JSON") from error
    if not isinstance(book, dict) or not ("cells" in book or "worksheets" in book):
        raise ValueError("it is not a notebook: it has no cells")
    sheets = book.get("worksheets")
    parts = [book, *(sheets if isinstance(sheets, list) else [])]
    for part in parts:
        cells = part.get("cells") if isinstance(part, dict) else None
        for cell in cells if isinstance(cells, list) else []:
            if isinstance(cell, dict) and cell.get("cell_type") == "code":
                yield _text(cell.get("source", cell.get("input", "")))


def _text(source: Any) -> str:
    """A cell's text: a string, or its lines."""
    return "".join(map(str, source)) if isinstance(source, list) else str(source)


def _parsed(cell: str) -> list[ast.stmt]:
    """The statements of a cell. Raises SyntaxError: it is not Python without its magics either."""
    first, _, rest = cell.lstrip().partition("\n")
    if first.startswith("%%"):
        words = first.split()
        if words[0] == "%%writefile" and words[-1].lower().endswith(".py"):
            return _parsed(rest)
        return _parsed(rest) if words[0] in _PYTHON_CELLS else []
    try:
        return ast.parse(cell).body
    except SyntaxError:  # a line that begins with % or ! may be the end of a sum, or of a text
        return ast.parse("\n".join(map(_without_magic, cell.split("\n")))).body


def _without_magic(line: str) -> str:
    """A line of Python instead of one of IPython's, and any other as it is."""
    if len(line) > MOST_LETTERS:  # patterns take their time with what nobody has typed
        return line
    if assigned := _ASSIGNED.match(line):
        return f"{assigned[1]}{assigned[2]}= None"
    magic = _MAGIC.match(line)
    return f"{magic[1]}pass" if magic else line


def _needed(statements: list[ast.stmt], name: str) -> list[ast.stmt]:
    """The statements that a class needs, in their order."""
    last = max(n for n, one in enumerate(statements) if name in _bound(one))
    while last and not isinstance(statements[last], ast.ClassDef) and any(
        isinstance(one, ast.ClassDef) and one.name == name for one in statements[:last]
    ):  # fmt: skip
        last -= 1  # what only changes the class is found below
    before = [
        one for n, one in enumerate(statements)
        if not (isinstance(one, ast.ClassDef) and one.name == name and n != last)
    ]  # fmt: skip
    kept: set[int] = {n for n, one in enumerate(before) if _always(one)}
    wanted = {name}
    while True:
        more = {n for n, one in enumerate(before) if n not in kept and wanted & _bound(one)}
        if not more:
            chosen = [before[n] for n in sorted(kept)]
            return sorted(chosen, key=lambda one: not _is_future(one))  # those come first
        kept |= more
        wanted |= {word for n in more for word in _read(before[n])}


def _always(statement: ast.stmt) -> bool:
    """Imports of all names, and of the future."""
    stars = isinstance(statement, ast.ImportFrom) and any(a.name == "*" for a in statement.names)
    return stars or _is_future(statement)


def _is_future(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.ImportFrom) and statement.module == "__future__"


def _bound(statement: ast.stmt) -> set[str]:
    """Names at the top of a module that a statement binds, or whose objects it assigns to."""
    if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return {statement.name}
    if isinstance(statement, (ast.Import, ast.ImportFrom)):
        return {(alias.asname or alias.name).partition(".")[0] for alias in statement.names}
    found: set[str] = set()
    open_nodes: list[ast.AST] = [statement]
    while open_nodes:
        node = open_nodes.pop()
        if isinstance(node, _SCOPES):
            found |= {node.name} if not isinstance(node, ast.Lambda) else set()
            continue
        if isinstance(node, (ast.Name, ast.Attribute, ast.Subscript)) and not isinstance(
            node.ctx, ast.Load
        ):
            found.add(_root(node))
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            found |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
        open_nodes += ast.iter_child_nodes(node)
    return found


def _root(node: ast.expr) -> str:
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def _read(statement: ast.stmt) -> set[str]:
    return {node.id for node in ast.walk(statement) if isinstance(node, ast.Name)}
