"""Bands through batch norm, as docs/tiling.md states them: VGG-16-BN at 4,096 pixels, predicted.

It computes, for each row of the table in docs/tiling.md, the makespan and the computing time over
the makespan of the in-core step without fusing, so that a reader can check the figures there;
`--pixels N` takes a smaller image. Takes three minutes. Read next: `bench_blocks.py`;
docs/tiling.md, "Cost".

    python -m benchmarks.norm_bands
"""

from __future__ import annotations

import argparse

import ooctrain as oc
from benchmarks.common import table
from ooctrain.sched.budget import trace_peak_bytes
from ooctrain.step.machine import call_durations_ns
from ooctrain.units import format_bytes

BANDS = "bands:16:features.0:features.43"
PLAIN, FUSED = ("share_storage",), ("fuse", "share_storage")
PCIE, NVLINK = "v100-pcie", "v100-32gb-nvlink"
#: (part of the in-core memory, machine, rewrites)
ROWS = (
    (4, PCIE, (BANDS, *PLAIN)), (4, NVLINK, (BANDS, *PLAIN)), (4, PCIE, PLAIN),
    (4, PCIE, (*FUSED, BANDS)), (16, PCIE, PLAIN), (16, PCIE, (BANDS, *PLAIN)),
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pixels", type=int, default=4096)
    pixels = parser.parse_args().pixels
    oc.manual_seed(0)
    model = oc.models.build("vgg16_bn", 10, "cifar")
    trace = oc.trace(model, (1, 3, pixels, pixels), threads=2)
    untiled = oc.plan(trace, 1 << 50, "keep-all", PCIE, rewrites=PLAIN)
    peak = trace_peak_bytes(untiled.trace)
    print(f"in-core without fusing: {format_bytes(peak)}; prefix, machine by machine", flush=True)
    rows = []
    for part, machine, rewrites in ROWS:
        whole = oc.plan(trace, 1 << 50, "keep-all", machine, rewrites=PLAIN).makespan_us
        name = ", ".join(rewrites)
        try:
            plan = oc.plan(trace, peak // part, "prefix", machine, rewrites=rewrites)
        except oc.Infeasible as refused:
            least = format_bytes(refused.minimum_bytes)
            rows.append((f"1/{part}", machine, name, f"needs {least}", ""))
            continue
        computing_us = sum(call_durations_ns(plan.trace, oc.machine(machine))) / 1000
        ratios = (f"{us / whole:.3f}" for us in (plan.makespan_us, computing_us))
        rows.append((f"1/{part}", machine, name, *ratios))
        print(*rows[-1], flush=True)
    titles = ("memory", "machine", "rewrites", "makespan / in-core", "each call once / in-core")
    print(table(titles, rows))


if __name__ == "__main__":
    main()
