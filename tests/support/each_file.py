"""One test for all files: the check of a single file is a function of its path.

Five hundred files times five rules are thousands of tests, and running a test costs more than
reading a file. So the decorator makes one test of such a function and all paths. Read next:
`../contracts/test_sources.py`.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path


@cache
def parse(path: Path) -> ast.Module:
    """The syntax tree of a source; nobody may change it."""
    return ast.parse(path.read_text(encoding="utf-8"))


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
