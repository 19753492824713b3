"""The list as text reads back as the same list, and what cannot be read is refused at its place."""

from __future__ import annotations

import inspect
import random
import re
from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.quick import quick
from support.worked_example import worked_schedule, worked_trace

from ooctrain.errors import ConfigError, Infeasible, ListSyntaxError, ScheduleError
from ooctrain.execution.planners import get_planner, planners
from ooctrain.explain import explain_code, find_code
from ooctrain.sched import instructions
from ooctrain.sched.budget import trace_minimum_bytes, trace_peak_bytes
from ooctrain.sched.drawn_list import EXAMPLE_STEP, drawn_example, example_step
from ooctrain.sched.planning.planner import as_plan
from ooctrain.sched.planning.question import Question
from ooctrain.sched.rules import BEFORE, RULES
from ooctrain.sched.schedule import (
    End,
    Fence,
    Free,
    Granule,
    Run,
    Schedule,
    SwapIn,
    SwapOut,
    default_start,
)
from ooctrain.sched.verify import verify
from ooctrain.step.builder import TraceBuilder
from ooctrain.step.trace import Trace
from ooctrain.testing.check_planner import random_case
from ooctrain.testing.describe import describe_list

TRACE = worked_trace()
AWKWARD = (
    "x",
    "keep",
    "nothing",
    "a b",
    "c[0:4]",
    '"',
    "#1",
    "@2",
    "x#2",
    ";",
    "",
    "\n",
    "W'",
    "\\",
)


def awkward_trace() -> Trace:
    builder = TraceBuilder()
    ids = [builder.variable(name, (64,), "uint8") for name in AWKWARD]
    builder.call("run it", None, (), (ids[0],))
    for name, before, after in zip(AWKWARD[1:], ids, ids[1:], strict=False):
        builder.call(name, None, (before,), (after,))
    return builder.build()


def same_both_ways(schedule: Schedule, trace: Trace) -> None:
    assert Schedule.parse(schedule.text(trace), trace) == schedule
    assert Schedule.parse(str(schedule)) == schedule
    assert Schedule.parse(str(schedule), trace) == schedule


@pytest.mark.parametrize("name", quick(sorted(planners()), 0, 7, 15))
def test_every_planners_list_reads_back_as_it_is(name):
    planner, tried = get_planner(name), 0
    for number in range(4):
        case = random_case(random.Random(f"text {number}"))
        budget = (trace_minimum_bytes(case.trace) + trace_peak_bytes(case.trace)) // 2
        budget = case.granule.granted(max(budget, 1)) * 2
        try:
            given_plan = planner.plan(
                Question(case.trace, budget, case.machine, granule=case.granule)
            )
        except Infeasible:
            continue
        plan = as_plan(given_plan, planner)
        same_both_ways(plan.schedule, plan.trace)
        tried += 1
    assert tried


NUMBERS = st.integers(-3, 20) | st.sampled_from((2**10, 2**20, 3 * 2**30, 2**40))
RANGES = st.tuples(NUMBERS, NUMBERS, NUMBERS)
INSTRUCTIONS = st.one_of(
    st.builds(Run, NUMBERS, st.none() | st.lists(NUMBERS, max_size=3).map(tuple)),
    st.builds(End, NUMBERS),
    st.sampled_from((SwapOut, SwapIn, Free)).flatmap(lambda kind: st.builds(kind, *[NUMBERS] * 3)),
    st.just(Fence()),
)
GRANULES = st.builds(Granule, st.sampled_from((1, 7, 512, 65536)), st.booleans(),
                     st.sampled_from((0, 3, 2048)))  # fmt: skip
STARTS = st.lists(RANGES, max_size=2).map(tuple)
SCHEDULES = st.builds(
    Schedule, st.lists(INSTRUCTIONS, max_size=6).map(tuple), STARTS, STARTS, GRANULES
)


@example(Schedule((Run(0, ()), Free(0, 0, 64), Run(1, (1,)), Run(3, (2, 3)))))
@example(Schedule((SwapOut(4, 0, 2**16), Run(-1), End(99)), ((0, 0, 64),), (), Granule(512)))
@example(Schedule((), *default_start(awkward_trace())))
@settings(max_examples=40)
@given(SCHEDULES)
def test_any_list_legal_or_not_reads_back_as_it_is(schedule):
    same_both_ways(schedule, awkward_trace())


