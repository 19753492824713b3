"""Calls that change a tensor in place, as calls that change nothing.

`relu_(x)` writes into x: what reads x later reads the result. In a list of calls that never change
what they read, the later reads are of the result by its own name. That is right as long as no
other tensor shares the memory: a view of x, or what x is a view of, would have changed, too. So an
importer asks here, call by call, which result a name stands for by now, and whether a tensor in
the same memory is read later. Read next: `exported.py`, whose results these are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

#: Any object that names one result; equal ones are the same.
Result = Any


class Storages:
    """Which results are the same tensor, and which share memory.

    Args:
        last_read: {result: number of the last call that reads it}; those that none reads are
            missing.
    """

    def __init__(self, last_read: Mapping[Result, int]):
        self._last_read = last_read
        self._tensor: dict[Result, Result] = {}  # {result: the first one of the same tensor}
        self._now: dict[Result, Result] = {}  # {first one: the latest}
        self._memory: dict[Result, list[Result]] = {}  # {first one: first ones in its memory}

    def add(self, result: Result, view_of: Result | None = None) -> None:
        """A new tensor.

        Args:
            view_of: a result whose memory it shares, or may share.
        """
        self._tensor[result] = self._now[result] = result
        self._memory[result] = [] if view_of is None else self._memory[self._tensor[view_of]]
        self._memory[result].append(result)

    def change(self, result: Result, of: Result) -> None:
        """From now on `result` is what the tensor `of` has become."""
        self._tensor[result] = self._tensor[of]
        self._now[self._tensor[of]] = result

    def now(self, result: Result) -> Result:
        """The result that has the tensor's present value."""
        return self._now[self._tensor[result]]

    def made_first(self, result: Result) -> Result:
        """The result for which its memory was made."""
        return self._memory[self._tensor[result]][0]

    def others_are_read(self, result: Result, after: int) -> bool:
        """Whether another tensor in the same memory is read after call number `after`."""
        mine = self._tensor[result]
        others = {first for first in self._memory[mine] if first != mine}
        return any(
            self._last_read.get(each, -1) > after
            for each, first in self._tensor.items() if first in others
        )  # fmt: skip
