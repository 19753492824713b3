"""Each rule of the verifier, broken by the smallest list that breaks it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.worked_example import worked_machine, worked_schedule, worked_trace

from ooctrain.errors import ConfigError, ScheduleError
from ooctrain.sched.ledger import peaks, walk
from ooctrain.sched.rules import AFTER, AT_END, AT_START, BEFORE, CLAIMS
from ooctrain.sched.schedule import (
    BYTES,
    End,
    Free,
    Granule,
    Instruction,
    LowerBound,
    Plan,
    Run,
    Schedule,
    SwapIn,
    SwapOut,
)
from ooctrain.sched.simulate import simulate
from ooctrain.sched.verify import RULES, verify
from ooctrain.step.builder import TraceBuilder
from ooctrain.step.trace import Trace

X, W, A, B, W2 = range(5)
SIZE = 16
START = (((W, 0, SIZE),), ((X, 0, SIZE),))


def step() -> Trace:
    """x, W -> a; a -> b, which reuses a; W, b -> W', which reuses W."""
    builder = TraceBuilder()
    for name, kind in (("x", "input"), ("W", "param"), ("a", "activation"), ("b", "activation")):
        builder.variable(name, (SIZE,), "uint8", kind)
    builder.variable("W'", (SIZE,), "uint8", "param")
    builder.call("f", None, (X, W), (A,), workspace_bytes=4, duration_ns=1000)
    builder.call("relu", None, (A,), (B,), reuse={B: A}, duration_ns=1000)
    builder.call(
        "update", None, (W, B), (W2,), reuse={W2: W}, pure=False, phase="update", duration_ns=1000
    )
    builder.carries[W2] = W
    return builder.build()


def move(kind: type, variable: int, lo: int = 0, hi: int = SIZE) -> Instruction:
    return kind(variable, lo, hi)


LEGAL = (
    move(SwapIn, X), Run(0), move(Free, X), Run(1), Run(2), move(Free, B),
)  # fmt: skip


def changed(position: int, *items: Instruction, instead: int = 1) -> tuple[Instruction, ...]:
    """The legal list with `items` in place of `instead` instructions at `position`."""
    return LEGAL[:position] + items + LEGAL[position + instead :]


def schedule(items: tuple[Instruction, ...] = LEGAL, start=START, granule=BYTES) -> Schedule:
    return Schedule(items, *start, granule)


def broken(what: Schedule, budget: int | None = None, **options) -> ScheduleError:
    with pytest.raises(ScheduleError) as caught:
        verify(what, step(), budget, **options)
    return caught.value


#: (rule, position, list): the smallest lists that break each rule of the list itself.
BROKEN: tuple[tuple[str, int | None, tuple[Instruction, ...]], ...] = (
    ("R101", 1, changed(1, Run(7))),
    ("R101", 2, changed(2, move(Free, 9))),
    ("R101", 0, changed(0, Run(-1))),
    ("R101", 2, changed(2, End(7))),
    ("R102", 0, changed(0, move(SwapIn, X, 0, SIZE + 1))),
    ("R102", 0, changed(0, move(SwapIn, X, 8, 8))),
    ("R102", 0, changed(0, move(SwapIn, X, -8, 8))),
    ("R105", 1, changed(1, Run(0, (X,)))),
    ("R105", 1, changed(1, Run(0, (A, A)))),
    ("R201", 1, changed(0, move(SwapIn, X, 0, 8))),
    ("R201", 0, LEGAL[1:]),
    ("R201", 3, changed(2, move(Free, A))),
    ("R202", 4, changed(4, Run(1))),
    ("R203", 2, changed(2, Run(0))),
    ("R203", 3, changed(2, move(Free, A, 0, 8), Run(0, (A,)))),
    ("R204", 3, changed(3, move(SwapOut, X))),
    ("R204", 3, changed(3, move(Free, X, 0, 8))),
    ("R204", 4, changed(4, move(SwapOut, A))),
    ("R205", 1, changed(1, move(SwapIn, X, 4, 8))),
    ("R206", 3, changed(2, move(Free, A), move(SwapIn, A))),
    ("R207", 7, (move(SwapOut, W), *LEGAL[:5], move(SwapOut, W2), move(SwapIn, W))),
    ("R401", None, (*LEGAL[:4], move(Free, B))),
    ("R401", None, ()),
    ("R402", 1, changed(1, Run(1))),
    ("R402", 3, changed(3, Run(2))),
    ("R403", 5, changed(5, Run(2))),
    ("R404", 2, changed(2, End(1))),
    ("R404", 3, changed(2, End(0), End(0))),
    ("R404", 0, (End(0), *LEGAL)),
    ("R405", None, changed(5, move(Free, B), move(Free, W2, 0, 8))),
    ("R407", None, LEGAL[:-1]),
    ("R407", None, changed(2, Run(1), instead=2)),
)  # fmt: skip


