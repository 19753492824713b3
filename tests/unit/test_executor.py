"""The executor on hand-written lists, each short enough to be followed on paper."""

from __future__ import annotations

import ctypes
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from support.hand_lists import (
    AWAY,
    CHUNK,
    HALVES,
    IN_CORE,
    NEW,
    RECOMPUTED,
    SWAPPED,
    A,
    Add,
    G,
    N,
    S,
    W,
    X,
    make_list,
    small_step,
)
from support.quick import quick
from support.session_bench import Bench
from support.work import lines_run

import ooctrain as oc
from ooctrain.alloc.dry_run import DryMemory
from ooctrain.alloc.registry import choose_allocator
from ooctrain.devices.cpu.copy_engine import CopyLink
from ooctrain.devices.cpu.device import CpuDevice
from ooctrain.devices.interface import Debug
from ooctrain.errors import (
    ConfigError,
    OoctrainError,
    OutOfDeviceMemory,
    PlanMismatch,
    ScheduleError,
    ShapeError,
    TransferError,
)
from ooctrain.execution import executor
from ooctrain.execution.executor import Session
from ooctrain.execution.fit import prepare
from ooctrain.execution.placement import Placement, reserved_peak
from ooctrain.execution.program import make_program
from ooctrain.execution.settings import Settings
from ooctrain.rewrite import keeps_bits
from ooctrain.sched.schedule import (
    Free,
    Run,
    SwapIn,
    SwapOut,
)
from ooctrain.step.builder import TraceBuilder
from ooctrain.step.op import Op

ALLOCATORS = ("va:chunk=4KiB", "best-fit")


@dataclass(frozen=True, slots=True)
class Fail(Op):
    def cpu(self, pool, ins, outs, workspace, scalars):
        raise ArithmeticError("this kernel always fails")


PATIENCE_S = 5.0


@pytest.fixture
def bench():
    opened = []

    def open_bench(*args, **options):
        opened.append(Bench(*args, **options))
        return opened[-1]

    yield open_bench
    for one in opened:
        one.close()


@pytest.mark.parametrize("link", ["duplex", "shared"])
@pytest.mark.parametrize("allocator", ALLOCATORS)
@pytest.mark.parametrize("instructions", [IN_CORE, SWAPPED, RECOMPUTED, AWAY])
def test_three_steps_by_hand(bench, instructions, allocator, link):
    start = (((), ((X, 0, S), (W, 0, S)))) if instructions is AWAY else None
    run = bench(instructions, allocator, link=link, start=start)
    w = np.float32(1)
    for number, x in enumerate([0.5, 2.0, -1.0]):
        result = run.step(x)
        gradient = 3 * (np.float32(x) + w)
        w -= np.float32(0.25) * gradient
        assert (result.outputs[G] == gradient).all(), number
        assert (run.session.read(W) == w).all()
        run.allocator.check()


def test_parts_of_a_variable_come_and_go_on_their_own(bench):
    run = bench(HALVES)
    assert (run.step(0.5).outputs[G] == 4.5).all()
    assert run.allocator.stats().peak_granted_bytes == run.session.program.peak_bytes


def test_the_measured_peak_is_the_ledgers_to_the_byte_and_less_than_in_core(bench):
    peaks = {}
    for name, instructions in (("in-core", IN_CORE), ("swapped", SWAPPED)):
        run = bench(instructions, debug=Debug(check_ledger=True))
        timeline = run.step(1.0).timeline
        assert timeline.peak_bytes == run.session.program.peak_bytes
        peaks[name] = timeline.peak_bytes
    # in-core: x, w, a, c, g and the workspace; swapped: a, c, g and the workspace at the most
    assert peaks == {"in-core": 5 * S + CHUNK, "swapped": 3 * S + CHUNK}


def test_the_timeline_tells_what_ran_where_and_how_much_was_copied(bench):
    timeline = bench(SWAPPED).step(1.0).timeline
    named = [(event.stream, event.name) for event in sorted(timeline.events, key=_by_index)]
    assert named == [
        ("H", "x"), ("C", "f.a"), ("D", "a"), ("C", "f.c"), ("D", "w"), ("H", "a"), ("C", "f.g"),
        ("H", "w"), ("C", "update"),
    ]  # fmt: skip
    assert (timeline.bytes_out, timeline.bytes_in) == (2 * S, 3 * S)
    assert timeline.makespan_us >= timeline.busy_us("C") > 0
    assert bench(RECOMPUTED).step(1.0).timeline.recompute_us > 0


def _by_index(event):
    return event.index


def test_a_copy_listed_after_a_run_overlaps_it(bench):
    """Issue runs ahead: the copy out of `a` goes on while `f.c` runs, which is listed after it."""
    run = bench(SWAPPED, out_bytes_per_us=S / 20_000)
    events = {event.index: event for event in run.step(1.0).timeline.events}
    assert events[3].name == "a"
    assert events[4].name == "f.c"
    assert events[4].end_us < events[3].end_us


