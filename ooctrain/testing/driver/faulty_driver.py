"""A driver whose n-th call that obtains something is refused.

It wraps any `VmmDriver`. Code that obtains several things in turn has to give back those it has
when the next is refused. A test sweeps the refusal over all calls until a run completes without
meeting it, as SQLite's tests do with memory. Read next: `testing/allocator_client.py`.
"""

from __future__ import annotations

from typing import Any

from ooctrain.devices.cuda.driver import failure
from ooctrain.devices.cuda.driver_abi import OUT_OF_MEMORY
from ooctrain.devices.driver_calls import VmmDriver

#: What a driver refuses in practice; what gives something back is not refused.
OBTAINING = ("reserve", "create", "map", "set_access")


class FaultyDriver:
    """Everything goes to the driver inside; the ordered call fails before it gets there.

    Args:
        inner: the driver.
    """

    def __init__(self, inner: VmmDriver):
        self._inner = inner
        self._before: int | None = None  # obtaining calls that still pass

    def refuse(self, after: int) -> None:
        """The obtaining call after the next `after` is refused, once."""
        self._before = after

    def take_back(self) -> bool:
        """Takes the order back; whether it was still to come."""
        waiting, self._before = self._before is not None, None
        return waiting

    def __getattr__(self, name: str) -> Any:
        function = getattr(self._inner, name)
        if name not in OBTAINING or self._before is None:
            return function

        def counted(*arguments: Any) -> Any:
            if self._before == 0:
                self._before = None
                raise failure(name, OUT_OF_MEMORY, detail="injected")
            if self._before is not None:
                self._before -= 1
            return function(*arguments)

        return counted
