"""What a caller gets who leaves an argument out, for every function of the package.

A default is a decision that no other test states: whoever writes the argument does not use it. So
they are written down, a row for each function that has some, and a change of one shows up in a
table that a reviewer reads (`support/known.py` says how to write it anew). That the networks'
factories build the network of their recipe is a law.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator
from dataclasses import MISSING, fields
from pathlib import Path
from types import FunctionType

import pytest
from support import known

import ooctrain
from ooctrain.cli.step_options import Extent, RankOptions, Workload
from ooctrain.cli.train_command import Looking
from ooctrain.execution.settings import Options
from ooctrain.models import MODELS

ROOT = Path(ooctrain.__file__).resolve().parent
#: Values that spell the same on every machine; of others the kind is written.
PLAIN = (int, float, str, bytes, bool, type(None))
ROOMS = sorted({path.relative_to(ROOT).parts[0].removesuffix(".py") for path in ROOT.rglob("*.py")})
#: Their modules are tests of a pytest of their own.
LEFT_OUT = {"laws", "__main__", "tutorials"}


def functions(module) -> Iterator[FunctionType]:
    """Those that a module defines, methods and properties included."""
    for thing in vars(module).values():
        if getattr(thing, "__module__", None) != module.__name__:
            continue
        if inspect.isclass(thing):
            for member in vars(thing).values():
                method = getattr(member, "__func__", getattr(member, "fget", member))
                if callable(method) and isinstance(inspect.unwrap(method), FunctionType):
                    yield inspect.unwrap(method)
        elif callable(thing) and isinstance(inspect.unwrap(thing), FunctionType):
            yield inspect.unwrap(thing)


def spelled(value: object) -> str:
    if isinstance(value, PLAIN):
        return repr(value)
    if isinstance(value, tuple):
        return f"({', '.join(map(spelled, value))})"
    return value.__name__ if isinstance(value, FunctionType | type) else type(value).__name__


def rows(room: str) -> list[tuple[str, str]]:
    found = {}
    for path in sorted([*ROOT.glob(f"{room}.py"), *(ROOT / room).rglob("*.py")]):
        names = path.relative_to(ROOT.parent).with_suffix("").parts
        module = importlib.import_module(".".join(names).removesuffix(".__init__"))
        for function in functions(module):
            if function.__code__.co_filename != str(path):
                continue  # made by a decorator of another library, a dataclass's for example
            given = inspect.signature(function).parameters.values()
            defaults = [f"{p.name}={spelled(p.default)}" for p in given if p.default is not p.empty]
            if defaults:
                found[f"{module.__name__}.{function.__qualname__}"] = ", ".join(defaults)
    return sorted(found.items())


def test_what_holds_of_an_option_that_is_not_given():
    """Options are fields, which the rooms' rows do not have: a trainer's, and those of commands."""
    kinds = (Options, Workload, Extent, RankOptions, Looking)
    known.check_rows("defaults", "options", [
        (kind.__name__, field.name, spelled(field.default)) for kind in kinds
        for field in fields(kind) if field.default is not MISSING
    ])  # fmt: skip


@pytest.mark.parametrize("room", [room for room in ROOMS if room not in LEFT_OUT])
def test_a_default_is_what_it_was(room):
    known.check_rows("defaults", room, rows(room))


@pytest.mark.parametrize("name", MODELS)
def test_a_network_without_arguments_is_that_of_its_recipe(name):
    recipe = MODELS[name]
    wanted = {"num_classes": recipe.classes, "in_channels": recipe.channels}
    given = inspect.signature(recipe.make).parameters.values()
    defaults = {p.name: p.default for p in given if p.name in wanted}
    assert defaults
    assert defaults.items() <= wanted.items()