def test_scalars_reach_the_calls_and_change_nothing_else(bench):
    run = bench(SWAPPED)
    run.step(0.0, lr=0.0)
    assert (run.session.read(W) == 1).all()
    run.step(0.0, lr=0.5)
    assert (run.session.read(W) == -0.5).all()
    result = run.session.run_step({X: np.zeros(N, np.float32)}, {"lr": 0.0, "plus": 10.0})
    assert (result.outputs[G] == 3 * -0.5 + 5 * 10).all()


def test_wanted_values_are_taken_before_they_are_overwritten_and_after_they_are_made(bench):
    run = bench(SWAPPED, wanted=(W, NEW, A, X))
    outputs = run.step(0.5).outputs
    assert (outputs[W] == 1).all()  # read last by the update, which overwrites it
    assert (outputs[NEW] == 1 - 0.25 * 4.5).all()
    assert (outputs[A] == 1.5).all()
    assert (outputs[X] == 0.5).all()


@pytest.mark.parametrize(
    "start",
    [
        (((W, 0, S),), ((X, 0, S),)),
        ((), ((X, 0, S), (W, 0, S))),
        (((W, 0, 2 * CHUNK),), ((X, 0, S), (W, 2 * CHUNK, S))),
        (((W, 0, S),), ((X, 0, S), (W, 0, S))),
    ],
    ids=["device", "host", "half and half", "both"],
)
@pytest.mark.parametrize("piece_bytes", [CHUNK - 4, S])
def test_between_steps_values_are_read_and_written_wherever_they_are(
    bench, monkeypatch, start, piece_bytes
):
    """As a whole, or in pieces, of which the last one is shorter."""
    monkeypatch.setattr(executor, "PIECE_BYTES", piece_bytes)
    on_device = sum(hi - lo for v, lo, hi in start[0])
    on_host = sum(hi - lo for v, lo, hi in start[1] if v == W)
    instructions = list(IN_CORE)
    if on_device < S:
        instructions.insert(0, SwapIn(W, on_device, S))
        instructions += [SwapOut(NEW, on_device, S), Free(NEW, on_device, S)]
    elif on_host:
        instructions.append(SwapOut(NEW, 0, S))
    run = bench(instructions, start=start)
    run.step(0.5)
    assert (run.session.read(W) == 1 - 0.25 * 4.5).all()
    marked = np.arange(N, dtype=np.float32)
    run.session.write(W, marked)
    assert (run.session.read(W) == marked).all()
    assert (run.step(1.0).outputs[G] == 3 * (1 + marked)).all()


def test_an_input_that_starts_on_the_device_is_there_again_in_each_step(bench):
    start = (((X, 0, S), (W, 0, S)), ())
    run = bench(IN_CORE[1:], start=start)
    w = np.float32(1)
    for x in (0.5, 2.0, 3.0):
        gradient = 3 * (np.float32(x) + w)
        assert (run.step(x).outputs[G] == gradient).all()
        w -= np.float32(0.25) * gradient


@pytest.mark.parametrize("poison", [0xFF, 0x7F, 0x00])
@pytest.mark.parametrize("allocator", ALLOCATORS)
@pytest.mark.parametrize("instructions", [SWAPPED, RECOMPUTED])
def test_poison_changes_no_bit(bench, instructions, allocator, poison):
    run = bench(instructions, allocator, debug=Debug(poison=poison, check_ledger=True))
    for x in (0.5, -2.0):
        assert (run.step(x, lr=0.0).outputs[G] == 3 * (np.float32(x) + 1)).all()


def test_an_allocator_that_wastes_more_than_its_rounding_is_named(bench, monkeypatch):
    run = bench(SWAPPED, debug=Debug(poison=0x7F))
    honest = run.allocator.stats
    monkeypatch.setattr(run.allocator, "stats", lambda: replace(honest(), requested_bytes=0))
    with pytest.raises(OoctrainError, match="wastes more than its rounding"):
        run.step(1.0)


class WithoutCopiesIn(CpuDevice):
    """A device on which nothing swapped out ever comes back."""

    def copy_in(self, address, host_offset, size_bytes):
        pass


@pytest.mark.parametrize("allocator", ALLOCATORS)
def test_the_data_really_moves_without_the_copy_in_the_gradient_is_poison(bench, allocator):
    run = bench(SWAPPED, allocator, device=WithoutCopiesIn, debug=Debug(poison=0xFF))
    assert np.isnan(run.step(0.5).outputs[G]).all()


