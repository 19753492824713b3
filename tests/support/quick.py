"""Many cases, of which `make test` tries a few.

A kernel has several forms (whole quads of channels, single ones), each costs seconds to compile in
the emulator, and one form shows most faults. So the cases for `pytest.mark.parametrize` that are
not quick are marked slow; `make test-all` tries all. Read next: `../unit/cuda/test_batch_norm.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pytest


def quick(cases: Sequence[Any], *chosen: int, names: int = 1) -> list[Any]:
    """The cases in order; all but those numbered `chosen` are slow.

    Args:
        names: of arguments that a case has.
    """
    return [
        pytest.param(*(case if names > 1 else (case,)),
                     marks=() if number in chosen else pytest.mark.slow)
        for number, case in enumerate(cases)
    ]  # fmt: skip


def all_but(cases: Iterable[str], *slow: str) -> list[Any]:
    """The named cases in order; those in `slow` are for `make test-all`."""
    return [pytest.param(case, marks=pytest.mark.slow if case in slow else ()) for case in cases]


def every(cases: Iterable[Any], step: int, names: int = 1) -> list[Any]:
    """The cases in order; all but every so many-th are slow."""
    cases = list(cases)
    return quick(cases, *range(0, len(cases), step), names=names)
