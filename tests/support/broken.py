"""Tests, run while one function of the library raises: what does not fail, does not test it.

A test that passes on wrong code says nothing about it. The least that a test named beside a
function must do is to notice that the function is gone. So its code is replaced by an exception, of
a class the code of what it does, and of a table all entries are removed. Then the tests run, each
set in a process that is forked from one which has loaded the library, since that takes most of the
time.

    echo '[["ooctrain.units.format_bytes", ["tests/unit/test_units.py"]]]' |
        python -m support.broken

prints a JSON list: for each pair whether a test failed. Read next:
`contracts/test_papers_break.py`.
"""

from __future__ import annotations

import inspect
import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from multiprocessing import get_context
from types import CodeType, FunctionType
from typing import Any

import pytest

WAIT_S = 300
#: A native traceback shows no arguments: these may be arrays in an arena that is closed by then.
OPTIONS = ("-x", "-q", "--tb=native", "-p", "no:cacheprovider")


class BrokenError(Exception):
    """What a broken function raises."""


def found(name: str) -> tuple[Any, Any]:
    """(owner, object) of a dotted name."""
    parts = name.split(".")
    for count in range(len(parts) - 1, 0, -1):
        try:
            owner: Any = import_module(".".join(parts[:count]))
        except ModuleNotFoundError:
            continue
        for attribute in parts[count:-1]:
            owner = getattr(owner, attribute)
        return owner, inspect.getattr_static(owner, parts[-1])
    raise ModuleNotFoundError(name)


def functions_of(owner: Any, what: Any) -> Iterator[FunctionType]:
    """The functions that make up what is named: itself, or what a class does.

    A class that does nothing but hold data is made of the function that makes its instances.
    """
    what = getattr(what, "__func__", getattr(what, "fget", what))  # static methods, properties
    if not inspect.isclass(what):
        plain = inspect.unwrap(what)
        assert isinstance(plain, FunctionType), f"{plain} of {owner} is not a function of Python"
        yield plain
        return
    own = [inspect.unwrap(getattr(v, "__func__", getattr(v, "fget", v)))
           for name, v in vars(what).items() if not name.startswith("_")]  # fmt: skip
    does = [value for value in own if isinstance(value, FunctionType)]
    yield from does or [value for name in ("__init__", "__new__")
                        if isinstance(value := vars(what).get(name), FunctionType)]  # fmt: skip


def raising(code: CodeType) -> CodeType:
    """Code that raises, in the place of other code with the same free variables."""
    names_of = [f"    {name} = None\n" for name in code.co_freevars]
    reads = [f"        {name}\n" for name in code.co_freevars]
    text = "".join(
        (
            "def around():\n", *names_of, "    def broken(*_, **__):\n", *reads,
            "        from support.broken import BrokenError\n        raise BrokenError\n",
            "    return broken\n",
        )
    )  # fmt: skip
    names: dict[str, Any] = {}
    exec(text, names)
    return names["around"]().__code__


def break_it(name: str) -> None:
    """From here on, in this process, what is named does nothing but raise."""
    owner, what = found(name)
    if isinstance(what, Mapping):
        for module in list(sys.modules.values()):
            for key, value in list(vars(module).items()):
                if value is what:
                    setattr(module, key, {})
        return
    broken = list(functions_of(owner, what))
    assert broken, f"{name} has nothing to break"
    for function in broken:
        function.__code__ = raising(function.__code__)


class _Breaker:
    """Breaks when all tests are collected; counts failures."""

    def __init__(self, name: str):
        self.name, self.failed = name, 0

    def pytest_collection_finish(self) -> None:
        break_it(self.name)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.failed += report.failed


def fails(name: str, tests: Iterable[str]) -> bool:
    """Whether one of the tests fails in a process of its own, in which the function raises."""

    def run() -> None:
        sink = os.open(os.devnull, os.O_WRONLY)
        os.dup2(sink, 1)
        os.dup2(sink, 2)
        breaker = _Breaker(name)
        pytest.main([*OPTIONS, *tests], plugins=[breaker])
        os._exit(0 if breaker.failed else 1)

    process = get_context("fork").Process(target=run)
    process.start()
    process.join(WAIT_S)
    if process.exitcode is None:
        process.kill()
    return process.exitcode == 0


if __name__ == "__main__":
    pairs = json.load(sys.stdin)
    for named, _ in pairs:
        found(named)
    json.dump([fails(named, tests) for named, tests in pairs], sys.stdout)