@pytest.mark.parametrize("allocator", ALLOCATORS)
def test_where_nothing_has_been_before_it_is_poison_too(bench, allocator):
    """The memory of a new device is zeros, which would pass for a value."""
    start = ((), ((X, 0, S), (W, 0, S)))
    fails = {"device": WithoutCopiesIn, "debug": Debug(poison=0xFF)}
    run = bench(AWAY, allocator, start=start, **fails)
    assert np.isnan(run.step(0.5).outputs[G]).all()


def test_a_claim_that_is_refused_leaves_nothing_behind():
    trace = small_step()
    choice = choose_allocator("va:chunk=4KiB", 2 * CHUNK)
    allocator = choice.make(DryMemory(2 * CHUNK))
    placement = Placement(make_program(trace, make_list(trace, HALVES), choice), allocator)
    with pytest.raises(OutOfDeviceMemory):
        placement.claim(A, 0, S)
    assert placement.blocks == {}
    assert allocator.close() == []


def test_a_removed_swap_in_is_named_before_anything_wrong_is_computed(bench):
    without = [i for i in SWAPPED if i != SwapIn(A, 0, S)]
    with pytest.raises(ScheduleError, match="'a' is not resident") as caught:
        bench(without).step(0.5)
    assert (caught.value.rule, caught.value.index) == ("R201", 8)


def test_memory_that_is_freed_is_poisoned_and_so_are_scratch_and_host_slots(bench):
    run = bench(SWAPPED, "best-fit", debug=Debug(poison=0x7F))
    run.step(0.5)
    base, live = run.device.memory.linear(), run.session.placement.address(W)
    arena = run.device.read(base, run.device.memory.size_bytes)
    arena[live - base : live - base + S] = 0x7F
    assert (arena[: run.allocator.stats().peak_granted_bytes] == 0x7F).mean() > 0.99
    assert (run.device.host(0, run.device.host_bytes) == 0x7F).sum() >= 2 * S


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (np.zeros(N - 1, np.float32), r"given \(4095,\) float32"),
        (np.zeros(N, np.float64), "given .* float64"),
        (np.zeros((N, 1), np.float32), "wanted"),
    ],
)
def test_a_wrong_input_is_refused_and_the_session_goes_on(bench, value, words):
    run = bench(SWAPPED)
    with pytest.raises(ShapeError, match=words):
        run.session.run_step({X: value}, {"lr": 0.0})
    with pytest.raises(ConfigError, match="no value is given for 'x'"):
        run.session.run_step({}, {"lr": 0.0})
    with pytest.raises(ShapeError):
        run.session.write(W, value)
    assert (run.step(0.5).outputs[G] == 4.5).all()


def test_a_failing_operation_changes_nothing_and_the_session_goes_on(bench):
    run = bench(IN_CORE, trace=small_step(update=Fail()))
    before = run.session.read(W)
    for _ in range(2):
        with pytest.raises(ArithmeticError, match="always fails"):
            run.step(0.5)
        assert np.array_equal(run.session.read(W), before)


def test_each_step_of_a_session_may_be_another_threads(bench):
    run = bench(SWAPPED)
    with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(1) as two:
        try:
            for thread in (one, two, one):
                thread.submit(run.step, 0.5).result(PATIENCE_S)
        except TimeoutError:  # the walker is not the thread that waits: let this one walk
            run.device.streams.attach()
            run.device.streams.abandon(OoctrainError("it hangs"))
            raise AssertionError("a step in another thread hangs") from None
    assert run.session.steps == 3


def test_a_failing_device_ends_the_session(bench):
    run = bench(SWAPPED, device=BrokenLink)
    for act in (lambda: run.step(0.5), lambda: run.step(0.5), lambda: run.session.read(W)):
        with pytest.raises(OoctrainError) as caught:
            act()
    assert isinstance(caught.value.__cause__, TransferError)


class BrokenLink(CpuDevice):
    def copy_out(self, address, host_offset, size_bytes):
        raise OSError("cable")


def test_a_failing_copy_is_a_transfer_error(bench):
    with pytest.raises(TransferError, match="cable"):
        bench(SWAPPED, device=BrokenLink).step(0.5)


def test_parts_are_refused_where_the_allocator_has_none():
    trace = small_step()
    schedule = make_list(trace, HALVES)
    with pytest.raises(PlanMismatch, match="cannot hold by itself") as caught:
        reserved_peak(schedule, trace, choose_allocator("best-fit", 32 * S))
    assert "whole variables only" in str(caught.value)
    with pytest.raises(PlanMismatch, match="granule 8192 B"):
        reserved_peak(schedule, trace, choose_allocator("va:chunk=8KiB", 32 * S))


def test_a_slab_that_is_too_small_is_refused():
    trace = small_step()
    schedule = make_list(trace, SWAPPED)
    device = CpuDevice(8 * S, S, link=CopyLink(copy_bytes=ctypes.memmove))
    allocator = choose_allocator("va:chunk=4KiB", 8 * S).make(device.memory)
    with pytest.raises(PlanMismatch, match="host slab is smaller"):
        Session(trace, schedule, device, allocator, {W: np.ones(N, np.float32)})
    device.close()


