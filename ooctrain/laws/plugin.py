"""The pytest plug-in: options and fixtures that name the parts on which the laws are tried.

The options `--planner`, `--allocator`, `--rewrite`, `--bands`, `--law` and `--split`, or one file
`adapters.py`, set the fixtures `planner`, `allocator`, `rewrite`, `bands`, `law` and `split`, for
the laws and for a course's own tests. A course hands out tests and this single file to edit: it
says where the student's class is, and everything else may be restructured. Every pytest of an
environment in which the library is installed loads this module, so it imports nothing of the
library until a fixture is requested. Read next: `test_planner.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from ooctrain.sched.planning.planner import Planner

ADAPTERS = "adapters.py"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the options of the laws."""
    group = parser.getgroup("ooctrain", "laws of ooctrain's plug-ins")
    group.addoption("--planner", help="planner to try: name, name:key=value or file.py:Class")
    group.addoption("--allocator", help="allocator to try: name, name:key=value or file.py:Class")
    group.addoption("--rewrite", help="rewrite to try: name, name:4x4 or file.py:name")
    group.addoption("--bands", help="bands by hand to try: file.py:Class")
    group.addoption("--law", help="law of allocators by hand to try: file.py:Class")
    group.addoption("--split", help="split of networks to try: oc.split, or file.py:function")
    group.addoption("--law-examples", type=int, default=50, help="random cases for each law")
    group.addoption("--law-seed", type=int, default=0, help="seed of the random cases")
    group.addoption(
        "--law-briefly", action="store_true",
        help="say which laws of an allocator do not hold, and look for no shortest case",
    )  # fmt: skip
    group.addoption(
        "--law-seconds", type=float, default=3.5,
        help="after so long a planner's law begins no new case; inf: all cases are tried",
    )  # fmt: skip


@pytest.fixture
def planner(request: pytest.FixtureRequest) -> Planner:
    """The planner of `--planner`, else what `planner()` of the nearest adapters.py returns."""
    # Not at the top: see the head of this file.
    from ooctrain.execution.planners import as_planner

    return as_planner(_named(request, "planner"))


@pytest.fixture
def allocator(request: pytest.FixtureRequest) -> Any:
    """The name or class of `--allocator`, else what `allocator()` of adapters.py returns."""
    return _named(request, "allocator")


@pytest.fixture
def rewrite(request: pytest.FixtureRequest) -> Any:
    """The name or function of `--rewrite`, else what `rewrite()` of adapters.py returns."""
    return _named(request, "rewrite")


@pytest.fixture
def bands(request: pytest.FixtureRequest) -> Any:
    """The bands of `--bands`, else what `bands()` of adapters.py returns."""
    return _made(request, "bands")


@pytest.fixture
def law(request: pytest.FixtureRequest) -> Any:
    """The law of `--law`, else what `law()` of adapters.py returns."""
    return _made(request, "law")


@pytest.fixture
def split(request: pytest.FixtureRequest) -> Any:
    """The function of `--split`, else what `split()` of the nearest adapters.py returns."""
    # Not at the top: see the head of this file.
    from ooctrain.split.model import split as own

    named = _named(request, "split")
    if not isinstance(named, str):
        return named
    path, _, name = named.rpartition(":")
    return own if named == "oc.split" else _plugins().load_from_file(path, name)


def expect_kept(
    request: pytest.FixtureRequest, what: str, failure: type[AssertionError],
    check: Callable[..., object],
) -> None:  # fmt: skip
    """Lets a test pass or fail as a check does, with the command that runs it again.

    Args:
        request: pytest's, of that test.
        what: as of `repeat_command`.
        failure: what the check raises where the law does not hold.
        check: is given the number of cases and their seed.
    """
    options = request.config.getoption
    try:
        check(examples=options("law_examples"), seed=options("law_seed"))
        return
    except failure as caught:
        said = str(caught)
    # Outside of any `except`: pytest would print a failure within one twice.
    pytest.fail(f"{said}\n  {repeat_command(request, what)}", pytrace=False)


def repeat_command(request: pytest.FixtureRequest, what: str) -> str:
    """A line with the command that runs one test of the laws again, with the same cases.

    Args:
        request: pytest's, of that test.
        what: "planner", "allocator", "rewrite", "bands", "law" or "split".
    """
    config = request.config
    given = config.getoption(what)
    named = f" --{what} {given}" if given else ""
    return (
        f"repeat: pytest --pyargs ooctrain.laws{named} --law-seed {config.getoption('law_seed')} "
        f"--law-examples {config.getoption('law_examples')} -k {request.node.callspec.id}"
    )


def _plugins() -> ModuleType:
    # Not at the top: see the head of this file.
    from ooctrain import plugins

    return plugins


def _made(request: pytest.FixtureRequest, what: str) -> Any:
    """An object as it is, or of the class in a file."""
    named = _named(request, what)
    if isinstance(named, str):
        return _plugins().resolve(named, {}, group="ooctrain.nobody", what=what)
    return named


def _named(request: pytest.FixtureRequest, what: str) -> Any:
    given = request.config.getoption(what)
    if given:
        return given
    here = request.config.invocation_params.dir
    for folder in (request.path.parent, here, here / "tests"):
        file = Path(folder) / ADAPTERS
        if file.is_file() and f"def {what}(" in file.read_text(encoding="utf-8"):
            return _plugins().load_from_file(str(file), what)()
    pytest.skip(f"nothing to try: give --{what}, or a function {what}() in {ADAPTERS}")
