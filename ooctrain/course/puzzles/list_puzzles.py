"""Series a: the list by hand. Step, machine and budget are given; the student writes the list.

The answer is text (docs/schedule.md, "The list as text"). It is proved by the verifier and timed by
the simulator, as every planner's list is. The target is the result of one of the library's
planners, computed when it is requested; the bound is what no list within the budget can beat.
Read next: `../../sched/list_text.py`, `allocator_puzzles.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache, partial

from ooctrain import api
from ooctrain.course.puzzles.attempt import Attempt, Puzzle, Score, Wrong, attempted
from ooctrain.errors import ScheduleError
from ooctrain.report.svg import timelines_svg
from ooctrain.report.waits import waits_of
from ooctrain.sched.schedule import Plan, Schedule
from ooctrain.sched.timeline import Timeline
from ooctrain.step.builder import TraceBuilder
from ooctrain.step.chain import NS_PER_US, Stage, chain, equal_stages
from ooctrain.step.machine import Machine
from ooctrain.step.trace import Trace
from ooctrain.testing.describe import describe_list, describe_trace
from ooctrain.units import Granule

_SHOWN = 4


@dataclass(frozen=True, slots=True)
class ListTask:
    """One puzzle of the series.

    Args:
        step: makes the step.
        budget_bytes: budget of the device.
        link_bytes_per_us, link: how fast a copy is; "duplex" or "shared".
        planner: whose makespan is the target.
        piece_bytes: size of this planner's pieces, few enough to be written by hand.
    """

    step: Callable[[], Trace]
    budget_bytes: int
    link_bytes_per_us: int
    planner: str
    piece_bytes: int = 100
    link: str = "duplex"

    def trace(self) -> Trace:
        """The step."""
        return _built(self.step)

    @property
    def machine(self) -> Machine:
        """The machine that the list runs on."""
        return Machine("toy", 1, 1, link_bytes_per_us=self.link_bytes_per_us, link=self.link)  # type: ignore[arg-type]

    def plan(self) -> Plan:
        """The list that sets the target."""
        return api.plan(
            self.trace(), self.budget_bytes, self.planner, self.machine, Granule(self.piece_bytes),
            rewrites=(),
        )  # fmt: skip

    def __str__(self) -> str:
        """What is given, in words."""
        lines = describe_trace(self.trace(), self.machine)
        plural = "" if self.link_bytes_per_us == 1 else "s"
        rate = f"{self.link_bytes_per_us} byte{plural} a us, {self.link} link"
        return "\n".join([*lines, f"budget {self.budget_bytes} bytes; {rate}"])


@lru_cache(maxsize=16)
def _built(step: Callable[[], Trace]) -> Trace:
    return step()


def uneven_stages() -> Trace:
    """Six stages whose values have different sizes."""
    sizes = [100, 200, 60, 200, 60, 120, 60]
    return chain(sizes, sizes, [10.0] * 6, [20.0] * 6, [0] * 6, [0] * 6)


def skip_connection() -> Trace:
    """Six equal stages; F4 also reads x1, so that x1 has two gradients, which `add` adds."""
    builder = TraceBuilder()

    def value(name: str, kind: str) -> int:
        return builder.variable(name, (100,), "uint8", kind)  # type: ignore[arg-type]

    x = [value(f"x{i}", "activation" if i else "state") for i in range(7)]
    y = [value(f"y{i}", "grad") for i in range(7)]
    side, total = value("s1", "grad"), value("t1", "grad")
    forward = [
        builder.call(
            f"F{i}", Stage(), (x[i], x[1]) if i == 4 else (x[i],), (x[i + 1],),
            duration_ns=10 * NS_PER_US,
        )
        for i in range(6)
    ]  # fmt: skip
    builder.call("loss", Stage(), (x[6],), (y[6],), phase="loss", duration_ns=0)
    for i in reversed(range(6)):
        ins: tuple[int, ...] = (x[i], x[i + 1], y[i + 1])
        outs: tuple[int, ...] = (y[i],)
        if i == 4:
            ins, outs = (x[4], x[1], x[5], y[5]), (y[4], side)
        if i == 0:
            builder.call("add", Stage(), (y[1], side), (total,), reuse={total: y[1]},
                         phase="backward", duration_ns=NS_PER_US)  # fmt: skip
            ins = (x[0], x[1], total)
        builder.call(f"B{i}", Stage(), ins, outs, phase="backward", forward_of=forward[i],
                     duration_ns=20 * NS_PER_US)  # fmt: skip
    return builder.build()


def four_stages() -> Trace:
    """Four equal stages."""
    return equal_stages(4)


def six_stages() -> Trace:
    """Six equal stages."""
    return equal_stages(6)


def eight_stages() -> Trace:
    """Eight equal stages."""
    return equal_stages(8)


TASKS = {
    "a1": ListTask(four_stages, 700, 20, "keep-all"),
    "a2": ListTask(eight_stages, 500, 20, "window"),
    "a3": ListTask(six_stages, 500, 1, "rotor"),
    "a4": ListTask(skip_connection, 600, 20, "belady"),
    "a5": ListTask(uneven_stages, 620, 20, "belady", 20, "shared"),
    "a6": ListTask(six_stages, 650, 4, "belady", 50),
}


def judge(task: ListTask, title: str, answer: object) -> Attempt:
    """Proves and times a list."""
    trace, budget = task.trace(), task.budget_bytes
    best = task.plan()
    target = api.simulate(best.schedule, trace, task.machine)
    wrong, yours = _timed(task, answer)
    rows = {"yours" + ", as far as it is legal" * bool(wrong): yours} if yours else {}
    rows[f"target, by {task.planner}"] = target
    bound = api.lower_bound(trace, budget, task.machine).makespan_us
    numbers = (
        Score("time, us", yours.makespan_us if yours else None, best.makespan_us, bound),
        Score("memory, bytes", yours.peak_bytes if yours else None, budget),
    )
    phases = {call.name: call.phase for call in trace.calls}
    hint = _longest_wait(yours) if yours else ""
    picture = timelines_svg(rows, budget_bytes=budget, phases=phases)
    return Attempt(title, numbers, wrong, hint, picture)


def _timed(task: ListTask, answer: object) -> tuple[str, Timeline | None]:
    """What is wrong with a list, and its timeline as far as it is legal without a budget."""
    trace = task.trace()
    wrong, schedule = attempted(lambda: _read(answer, trace))
    if schedule is None:
        return wrong, None
    legal = schedule
    broken = _broken(schedule, trace, 2 * sum(variable.nbytes for variable in trace.variables))
    if broken is not None and broken.index is not None:
        legal = replace(schedule, instructions=schedule.instructions[: broken.index])
    elif broken is not None and broken.where == "before the step":
        return _shown(broken, schedule, trace), None
    timeline = api.simulate(legal, trace, task.machine)
    broken = broken or _broken(schedule, trace, task.budget_bytes)
    return _shown(broken, schedule, trace) if broken else "", timeline


def _read(answer: object, trace: Trace) -> Schedule:
    if isinstance(answer, str):
        return Schedule.parse(answer, trace)
    if not isinstance(answer, Schedule):
        raise Wrong(f"the answer is a list as text, and it is {answer!r:.60}")
    return answer


def _broken(schedule: Schedule, trace: Trace, budget_bytes: int) -> ScheduleError | None:
    try:
        api.verify(schedule, trace, budget_bytes)
    except ScheduleError as broken:
        return broken
    return None


def _shown(broken: ScheduleError, schedule: Schedule, trace: Trace) -> str:
    """What is wrong, with the lines of the list up to there."""
    lines = [str(broken)]
    if broken.index is not None:
        shown = describe_list(schedule, trace, broken.index)[1:][-_SHOWN:]
        lines += ["  the list up to there:", *(f"  {line}" for line in shown)]
    return "\n".join(lines).replace("\n", "\n  ")


def _longest_wait(timeline: Timeline) -> str:
    waits = waits_of(timeline)
    if not waits:
        return ""
    longest = waits[0]
    why = f", for the {longest.reason}" if longest.reason else ""
    call = longest.call or "the end"
    until = f"until {longest.until_us:g} us{why}"
    return f"the longest wait: {call} waits {longest.length_us:g} us, {until}"


TITLES = {
    "a1": "A list", "a2": "Swap in time", "a3": "Compute it again", "a4": "A skip connection",
    "a5": "A shared link", "a6": "A part of a value",
}  # fmt: skip


PUZZLES = tuple(
    Puzzle(name, TITLES[name], partial(judge, task), task.__str__) for name, task in TASKS.items()
)
