"""The memory that a step maps anew, and its cost: the part of a step's time that no list shows.

Plans of whole variables find the places of the last step and map nothing (`alloc/virtual.py`).
Plans that move parts of variables get other chunks in each step, and mapping these is work of the
thread that issues the list. Which bytes are mapped depends on the requests alone, so they are
counted by an allocator over memory that does not exist (`DryMemory`). From a trace, a schedule and
the allocator that will hold it come the bytes mapped in each step, and a machine whose instructions
cost that much more. Source: paper 000, section 4, where mapping is the cost of virtual addressing.
Read next: `placement.py`, `machine/memory_speed.py`.
"""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

from ooctrain.alloc.dry_run import DryMemory
from ooctrain.alloc.registry import AllocatorChoice
from ooctrain.execution.placement import Placement, play_step
from ooctrain.execution.program import make_program
from ooctrain.sched.schedule import Schedule
from ooctrain.step.machine import Machine
from ooctrain.step.trace import Trace

#: The first step maps what every plan maps once, the second what has moved since.
SETTLING_STEPS = 2
COUNTED_STEPS = 3


def maps_dearly(machine: Machine, choice: AllocatorChoice) -> bool:
    """Whether it takes longer to map a byte than to copy it to the host, and parts are mapped."""
    return choice.granule.ranges and machine.map_us_per_byte * machine.link_bytes_per_us > 1


class CountingMemory(DryMemory):
    """Memory without bytes that counts how many of them an allocator maps.

    Attributes:
        mapped_bytes: in all map calls so far.
    """

    def __init__(self, size_bytes: int):
        super().__init__(size_bytes)
        self.mapped_bytes = 0

    def map(self, address: int, offset: int, size_bytes: int) -> None:
        """Adds the size to `mapped_bytes`; nothing is mapped."""
        self.mapped_bytes += size_bytes


def mapped_by_step(
    schedule: Schedule, trace: Trace, choice: AllocatorChoice, steps: int
) -> list[int]:
    """Bytes that the allocator maps in each of the first steps.

    What it maps when it is made is not counted.

    Args:
        choice: the allocator, with a budget that the schedule fits into.

    Raises:
        OutOfDeviceMemory: it does not fit.
        PlanMismatch: the schedule moves parts, and the allocator has none.

    Cost: some tens of microseconds an instruction and step where parts are moved.
    """
    memory = CountingMemory(choice.budget_bytes)
    placement = Placement(
        make_program(trace, schedule, choice, align_bytes=None), choice.make(memory)
    )
    counts = [memory.mapped_bytes]
    for _ in range(steps):
        placement.claim_start()
        play_step(placement)
        counts.append(memory.mapped_bytes)
    return [after - before for before, after in pairwise(counts)]


def mapped_bytes(schedule: Schedule, trace: Trace, choice: AllocatorChoice) -> float:
    """Bytes mapped in a step that follows others: the mean over `COUNTED_STEPS`, which differ."""
    found = mapped_by_step(schedule, trace, choice, SETTLING_STEPS + COUNTED_STEPS)
    counted = found[SETTLING_STEPS:]
    return math.fsum(counted) / len(counted)


def with_mapping(
    machine: Machine, schedule: Schedule, trace: Trace, choice: AllocatorChoice
) -> Machine:
    """The machine with the time of a step's mapping added to `issue_us`, in equal shares for all
    instructions of the schedule.

    Args:
        choice: the allocator, with a budget that the schedule fits into.

    Raises:
        OutOfDeviceMemory, PlanMismatch: as `mapped_by_step`.
    """
    if not machine.map_us_per_byte or not len(schedule):
        return machine
    mapping_us = machine.map_us_per_byte * mapped_bytes(schedule, trace, choice)
    return replace(machine, issue_us=machine.issue_us + mapping_us / len(schedule))