def test_what_is_not_said_of_the_start_is_what_is_usual():
    schedule = worked_schedule(TRACE)
    text = schedule.text(TRACE)
    assert not {"device", "host", "granule"} & set(text.split())
    verify(
        Schedule.parse("# a list\n\n" + text.replace("\n", " ;  ") + " # ends", TRACE), TRACE, 320
    )
    cold = replace(schedule, start_device=(), start_host=((0, 0, 40), (1, 0, 20)))
    assert cold.text(TRACE).startswith("device nothing\nhost x W\nin x\n")


WRONG = {
    "runn f1": (1, 1, "did you mean 'run'"),
    "run f1\n run f9": (2, 6, "did you mean"),
    "run f1; out a[0:6x]": (1, 14, "64K"),
    "# nothing\nin": (2, 3, "run CALL"),
    "free a[3]": (1, 7, "[0:64K]"),
    "run f1 f2": (1, 8, "a line, or a `;`"),
    "fence; device x": (1, 8, "first"),
    "run f1 keep zz": (1, 13, "one of x, W"),
    'out "a': (1, 5, "one of x, W"),
    "] f1": (1, 1, "one of run"),
    "out @99": (1, 5, "[0:64K]"),
    "granule": (1, 8, "run CALL"),
}


@pytest.mark.parametrize("text", WRONG)
def test_what_cannot_be_read_is_refused_at_its_line_and_column(text):
    with pytest.raises(ListSyntaxError, match="OOC-220") as refused:
        Schedule.parse(text, TRACE)
    error = refused.value
    assert (error.line, error.column) == WRONG[text][:2]
    assert WRONG[text][2] in error.fix
    assert f"line {error.line}, column {error.column}: " in error.where
    assert isinstance(error, ConfigError)


def test_names_need_a_trace_and_ids_need_none():
    with pytest.raises(ListSyntaxError, match="names need a trace"):
        Schedule.parse("run f1")
    assert Schedule.parse("run @0").instructions == (Run(0),)


@given(st.text(st.sampled_from('run in out keep x1@0[:64K]#;"\n\\ '), max_size=40))
def test_no_text_is_refused_otherwise(text):
    try:
        schedule = Schedule.parse(text, TRACE)
    except ConfigError:
        return
    same_both_ways(schedule, TRACE)


def test_two_lists_part_at_an_instruction():
    ours = worked_schedule(TRACE)
    items = list(ours.instructions)
    theirs = replace(ours, instructions=(*items[:9], items[10], items[9], *items[11:]))
    assert ours.diff(ours, TRACE) == ""
    assert ours.diff(theirs, TRACE).splitlines() == [
        "the first 9 lines are equal", "       7  run loss", "       8  run b3",
        "  -    9  free b", "  +    9  free gc",
    ]  # fmt: skip
    shorter = replace(ours, instructions=ours.instructions[:-1])
    assert shorter.diff(ours, TRACE).splitlines()[-2:] == [
        "  -   20  (the list ends)", "  +   20  free gW",
    ]  # fmt: skip


def test_a_counterexample_can_be_copied_into_a_list():
    """What the law-checkers print of a list is its text, line by line."""
    schedule = worked_schedule(TRACE)
    lines = describe_list(schedule, TRACE, None)[1:]
    text = "\n".join(line.split(maxsplit=1)[1] for line in lines)
    assert Schedule.parse(text, TRACE) == schedule


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ('or ["nothing"]', "or []"),
        ("(lo, hi)", "(0, hi)"),
    ],
)
def test_the_law_bites(right, wrong, monkeypatch):
    """A text that says less than the list is noticed."""
    names = ("_kept", "spelled_range", "describe_instruction")
    bad: dict = dict(vars(instructions))
    for name in names:
        exec(inspect.getsource(getattr(instructions, name)).replace(right, wrong), bad)
    monkeypatch.setattr(instructions, "describe_instruction", bad["describe_instruction"])
    schedule = Schedule((Run(0, ()), Free(2, 60, 100), Fence()))
    with pytest.raises((AssertionError, ListSyntaxError)):
        same_both_ways(schedule, TRACE)