def test_the_reserved_peak_includes_the_holes_of_best_fit():
    """x | a | c: freeing a leaves a hole of S that g, of 2 S, cannot use; va can."""
    b = TraceBuilder()
    x = b.variable("x", (N,), kind="input")
    a, c = b.variable("a", (N,)), b.variable("c", (N,))
    g = b.variable("g", (2 * N,))
    b.call("f.a", Add(), (x,), (a,))
    b.call("f.c", Add(), (x,), (c,))
    b.call("f.g", Add(), (c,), (g,))
    trace = b.build()
    instructions = (
        SwapIn(x, 0, S), Run(0), Run(1), Free(x, 0, S), Run(2), Free(a, 0, S), Free(c, 0, S),
        Free(g, 0, 2 * S),
    )  # fmt: skip
    schedule = make_list(trace, instructions, ((), ((x, 0, S),)))
    assert reserved_peak(schedule, trace, choose_allocator("va:chunk=4KiB", 4 * S)) == 4 * S
    assert reserved_peak(schedule, trace, choose_allocator("best-fit", 4 * S)) == 5 * S
    assert reserved_peak(schedule, trace, choose_allocator("best-fit", 5 * S)) == 5 * S


def test_a_closed_session_says_so(bench):
    run = bench(IN_CORE)
    run.session.close()
    with pytest.raises(OoctrainError, match="stopped"):
        run.step(1.0)


def test_an_instruction_runs_a_bounded_number_of_lines():
    """Trivial calls over variables of one chunk: the walk through the list is all there is. Its
    time is measured by `python -m benchmarks overhead`; a clock here would measure who else works.
    """
    b = TraceBuilder()
    variables = [b.variable("x", (8,), kind="input")]
    instructions = [SwapIn(0, 0, 32)]
    for number in range(300):
        variables.append(b.variable(f"v{number}", (8,)))
        b.call(f"f{number}", _Nothing(), (variables[-2],), (variables[-1],), workspace_bytes=64)
        instructions += [Run(number), Free(variables[-2], 0, 32)]
    instructions.append(Free(variables[-1], 0, 32))
    trace = b.build()
    schedule = make_list(trace, instructions)
    for name in ALLOCATORS:
        choice = choose_allocator(name, 1 << 20)
        device = CpuDevice(1 << 20, 64, link=CopyLink(copy_bytes=ctypes.memmove))
        session = Session(trace, schedule, device, choice.make(device.memory), {})
        inputs = {0: np.zeros(8, np.float32)}
        session.run_step(inputs, {})
        lines = lines_run(lambda run=session.run_step, x=inputs: run(x, {})) / len(instructions)
        device.close()
        assert lines < 400, f"{name}: {lines:.0f} lines an instruction"


@dataclass(frozen=True, slots=True)
class _Nothing(Op):
    def cpu(self, pool, ins, outs, workspace, scalars):
        pass


def test_an_arena_reaches_as_far_as_the_blocks_of_an_allocator_that_counts_no_holes():
    """FirstHole keeps the laws and counts only what it granted; holes between blocks are needed
    all the same."""
    strangers = Path(__file__).resolve().parents[1] / "strangers" / "allocators.py"
    trace = oc.trace(oc.models.build("lenet"), (16, 3, 32, 32), threads=1)
    roomy = choose_allocator(f"{strangers}:FirstHole", 1 << 30, binding=False)
    plan = oc.plan(trace, "60%", planner="window", machine="v100-pcie", granule=roomy.granule)
    reserved = reserved_peak(plan.schedule, plan.trace, roomy)
    assert reserved > plan.peak_bytes  # it fragments here
    tight = choose_allocator(f"{strangers}:FirstHole", reserved)
    assert reserved_peak(plan.schedule, plan.trace, tight) == reserved


@pytest.mark.slow
@pytest.mark.parametrize("allocator", quick(["best-fit", "first-fit"], 0))
def test_auto_tiles_nothing_where_an_exact_plan_can_be_placed(allocator):
    """The fastest plans of LeNet do not fit best-fit's holes; others with in-core's bits do."""
    trace = oc.trace(oc.models.build("lenet"), (64, 3, 32, 32), threads=2)
    found = {
        planner: prepare(trace, Settings("80%", planner, allocator, time_limit_s=None, threads=2))
        for planner in ("auto", "belady")
    }
    assert found["auto"].reserved_bytes <= found["auto"].budget_bytes
    assert keeps_bits(found["auto"].plan.rewrites)
    assert found["auto"].plan.makespan_us <= found["belady"].plan.makespan_us