def rule_broken(*given, **options) -> str | None:
    """The rule that `verify` finds broken, if any."""
    try:
        verify(*given, **options)
    except ScheduleError as error:
        return error.rule
    return None


def test_the_legal_list_is_legal():
    assert rule_broken(schedule(), step(), 16 * 3 + 4) is None
    assert rule_broken(schedule(), step(), 16 * 3 + 3) == "R301"


@pytest.mark.parametrize(("rule", "index", "items"), BROKEN)
def test_a_broken_list(rule: str, index: int | None, items: tuple[Instruction, ...]):
    error = broken(schedule(items))
    assert (error.rule, error.index) == (rule, index), error
    assert error.code == rule
    assert rule in RULES
    assert str(error).startswith(f"[{rule}]")
    assert error.where


@pytest.mark.parametrize(
    ("rule", "start"),
    [
        ("R106", (((W, 0, SIZE), (A, 0, SIZE)), ((X, 0, SIZE),))),
        ("R106", (((W, 0, SIZE), (W, 8, SIZE)), ((X, 0, SIZE),))),
        ("R106", (((W, 0, SIZE), (9, 0, 1)), ((X, 0, SIZE),))),
        ("R106", (((W, 0, SIZE + 8),), ((X, 0, SIZE),))),
        ("R107", (((W, 0, SIZE),), ())),
        ("R107", (((W, 0, SIZE),), ((X, 8, SIZE),))),
        ("R107", (((W, 0, SIZE),), ((X, 0, 4), (X, 8, SIZE)))),
    ],
)
def test_a_broken_start(rule: str, start):
    error = broken(schedule(start=start))
    assert (error.rule, error.index) == (rule, None)


def test_ranges_are_aligned_to_the_granule():
    items = changed(2, move(Free, X, 0, 4), move(Free, X, 4, SIZE))
    verify(schedule(items), step(), None)
    error = broken(schedule(items, granule=Granule(8)))
    assert (error.rule, error.index) == ("R103", 2)


def test_without_ranges_variables_move_as_a_whole():
    items = changed(2, move(Free, X, 0, 8), move(Free, X, 8, SIZE))
    error = broken(schedule(items, granule=Granule(8, ranges=False)))
    assert (error.rule, error.index) == ("R104", 2)


def test_the_device_budget():
    error = broken(schedule(), 16 * 3 + 3)
    assert (error.rule, error.index) == ("R301", 1)
    assert "51" in error.numbers
    assert broken(schedule(), SIZE - 1).index is None  # the start alone is too much


def test_budgets_count_granted_bytes():
    granule = Granule(64)
    verify(schedule(granule=granule), step(), 64 * 4)
    assert broken(schedule(granule=granule), 64 * 4 - 1).rule == "R301"


def test_the_host_budget():
    out = changed(3, move(SwapOut, A), instead=0)
    assert broken(schedule(out), host_budget_bytes=2 * SIZE - 1).index == 3
    verify(schedule(out), step(), None, host_budget_bytes=2 * SIZE)
    assert broken(schedule(), host_budget_bytes=SIZE - 1).rule == "R302"


def test_the_machine_limits_the_host_unless_the_caller_does():
    small = replace(worked_machine(), host_bytes=SIZE - 1)
    assert broken(schedule(), machine=small).rule == "R302"
    verify(schedule(), step(), None, small, host_budget_bytes=SIZE)


def test_a_start_on_both_sides_asks_for_a_copy_of_the_update():
    both = (((W, 0, SIZE),), ((X, 0, SIZE), (W, 0, SIZE)))
    error = broken(schedule(start=both))
    assert error.rule == "R406"
    verify(schedule((*LEGAL, move(SwapOut, W2)), both), step(), None)


def test_the_message_tells_why_something_is_absent():
    assert "SwapIn" in broken(schedule(LEGAL[1:])).fix
    assert "'f' again" in broken(schedule(changed(3, move(Free, A), Run(1)))).fix
    assert "reads 'a'" in broken(schedule(changed(4, Run(1)))).what


