"""The link: copies each way, both at once, and while kernels keep the GPU busy.

Out-of-core training lives on copies that overlap with kernels, and a kernel that fills the GPU's
memory bus all the time is the worst case for a copy. So copies of pinned memory are measured in
GB/s, alone and as the share that is left while kernels run. Read next:
`ooctrain/devices/cuda/link.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.gpu.bench import Bench
from benchmarks.gpu.workbench import Workbench
from ooctrain.devices.cuda.link import LinkRates, measure_link
from ooctrain.layers.relu import ReLU

COPY_BYTES, KERNEL_BYTES, REHEARSED_BYTES = 64 << 20, 1 << 30, 1 << 16
#: Kernels queued before the copies, so that they last longer than these.
KERNELS_QUEUED, REHEARSED_QUEUED = 100, 1


def run(bench: Bench) -> None:
    """Copies beside kernels first, which carry the target; then alone."""
    copied, worked = (REHEARSED_BYTES,) * 2 if bench.small else (COPY_BYTES, KERNEL_BYTES)
    queued = REHEARSED_QUEUED if bench.small else KERNELS_QUEUED
    with Workbench(2 * worked, copied) as workbench:
        bench.check("copies beside kernels", _beside, workbench, copied, worked, queued)
        bench.check("copies", _alone, workbench, copied)


def _alone(workbench: Workbench, copied: int) -> dict[str, float]:
    return _gb_per_s(measure_link(workbench.driver, copied))


def _beside(workbench: Workbench, copied: int, worked: int, queued: int) -> dict[str, Any]:
    """Rates while ReLU reads and writes all the time, and their share of the rates alone."""
    alone = measure_link(workbench.driver, copied)
    queue_one = _busy(workbench, worked)

    def queue() -> None:
        for _ in range(queued):
            queue_one()

    beside = measure_link(workbench.driver, copied, beside=queue)
    still_busy = not workbench.driver.stream_done(workbench.stream)
    shares = (
        beside.out / alone.out, beside.into / alone.into,
        beside.out_beside / alone.out_beside, beside.into_beside / alone.into_beside,
    )  # fmt: skip
    return {**_gb_per_s(beside), "share_of_link": min(shares), "kernels_outlasted": still_busy}


def _busy(workbench: Workbench, size_bytes: int) -> Callable[[], None]:
    """A function that queues one kernel over the whole of the workbench's memory."""
    x, y = (
        workbench.kernels.array(workbench.address + place, (size_bytes // 4,), "float32")
        for place in (0, size_bytes)
    )
    empty = workbench.kernels.array(workbench.address, (0,), "uint8")
    return lambda: workbench.kernels.launch(ReLU(), [x], [y], empty, {})


def _gb_per_s(rates: LinkRates) -> dict[str, float]:
    return {
        "out_gb_s": rates.out / 1e3, "in_gb_s": rates.into / 1e3,
        "out_beside_in_gb_s": rates.out_beside / 1e3, "in_beside_out_gb_s": rates.into_beside / 1e3,
    }  # fmt: skip
