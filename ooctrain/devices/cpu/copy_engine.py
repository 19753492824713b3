"""A copy engine: moves bytes in one long call, at a set bandwidth.

No copy ends sooner than the link would deliver its bytes. The engine keeps the time at which the
link would be free again, which advances by latency + bytes / bandwidth with each copy; it sleeps
until shortly before that time and polls the clock for the rest. A copy that was waiting already is
timed from when the link was free, not from the end of the last sleep, so the mean bandwidth is
exact although sleeps are not. Source: the machine model, transfer = latency + bytes / bandwidth
(paper 002, section 3). Read next: `device.py`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from ooctrain.errors import ConfigError
from ooctrain.step.machine import Link

CopyBytes = Callable[[int, int, int], object]  # (target address, source address, bytes)
_WAKING_S = 60e-6  # sleeps end up to so late: they are made so much shorter, the rest is polled
_LONGEST_SLEEP_S = 0.05  # between two looks at whether the device has stopped
_BACK_TO_BACK_NS = 200_000  # a copy that starts this soon after the last one was waiting for it


@dataclass(frozen=True, slots=True)
class CopyLink:
    """What lies between the arena and the host slab.

    Args:
        kind: "duplex": the directions are independent; "shared": one copy at a time.
        out_bytes_per_us, in_bytes_per_us: bandwidth; None: as fast as the cores copy.
        latency_us: latency of every copy.
        copy_bytes: the copying itself; None: the non-temporal kernel.

    Raises:
        ConfigError: no such kind, or a rate that is not positive.
    """

    kind: Link = "duplex"
    out_bytes_per_us: float | None = None
    in_bytes_per_us: float | None = None
    latency_us: float = 0.0
    copy_bytes: CopyBytes | None = None

    def __post_init__(self) -> None:
        if self.kind not in ("duplex", "shared"):
            raise ConfigError(
                f"link {self.kind!r} is neither 'shared' nor 'duplex'", code="OOC-105",
                fix="duplex where copies in and out run at the same time, else shared",
            )  # fmt: skip
        rates = self.out_bytes_per_us, self.in_bytes_per_us
        if any(rate is not None and not rate > 0 for rate in rates) or self.latency_us < 0:
            raise ConfigError(
                "a link's bandwidth must be positive and its latency not negative", code="OOC-105",
                numbers=f"out {rates[0]}, in {rates[1]} bytes/us, latency {self.latency_us} us",
                fix="--link-bandwidth 1GB, for example; none is as fast as memory",
            )  # fmt: skip


class CopyEngine:
    """One direction of the link (or both, where they share it). Used by one thread.

    Args:
        copy_bytes: the copying itself, without the GIL.
        latency_us: latency of every copy.
        now_ns, sleep: the clock and how to wait for it, in ns and s.
        stopped: whether copies are no longer waited for, so that a slow link delays nothing.
    """

    def __init__(
        self, copy_bytes: CopyBytes, latency_us: float = 0.0, *,
        now_ns: Callable[[], int] = time.perf_counter_ns,
        sleep: Callable[[float], None] = time.sleep,
        stopped: Callable[[], bool] = lambda: False,
    ):  # fmt: skip
        self._copy_bytes, self._now_ns, self._sleep = copy_bytes, now_ns, sleep
        self._stopped = stopped
        self._latency_ns = round(latency_us * 1000)
        self._free_at_ns = 0

    def copy(
        self, target: int, source: int, size_bytes: int, bytes_per_us: float | None = None
    ) -> None:
        """Copies, then stays busy until a link of `bytes_per_us` would be done (None: at once)."""
        now_ns = self._now_ns()
        self._copy_bytes(target, source, size_bytes)
        if bytes_per_us is None and not self._latency_ns:
            return
        late_ns = now_ns - self._free_at_ns
        start_ns = self._free_at_ns if 0 <= late_ns < _BACK_TO_BACK_NS else now_ns
        wire_ns = 0 if bytes_per_us is None else round(size_bytes * 1000 / bytes_per_us)
        self._free_at_ns = start_ns + self._latency_ns + wire_ns
        while (left_ns := self._free_at_ns - self._now_ns()) > 0 and not self._stopped():
            self._sleep(min(max(0.0, left_ns / 1e9 - _WAKING_S), _LONGEST_SLEEP_S))
