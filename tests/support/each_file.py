"""One test for all files: the check of a single file is a function of its path.

Five hundred files times five rules are thousands of tests, and running a test costs more than
reading a file. So the decorator makes one test of such a function and all paths. A file is parsed
once, and its syntax tree is walked once: `nodes` has them by their kinds. All contracts that need
them run in one process (`../conftest.py`). Read next: `../contracts/test_sources.py`.
"""

from __future__ import annotations

import ast
import gc
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

#: Fields of a node that hold names, numbers and marks, no nodes that a contract looks at.
PLAIN = {"arg", "asname", "attr", "ctx", "id", "kind", "level", "module", "name", "op", "ops"}


@cache
def parse(path: Path) -> ast.Module:
    """The syntax tree of a source; nobody may change it."""
    with _out_of_the_collector_s_sight():
        return ast.parse(path.read_text(encoding="utf-8"))


@contextmanager
def _out_of_the_collector_s_sight() -> Iterator[None]:
    """Trees have no circles, and to look for some takes longer than to parse and to walk them."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.freeze()
            gc.enable()


@cache
def _by_kind(tree: ast.AST) -> Mapping[type[ast.AST], Sequence[ast.AST]]:
    with _out_of_the_collector_s_sight():
        return _walked(tree)


def _walked(tree: ast.AST) -> Mapping[type[ast.AST], Sequence[ast.AST]]:
    found, left = defaultdict(list), [tree]
    while left:
        node = left.pop()
        found[type(node)].append(node)
        for field in _fields(type(node)):
            value = getattr(node, field, None)
            if isinstance(value, list):
                left += [inner for inner in value if isinstance(inner, ast.AST)]
            elif isinstance(value, ast.AST):
                left.append(value)
    return found


@cache
def _fields(kind: type[ast.AST]) -> tuple[str, ...]:
    """Those that may hold nodes; a constant's value is none."""
    plain = PLAIN | {"value"} if kind is ast.Constant else PLAIN
    return tuple(field for field in kind._fields if field not in plain)


def nodes(tree: ast.AST, *kinds: type[ast.AST]) -> list[Any]:
    """All nodes of these kinds, as `ast.walk` finds them, in no order."""
    return [node for kind in kinds for node in _by_kind(tree).get(kind, ())]


def forget() -> None:
    """Syntax trees of all files are many objects, which slow the tests after these. To look at all
    objects takes a second, so it is left where nothing has been parsed."""
    if not parse.cache_info().currsize:
        return
    parse.cache_clear()
    _by_kind.cache_clear()
    gc.unfreeze()
    gc.collect()
    gc.freeze()


def each_file(paths: Iterable[Path]) -> Callable[[Callable[[Path], None]], Callable[[], None]]:
    """Makes a test of a check of one file; it fails with all files that do not pass."""
    found = list(paths)
    assert found, "there is no file to check"

    def decorate(check: Callable[[Path], None]) -> Callable[[], None]:
        def test() -> None:
            failures = []
            for path in found:
                try:
                    check(path)
                except AssertionError as error:
                    failures.append(f"{path}: {error}")
            assert not failures, "\n".join(failures)

        test.__name__, test.__doc__ = check.__name__, check.__doc__
        return test

    return decorate
