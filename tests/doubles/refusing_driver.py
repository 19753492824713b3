"""The strict fake driver, with any of its calls refused on demand.

Code that obtains several things in turn has to give back those it has when the next is refused; a
test sweeps the refusal over all calls until a run completes without meeting it. Read next:
`ooctrain/testing/fake_driver.py`.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from ooctrain.devices.cuda import driver_abi as abi
from ooctrain.devices.cuda.driver import failure
from ooctrain.testing.fake_driver import FakeDriver

#: The calls that obtain something: where a driver refuses in practice.
ACQUIRING = frozenset({
    "cuMemAddressReserve", "cuMemCreate", "cuMemMap", "cuMemSetAccess", "cuMemAlloc_v2",
    "cuMemHostAlloc", "cuStreamCreate", "cuEventCreate",
})  # fmt: skip


@dataclass(slots=True, eq=False)
class _Fault:
    """The call that is going to fail: how many of its kind pass before it."""

    after: int
    status: int
    calls: Collection[str]


class RefusingDriver(FakeDriver):
    """A `FakeDriver` that refuses a call on demand."""

    _fault: _Fault | None = None

    def fail(
        self, after: int, status: int = abi.OUT_OF_MEMORY, calls: Collection[str] = ACQUIRING
    ) -> None:
        """Lets the call after the next `after` of these calls fail once, without effect."""
        self._fault = _Fault(after, status, calls)

    def clear_fault(self) -> bool:
        """Takes back what `fail` ordered; whether it was still to come."""
        fault, self._fault = self._fault, None
        return fault is not None

    def enter(self, call: str) -> None:
        """`FakeDriver.enter`, then the refusal that was ordered."""
        super().enter(call)
        if self._fault is not None and call in self._fault.calls:
            self._fault.after -= 1
            if self._fault.after < 0:
                status, self._fault = self._fault.status, None
                if status in abi.LOST:
                    self.lasting = status
                raise failure(call, status, detail="injected")
