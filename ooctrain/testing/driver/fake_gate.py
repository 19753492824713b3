"""The checks before every call of the fake driver: sticky errors, contexts, ordered failures.

A driver refuses calls for reasons that no argument shows: an earlier kernel has crashed, the thread
has no context, the process is a fork, memory is short. The gate answers with the error that CUDA
would give before it looks at the arguments. Any call can be made to fail, and a test can sweep the
failure over all calls. Read next: `fake_driver.py`.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass

from ooctrain.devices.cuda import driver_abi as abi
from ooctrain.devices.cuda.driver import failure
from ooctrain.errors import DriverError, OoctrainError

#: The calls that obtain something: where a driver refuses in practice.
ACQUIRING = frozenset({
    "cuMemAddressReserve", "cuMemCreate", "cuMemMap", "cuMemSetAccess", "cuMemAlloc_v2",
    "cuMemHostAlloc", "cuStreamCreate", "cuEventCreate",
})  # fmt: skip
#: Calls that need no current context.
_CONTEXT_FREE = frozenset({
    "cuCtxSetCurrent", "cuMemGetAllocationGranularity", "cuMemAddressReserve", "cuMemAddressFree",
    "cuMemCreate", "cuMemRelease",
})  # fmt: skip


class Violation(OoctrainError, AssertionError):
    """Something that a GPU would not report, or only when it is too late."""

    default_code = DriverError.default_code


@dataclass(slots=True, eq=False)
class _Fault:
    """The call that is going to fail: how many of its kind pass before it."""

    after: int
    status: int
    calls: Collection[str]


class Gate:
    """Lets calls pass, counts them, and refuses them for reasons that lie outside of them."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.sticky = abi.SUCCESS
        self._fault: _Fault | None = None
        self._process, self._current = os.getpid(), {threading.get_ident()}

    def make_current(self) -> None:
        """The calling thread has a context from now on."""
        self._current.add(threading.get_ident())

    def order_failure(self, after: int, status: int, calls: Collection[str]) -> None:
        """The call after the next `after` of these calls fails, once."""
        self._fault = _Fault(after, status, calls)

    def clear_fault(self) -> bool:
        """Takes the order back; whether it was still to come."""
        fault, self._fault = self._fault, None
        return fault is not None

    def enter(self, call: str) -> None:
        """Raises DriverError if the call is refused whatever its arguments are."""
        self.calls[call] += 1
        if self.sticky:
            raise failure(call, self.sticky, detail="an earlier error; or the driver is closed")
        if os.getpid() != self._process:
            raise failure(call, abi.NOT_INITIALIZED, detail="this process is a fork")
        if call not in _CONTEXT_FREE and threading.get_ident() not in self._current:
            raise failure(call, abi.INVALID_CONTEXT, detail="make_current() was not called here")
        if self._fault is not None and call in self._fault.calls:
            self._fault.after -= 1
            if self._fault.after < 0:
                status, self._fault = self._fault.status, None
                if status in abi.LOST:
                    self.sticky = status
                raise failure(call, status, detail="injected")
