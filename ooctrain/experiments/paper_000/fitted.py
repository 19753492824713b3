"""Machines on which paper 000's table 1 is computed: the preset, and two that are fitted to it.

What a method keeps of the in-core speed depends on the ratio of the link's rate to the arithmetic's
alone. The paper prints one speed without swapping, 581 images/s at batch 190, and a link that can
be read in two ways: "two NVLinks (each can transfer memory at 50GB/s)" are 50 or 100 GB/s. So the
arithmetic of the preset is made faster until it computes 581 images/s, once beside each link; all
other printed values are then predictions. The fit needs more arithmetic than a V100 has in float32:
the paper's kernels did not compute as a roofline counts.

Source: paper 000, section 5 and table 1. Read next: `table1.py`.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from ooctrain.api import step_trace
from ooctrain.experiments.bisected import bisected
from ooctrain.experiments.paper_000.fragmentation import MACHINE
from ooctrain.sched.planners.keep_all import KeepAll
from ooctrain.sched.simulate import simulate
from ooctrain.step.machine import Machine
from ooctrain.step.presets import GB, machine

#: The paper's best speed without swapping, and the batch at which it was measured.
FITTED_MODEL, FITTED_BATCH, FITTED_IMAGES_PER_S = "resnet50", 190, 581.0
#: The two readings of the link, in GB/s each way.
LINKS_GB_PER_S = (50, 100)
LARGEST_FACTOR = 16.0


def machines() -> tuple[Machine, ...]:
    """The preset, and the fitted machine beside each reading of the link."""
    return machine(MACHINE), *map(fitted, LINKS_GB_PER_S)


@cache
def fitted(link_gb_per_s: int) -> Machine:
    """The preset with another link, and arithmetic that trains in-core as fast as the paper."""
    preset = machine(MACHINE)
    base = replace(
        preset, name=f"fitted, {link_gb_per_s} GB/s", link_bytes_per_us=link_gb_per_s * GB / 1e6
    )
    plan = KeepAll().plan(step_trace(FITTED_MODEL, FITTED_BATCH), preset.device_bytes, preset)
    measured_us = FITTED_BATCH / FITTED_IMAGES_PER_S * 1e6

    def faster(factor: float) -> Machine:
        return replace(base, flops_per_us=preset.flops_per_us * factor)

    def too_slow(factor: float) -> bool:
        return simulate(plan.schedule, plan.trace, faster(factor)).makespan_us > measured_us

    return faster(bisected(1.0, LARGEST_FACTOR, too_slow))
