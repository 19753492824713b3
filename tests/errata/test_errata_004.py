"""Errata of paper 004 (Split-CNN and HMMS): the formulas and algorithm 1 are run as printed.

The cases are splits of one dimension, and lists of operations with times and sizes. A split is
right when its parts have the sizes that were asked for; an offload plan is right when it frees no
byte that is still on the link. Source: paper 004, sections 3.1, 3.3, 4.2, 4.3, algorithm 1. The
table is docs/errata.md.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pytest
from unit.test_swap_planners import step

from ooctrain.errors import Infeasible
from ooctrain.sched.planners.hmms import Hmms, ends_of_offload
from ooctrain.sched.planning.offloadable import Offloadable, offloadable_storages
from ooctrain.sched.planning.question import Question
from ooctrain.split import boundaries
from ooctrain.step.machine import Machine
from ooctrain.step.rows import Window

UNIT = Machine("unit", 1, 1, link_bytes_per_us=1, link="duplex")

# --------------------------------------------------------------------------------------------------
# -------
# Section 3: splitting
# --------------------------------------------------------------------------------------------------
# -------


@dataclass(frozen=True)
class Split:
    """A window operation over W inputs with the first indices of the parts of output and input."""

    k: int
    s: int
    p_b: int
    p_e: int
    width: int
    outputs: tuple[int, ...]
    inputs: tuple[int, ...]

    @property
    def out_width(self) -> int:
        """Outputs of the whole operation."""
        return (self.width + self.p_b + self.p_e - self.k) // self.s + 1


def random_splits(count: int, seed: int) -> Iterator[Split]:
    """Random operations with k >= s, random output splits and inputs anywhere in [lb, ub]."""
    rng = random.Random(seed)
    while count:
        s = rng.randint(1, 3)
        k = rng.randint(s, 5)
        p_b, p_e, width = rng.randrange(k), rng.randrange(k), rng.randint(12, 40)
        outputs_total = (width + p_b + p_e - k) // s + 1
        parts = rng.randint(2, 3)
        if outputs_total < 3 * parts:
            continue
        cuts = sorted(rng.sample(range(2, outputs_total - 1), parts - 1))
        if any(b - a < 2 for a, b in itertools.pairwise(cuts)):
            continue
        inputs = [rng.randint(max(o * s - p_b, 1), (o - 1) * s + k - p_b) for o in cuts]
        if inputs != sorted(set(inputs)) or inputs[-1] >= width:
            continue
        count -= 1
        # The last part takes what the stride leaves over, so its end is exact, too.
        p_e = (outputs_total - 1) * s + k - width - p_b
        yield Split(k, s, p_b, p_e, width, (0, *cuts), (0, *inputs))


def part_sizes(split: Split, printed: bool) -> list[int]:
    """Outputs of each part with the paddings of section 3.1."""
    ends_in, ends_out = (*split.inputs[1:], split.width), (*split.outputs[1:], split.out_width)
    sizes = []
    for i, (lo, o) in enumerate(zip(split.inputs, split.outputs, strict=True)):
        begin = lo + split.p_b - (o - 1 if printed else o) * split.s if i else split.p_b
        last = i == len(split.inputs) - 1
        end = (
            split.p_e if last else (ends_out[i] - 1) * split.s + split.k - (ends_in[i] + split.p_b)
        )
        sizes.append((ends_in[i] - lo + begin + end - split.k) // split.s + 1)
    return sizes


def ours(split: Split) -> list[int]:
    """Outputs of each part with the paddings of the library."""
    window = Window(split.k, split.s, pad_lo=split.p_b, pad_hi=split.p_e)
    found = boundaries.paddings(window, split.outputs, split.inputs)
    ends = (*split.inputs[1:], split.width)
    return [
        (end - lo + before + behind - split.k) // split.s + 1
        for lo, end, (before, behind) in zip(split.inputs, ends, found, strict=True)
    ]


def test_004_padding_begin() -> None:
    """p_{i,b} = I_i + p_b - (O_i - 1) s makes every part but the first one output too wide; O_i s
    is right.
    """
    right = printed_right = 0
    for split in random_splits(1000, seed=1):
        wanted = [
            b - a for a, b in zip(split.outputs, (*split.outputs[1:], split.out_width), strict=True)
        ]
        assert part_sizes(split, printed=False) == wanted
        assert ours(split) == wanted
        right += 1
        printed_right += part_sizes(split, printed=True) == wanted
    assert (right, printed_right) == (1000, 0)


def test_004_boundary_index() -> None:
    """The text calls O_i the current patch and O_{i+1} the next; (1) and (2) are right between O_i
    - 1 and O_i.
    """
    k, s, p_b, first_output = 3, 1, 1, 4
    window = lambda o: range(o * s - p_b, o * s - p_b + k)  # noqa: E731
    lower, upper = first_output * s - p_b, (first_output - 1) * s + k - p_b
    # First element of the window of the first output of part i.
    assert lower == window(first_output).start
    # Right after the window of the last output of part i - 1.
    assert upper == window(first_output - 1).stop
    assert boundaries.allowed(Window(k, s, pad_lo=p_b, pad_hi=p_b), first_output) == (lower, upper)
    next_first_output = 8  # O_{i+1}, as the text says
    assert lower != window(next_first_output).start


def test_004_kernel_not_smaller_than_stride() -> None:
    """The interval [lb, ub] has length k - s: with k < s there is no split at all."""
    for k, s in [(1, 2), (2, 3)]:
        assert (4 - 1) * s + k < 4 * s
        window = Window(k, s)
        assert boundaries.upper_bound(window, 4) < boundaries.lower_bound(window, 4)
        # The library's part begins at its first window.
        assert boundaries.allowed(window, 4) == (4 * s, 4 * s)
    for k, s in [(2, 2), (3, 2), (3, 1)]:
        assert (4 - 1) * s + k - 4 * s == k - s >= 0
        low, high = boundaries.allowed(Window(k, s), 4)
        assert high - low == k - s


def test_004_stochastic_empty_range() -> None:
    """DiscreteUniform(ceil((i - w) L / N), floor((i + w) L / N)) is empty for short dimensions."""
    width, parts, wiggle = 4, 3, 0.2
    low, high = math.ceil((1 - wiggle) * width / parts), math.floor((1 + wiggle) * width / parts)
    assert low > high
    nearest = round(1 * width / parts)
    assert boundaries.wiggle(1, width, parts, wiggle) == (nearest, nearest)
    assert 0 < nearest < width  # the corrected rule: the nearest boundary where the range is empty


# --------------------------------------------------------------------------------------------------
# -------
# Section 4: storage, offload planning
# --------------------------------------------------------------------------------------------------
# -------


def test_004_separate_splits_are_not_joined() -> None:
    """Boundaries of two maps that are drawn apart, as section 3.3 says, seldom are one boundary, as
    section 3.2 needs; with 2 x 2 pooling between them the cut of the input must be 2 O.
    """
    rng, omega = random.Random(1), 0.2
    ranges = [
        (math.ceil((1 - omega) * rows / 2), math.floor((1 + omega) * rows / 2)) for rows in (32, 16)
    ]
    assert ranges == [(13, 19), (7, 9)]
    drawn = [[rng.randint(*bounds) for bounds in ranges] for _ in range(1000)]
    fitting = sum(cut == 2 * output for cut, output in drawn)
    assert 100 < fitting < 200  # 1/7: for each of 7, 8, 9 one of 13 to 19


def test_004_shared_error_storage() -> None:
    """All error terms of a sum are equal, and may share storage, until one of them is written in
    place.
    """
    error, mask = np.array([1.0, 2.0]), np.array([0.0, 1.0])
    left = right = error.copy()
    left *= mask  # an in-place ReLU backward on one branch
    assert not np.array_equal(right, error)
    left, right = error.copy(), error.copy()  # the storage is split before the first write
    left *= mask
    assert np.array_equal(right, error)


@dataclass(frozen=True)
class Operation:
    """A forward operation: its time, and what it reads; the first is "the" input."""

    time: int
    reads: tuple[str, ...]


def offload_plan(
    operations: Sequence[Operation],
    sizes: dict[str, int],
    bandwidth: int,
    *,
    clamp: bool,
    last_reader: bool,
) -> list[tuple[int, str]]:
    """Algorithm 1: (operation after which it is freed, storage), in order."""
    balance, waiting, plan = 0, [], []
    for index, operation in enumerate(operations):
        for name in operation.reads[: None if last_reader else 1]:
            later = any(name in other.reads for other in operations[index + 1 :])
            if name in sizes and not (last_reader and later):
                waiting.append(name)
                balance -= sizes[name]
        balance += operation.time * bandwidth
        if balance >= 0 or index == len(operations) - 1:
            plan += [(index, name) for name in waiting]
            if waiting:  # as printed, the balance is reset only here
                balance = 0
            waiting = []
        if clamp and not waiting:
            balance = 0
    return plan


def stall(
    operations: Sequence[Operation], sizes: dict[str, int], plan: Sequence[tuple[int, str]]
) -> int:
    """Time that compute waits for the link (bandwidth 1); an offload starts with the operation that
    reads it.
    """
    clock = link = stalled = 0
    done: dict[str, int] = {}
    for index, operation in enumerate(operations):
        for name in operation.reads:
            if name in sizes and name not in done:
                link = max(link, clock) + sizes[name]
                done[name] = link
        clock += operation.time
        for _, name in (p for p in plan if p[0] == index):
            stalled += max(0, done[name] - clock)
            clock = max(clock, done[name])
    return stalled


@pytest.mark.parametrize(("clamp", "expected"), [(False, 49), (True, 0)])
def test_004_balance_clamp(clamp: bool, expected: int) -> None:
    """Link time that passes while nothing is in flight cannot be used later; as printed it is
    banked.
    """
    operations = [Operation(100, ()), Operation(1, ("a",)), Operation(60, ()), Operation(1, ())]
    plan = offload_plan(operations, {"a": 50}, 1, clamp=clamp, last_reader=True)
    assert stall(operations, {"a": 50}, plan) == expected
    # The planner of the library frees where the clamped plan does.
    if clamp:
        trace = step("f1: x -> q", "f2: q -> a", "f3: a -> b", "f4: b -> c", "f5: c -> d",
                     "b1: d a -> g", sizes={"a": 15})  # fmt: skip
        a = Offloadable(trace.variable_by_name["a"].id, 15, True, leaves_with=2, needed_by=5)
        freed = {call: gone for call, gone in ends_of_offload(trace, [a], UNIT).items() if gone}
        assert freed == {3: [a.var]}


def test_004_no_budget() -> None:
    """Algorithm 1 knows no budget: on a slow link all is freed at the last operation, and nothing
    is saved.
    """
    names = [f"x{i}" for i in range(6)]
    operations = [Operation(1, (name,)) for name in names]
    sizes = dict.fromkeys(names, 10)
    everything = offload_plan(operations, sizes, 1, clamp=True, last_reader=True)
    assert {index for index, _ in everything} == {len(operations) - 1}
    assert _peak(operations, sizes, everything) == _peak(operations, sizes, []) == 60
    # Corrected: try ratios of what is offloaded and keep the best that fits the budget.
    peaks = {}
    for count in range(len(names) + 1):
        chosen = dict(list(sizes.items())[:count])
        slow = [Operation(8, op.reads) for op in operations]
        plan = offload_plan(slow, chosen, 1, clamp=True, last_reader=True)
        peaks[count] = _peak(slow, sizes, plan)
    assert min(peaks.values()) < 60
    # The same of the planner: with everything on its way nothing is saved, with less there is room.
    forward = [f"f{i}: v{i - 1} -> v{i}" for i in range(1, 22)]
    backward = [f"b{i}: v{i} g{i + 1} -> g{i}" for i in range(20, 0, -1)]
    trace = step(*forward, "b21: v21 -> g21", *backward)
    slow_link = Machine("slow", 1, 1, link_bytes_per_us=0.25, link="duplex")
    budget = Hmms(ratio=0.0).plan(Question(trace, 1 << 20, slow_link)).peak_bytes - 10
    with pytest.raises(Infeasible):
        Hmms(ratio=1.0).plan(Question(trace, budget, slow_link))
    assert Hmms().plan(Question(trace, budget, slow_link)).notes["ratio"] < 1


def _peak(
    operations: Sequence[Operation], sizes: dict[str, int], plan: Sequence[tuple[int, str]]
) -> int:
    """Largest number of bytes at once; each operation's input appears with it."""
    used = peak = 0
    for index, operation in enumerate(operations):
        used += sum(sizes[name] for name in operation.reads)
        peak = max(peak, used)
        used -= sum(sizes[name] for after, name in plan if after == index)
    return peak


@pytest.mark.parametrize("last_reader", [False, True])
def test_004_input_with_several_readers(last_reader: bool) -> None:
    """A skip is read twice: as printed its storage is offloaded twice and freed before the second
    read.
    """
    operations = [Operation(50, ("skip",)), Operation(50, ("a",)), Operation(50, ("b", "skip"))]
    plan = offload_plan(operations, {"skip": 10, "a": 10}, 1, clamp=True, last_reader=last_reader)
    freed_after = [index for index, name in plan if name == "skip"]
    too_early = any(
        "skip" in later.reads for index in freed_after for later in operations[index + 1 :]
    )
    assert too_early is not last_reader
    trace = step("f1: skip -> a", "f2: a -> b", "f3: b skip -> c", "b3: c b -> gb",
                 "b1: gb skip -> g")  # fmt: skip
    found = {storage.var: storage for storage in offloadable_storages(trace)}
    assert found[trace.variable_by_name["skip"].id].leaves_with == 2