def test_the_message_names_the_first_call_that_does_not_run_and_counts_them():
    error = broken(schedule((*LEGAL[:4], move(Free, B))))
    assert (error.what, error.numbers) == ("'update' never runs", "1 of 3 calls do not run")


def test_zero_bytes_are_always_there():
    builder = TraceBuilder()
    for name in "xyz":
        builder.variable(name, (0,), "uint8", "input" if name == "x" else "activation")
    builder.call("f", None, (0,), (1,))
    builder.call("g", None, (1,), (2,))
    nothing = (SwapIn(0, 0, 0), Run(0), SwapOut(1, 0, 0), Free(1, 0, 0), Run(1), Run(0))
    assert rule_broken(Schedule(nothing), builder.build(), 1) is None


def test_rules_are_all_asked():
    asked = {code for codes in BEFORE.values() for code in codes}
    asked |= {*AT_START, *AFTER, *AT_END, *CLAIMS, "R601", "R602"}
    assert asked == set(RULES)


# ------------------------------------------------------------------ plans


def worked_plan(**claims) -> Plan:
    trace = worked_trace()
    listed = worked_schedule(trace)
    timeline = simulate(listed, trace, worked_machine())
    device, host = peaks(walk(trace, listed), listed)
    plan = Plan(trace, (), listed, timeline.makespan_us, device, host)
    return replace(plan, **claims)


def test_a_plan_that_tells_the_truth():
    plan = worked_plan(lower_bound=LowerBound(74.0, "compute"))
    assert rule_broken(plan, worked_trace(), "0%", worked_machine()) is None
    assert rule_broken(plan, worked_trace(), None) is None


@pytest.mark.parametrize(
    ("rule", "claims"),
    [
        ("R501", {"peak_bytes": 319}),
        ("R502", {"host_peak_bytes": 0}),
        ("R503", {"makespan_us": 87.999}),
        ("R503", {"makespan_us": None}),
        ("R504", {"lower_bound": LowerBound(89.0, "compute")}),
        ("R504", {"lower_bound": LowerBound("89", "compute")}),
        ("R504", {"lower_bound": 74.0}),
    ],
)
def test_a_plan_that_lies(rule: str, claims):
    with pytest.raises(ScheduleError) as caught:
        verify(worked_plan(**claims), worked_trace(), None, worked_machine())
    assert caught.value.rule == rule


def test_without_a_machine_the_makespan_is_not_recomputed():
    wrong = worked_plan(makespan_us=1.0)
    assert rule_broken(wrong, worked_trace(), None) is None
    assert rule_broken(wrong, worked_trace(), None, worked_machine()) == "R503"


def test_rewrites_are_done_again():
    def rename(trace: Trace) -> Trace:
        first = replace(trace.calls[0], name="renamed")
        return replace(trace, calls=(first, *trace.calls[1:]))

    rewrites = {"rename": rename}
    plan = worked_plan(trace=rename(worked_trace()), rewrites=("rename",))
    verify(plan, worked_trace(), 320, rewrites=rewrites)
    with pytest.raises(ScheduleError) as caught:
        verify(replace(plan, rewrites=()), worked_trace(), 320, rewrites=rewrites)
    assert caught.value.rule == "R602"
    with pytest.raises(ScheduleError) as caught:
        verify(replace(plan, rewrites=("shrink",)), worked_trace(), 320, rewrites=rewrites)
    assert caught.value.rule == "R601"
    with pytest.raises(ScheduleError) as caught:
        verify(replace(plan, rewrites=(3,)), worked_trace(), 320)
    assert caught.value.rule == "R601"


def test_a_percentage_is_resolved_after_fuse_and_before_tile():
    def inflate(trace: Trace) -> Trace:
        calls = tuple(replace(c, workspace_bytes=70) if c.name == "b2" else c for c in trace.calls)
        return replace(trace, calls=calls)

    trace = worked_trace()
    listed = worked_schedule(trace)
    device, host = peaks(walk(inflate(trace), listed), listed)
    assert device == 390
    for name, fits in (("fuse", True), ("tile:2x2", False)):
        plan = Plan(inflate(trace), (name,), listed, 88.0, device, host)
        if fits:
            verify(plan, trace, "100%", rewrites={name: inflate})
        else:
            with pytest.raises(ScheduleError) as caught:
                verify(plan, trace, "100%", rewrites={name: inflate})
            assert caught.value.rule == "R301"


def test_a_budget_that_is_none_is_refused():
    with pytest.raises(ConfigError):
        verify(worked_plan(), worked_trace(), "150%")
