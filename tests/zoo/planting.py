"""Planting a bug: a function of the real source with one piece of its text changed.

The changed function is compiled among the names of the real one. So a bug is written as a
difference of a line or two, as in a review. A piece that is no longer in the source is an error,
and does not pass silently. Read next: `list_bugs.py`.
"""

from __future__ import annotations

import inspect
import linecache
import sys
import textwrap
from typing import Any

import pytest

#: Where functions are known by their names: the library and the laws.
ROOMS = ("ooctrain", "properties", "unit", "support", "strangers")


def with_bug(right: Any, piece: str, wrong: str) -> Any:
    """The function `right` with `wrong` in the place of `piece`, decorated as it is."""
    function = inspect.unwrap(right)
    source = textwrap.dedent(inspect.getsource(function))
    found = source.count(piece)
    assert found == 1, f"{piece!r} stands {found} times in {function.__qualname__}, not once"
    text = "from __future__ import annotations\n" + source.replace(piece, wrong)
    place = f"<{function.__qualname__}: {wrong!r} for {piece!r}>"
    # So that inspect finds the changed source, as the emulator of CUDA kernels does.
    linecache.cache[place] = (len(text), None, text.splitlines(keepends=True), place)
    names: dict[str, Any] = {}
    exec(compile(text, place, "exec"), function.__globals__, names)
    return names[function.__name__]


def plant(patch: pytest.MonkeyPatch, owner: Any, name: str, piece: str, wrong: str) -> Any:
    """Puts the changed function in the place of `owner.name`; returns it."""
    planted = with_bug(inspect.getattr_static(owner, name), piece, wrong)
    patch.setattr(owner, name, planted)
    return planted


def plant_everywhere(
    patch: pytest.MonkeyPatch, owner: Any, name: str, piece: str, wrong: str
) -> Any:
    """As `plant`, and in all modules that have imported the function from `owner`."""
    right = getattr(owner, name)
    planted = plant(patch, owner, name, piece, wrong)
    for place, module in list(sys.modules.items()):
        known = place.partition(".")[0] in ROOMS and vars(module).get(name) is right
        if known and right.__module__ == owner.__name__:
            patch.setattr(module, name, planted)
    return planted