def example_trace() -> Trace:
    """The step that the rules' examples are lists of, built from its description."""
    builder, ids = TraceBuilder(), dict[str, int]()
    for line in EXAMPLE_STEP.split(";"):
        name, ins, out, _, taken = re.fullmatch(
            r" ?(\w+)\((.+)\) -> ([\w']+)( in place of (\w+))?", line
        ).groups()
        for variable in (*ins.split(), out):
            if variable not in ids:
                kinds = {"x": "input", "W": "param", "W'": "param", "gW": "wgrad"}
                kind = kinds.get(variable, "activation")
                ids[variable] = builder.variable(variable, (64,), "uint8", kind)
        reuse = {ids[out]: ids[taken]} if taken else None
        phase = "update" if name == "update" else "forward"
        builder.call(name, None, tuple(ids[v] for v in ins.split()), (ids[out],), reuse=reuse,
                     pure=name != "update", phase=phase)  # fmt: skip
    builder.carries[ids["W'"]] = ids["W"]
    return builder.build()


@pytest.mark.parametrize("code", [code for code in RULES if code < "R5" and code != "R108"])
def test_the_example_of_a_rule_breaks_it(code):
    trace = example_trace()
    schedule = Schedule.parse(find_code(code)[1].example, trace)
    budget, host = (128 if code == "R301" else None), (64 if code == "R302" else None)
    with pytest.raises(ScheduleError) as broken:
        verify(schedule, trace, budget, host_budget_bytes=host)
    assert broken.value.rule == ("R204" if code == "R303" else code)
    assert EXAMPLE_STEP in explain_code(code)


def marks(trace, device, host):
    """What a drawing says of each variable."""
    return ["#" * (v.id in device) + "h" * (v.id in host) or "." for v in trace.variables]


def places_after(schedule, trace):
    """What stands where at the start and after each instruction, kept in two sets."""
    device = {v for v, _, _ in schedule.start_device}
    host = {v for v, _, _ in schedule.start_host}
    yield marks(trace, device, host)
    for instruction in schedule:
        match instruction:
            case Run(call, keep):
                device -= set(trace.calls[call].reuse.values())
                device |= set(trace.calls[call].outs if keep is None else keep)
            case SwapOut(variable):
                host -= {trace.carries.get(variable), trace.carried_from.get(variable)}
                host |= {variable}
            case SwapIn(variable):
                device |= {variable}
            case Free(variable):
                device -= {variable}
        yield marks(trace, device, host)


@pytest.mark.parametrize("code", [code for code in RULES if code < "R5" and code != "R108"])
def test_the_example_of_a_rule_is_drawn_up_to_the_mistake(code):
    trace = example_trace()
    assert example_step() == trace
    schedule = Schedule.parse(find_code(code)[1].example, trace)
    _, _, drawing = explain_code(code).partition("After each instruction (")
    _, _, heads, *lines = drawing.splitlines()
    shown, said = lines[: lines.index("")], "\n".join(lines[lines.index("") :])
    assert heads.split()[: len(trace.variables)] == [v.name for v in trace.variables]
    rows = [re.split(" {2,}", line.strip()) for line in shown]
    names = [instructions.describe_instruction(item, trace) for item in schedule]
    assert [name for name, *_ in rows] == ["at the start", *names][: len(rows)]
    refused = rows[-1][1:] == ["<- not allowed here"]
    states = rows[: len(rows) - refused]
    for (_, *cells, size), found in zip(states, places_after(schedule, trace), strict=False):
        assert cells == found
        assert int(size) == 64 * sum("#" in cell for cell in cells)
    # The last row is the mistake: an instruction that may not be, or a state that may not be.
    last = {"R106": 0, "R107": 0, "R402": 1}.get(code, len(names))
    assert len(rows) == 1 + last
    assert refused == (code in BEFORE_IT_IS_ISSUED)
    assert f"{'R204' if code == 'R303' else code}: " in said


#: Rules that look at an instruction before it takes place; the example of R303 breaks R204 first.
BEFORE_IT_IS_ISSUED = {code for codes in BEFORE.values() for code in codes} | {"R303"}


def test_what_has_no_list_has_no_drawing():
    assert not any(
        drawn_example(code, find_code(code)[1].example)
        for code in RULES
        if code >= "R5" or code == "R108"
    )


def test_the_page_shows_a_list_that_runs_and_a_difference(repository):
    page = (repository / "docs" / "schedule.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", page, re.S)
    names: dict = {}
    exec(compile(code, "schedule.md", "exec"), names)
    trace, ours = names["trace"], names["schedule"]
    items = (*ours.instructions[:5], Fence(), *ours.instructions[5:])
    assert ours.diff(replace(ours, instructions=items), trace) in page
    with pytest.raises(ListSyntaxError) as refused:
        Schedule.parse("run F0\nrun F9", trace)
    assert str(refused.value) in page
