"""The law-checker for planners, for the library's own or for a user's.

Random traces of a few bytes show every kind of trouble that a real network can cause. A failing
trace is made small enough to read: one small change after the other (a call less, an input less, no
workspace, fewer bytes) is tried, and kept if the trace still fails, until nothing more can be
removed. Source: delta debugging (Zeller and Hildebrandt 2002), in its greedy form. The result is
the number of examples that the planner passed, or a `PlannerFailure` with the smallest failing
trace that could be found, the list up to the offending instruction, and the rule. Read next:
`planner_laws.py`, `random_traces.py`, `tests/zoo/planner_bugs.py`.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from ooctrain.errors import ConfigError, OoctrainError, unknown_name
from ooctrain.execution.planners import as_planner
from ooctrain.sched.planning.planner import Planner
from ooctrain.sched.schedule import BYTES, Granule
from ooctrain.step.builder import TraceBuilder
from ooctrain.step.trace import Call, Trace, Variable
from ooctrain.testing.describe import describe_list, describe_trace
from ooctrain.testing.planner_cases import Breach, Case
from ooctrain.testing.planner_laws import LAWS, Law
from ooctrain.testing.random_traces import random_machine, random_trace

__all__ = ["LAWS", "PlannerFailure", "check_planner", "random_case"]


class PlannerFailure(OoctrainError, AssertionError):
    """A planner breaks a law.

    Attributes:
        law: name of the law.
        trace: the smallest failing trace that was found.
    """

    default_code = "OOC-291"

    def __init__(self, what: str, *, law: str, trace: Trace, **details: str):
        super().__init__(what, **details)
        self.law, self.trace = law, trace


def check_planner(
    planner: str | Planner | type, *, examples: int = 50, seed: int = 0, time_limit_s: float = 25.0,
    laws: Sequence[str] = (),
) -> int:  # fmt: skip
    """Tries all laws of a planner on random traces.

    Args:
        planner: anything with `name` and `plan`, its class, or its name ("file.py:Class" too).
        examples: number of random cases.
        seed: seed of the cases.
        time_limit_s: after so long no new case is begun.
        laws: names of those that are tried, as in `LAWS`; none: all.

    Returns:
        The number of cases that were tried.

    Raises:
        PlannerFailure: the first law broken, on a trace that was made as small as possible.
        ConfigError: no planner, or no law, is named so.
    """
    planner = as_planner(planner)
    for name in laws:
        if name not in LAWS:
            raise unknown_name("no law of planners is called", name, LAWS, "one of `LAWS`")
    chosen = {name: LAWS[name] for name in laws or LAWS}
    started = time.monotonic()
    for number in range(examples):
        case = random_case(random.Random(f"{seed}/{number}"))
        for name, law in chosen.items():
            problem = _try(law, planner, case)
            if problem is not None:
                raise _report(name, law, planner, case, problem)
        if time.monotonic() - started > time_limit_s:
            return number + 1
    return examples


def random_case(rng: random.Random) -> Case:
    """A trace of up to 12 calls with fixed durations, a machine, a granule."""
    trace = random_trace(
        rng, calls=rng.randint(1, 12), max_bytes=rng.choice([4, 24, 200]), duration_ns=20_000
    )
    machine = random_machine(rng, interference=rng.random() < 0.1)
    granule = rng.choice([BYTES, BYTES, Granule(8), Granule(4, ranges=False)])
    return Case(trace, machine, granule, rng.randrange(2**32))


def _try(law: Law, planner: Planner, case: Case) -> Breach | None:
    # A planner that changes what it is given is caught by its law, and does not spoil the others.
    own_machine = replace(case.machine, profile=dict(case.machine.profile))
    try:
        law(planner, replace(case, trace=replace(case.trace), machine=own_machine))
    except Breach as problem:
        return problem
    except Exception as error:
        return Breach(f"it raises {type(error).__name__}: {error}")
    return None


def _report(name: str, law: Law, planner: Planner, case: Case, problem: Breach) -> PlannerFailure:
    def fails(trace: Trace) -> bool:
        return bool(trace.calls) and _try(law, planner, replace(case, trace=trace)) is not None

    smallest = replace(case, trace=shrink(case.trace, fails))
    again = _try(law, planner, smallest)
    if again is None:  # A planner that is not deterministic: the first failure is all there is.
        smallest, again = case, problem
    lines = describe_trace(smallest.trace, smallest.machine)
    if again.plan is not None:
        lines += describe_list(again.plan.schedule, again.plan.trace, again.index)
    machine = smallest.machine
    return PlannerFailure(
        f"planner {planner.name!r} breaks the law {name!r}: {again}",
        law=name,
        trace=smallest.trace,
        where="\n    ".join(lines),
        numbers=f"{smallest.granule}, link {machine.link}, out {machine.out_bytes_per_us} and in "
        f"{machine.in_bytes_per_us} bytes/us, latency {machine.latency_us} us",
        fix=f"the law says: {(law.__doc__ or '').strip()}",
    )


# Shrinking.

MAX_QUESTIONS = 400


def shrink(
    trace: Trace, fails: Callable[[Trace], bool], max_questions: int = MAX_QUESTIONS
) -> Trace:
    """The smallest trace that small changes lead to.

    Args:
        trace: fails.
        fails: whether a trace does.
        max_questions: how many traces are tried before the best so far is returned.
    """
    questions = 0
    shrunk = True
    while shrunk:
        shrunk = False
        for smaller in _smaller(trace):
            questions += 1
            if questions > max_questions:
                return trace
            if fails(smaller):
                trace, shrunk = smaller, True
                break
    return trace


def _smaller(trace: Trace) -> Iterator[Trace]:
    for call in reversed(trace.calls):
        if not any(trace.readers[out] for out in call.outs):
            yield _rebuild(trace.variables, [c for c in trace.calls if c is not call], trace)
    yield from filter(None, (_without(trace, call) for call in trace.calls))
    for call in trace.calls:
        yield from _simpler_calls(trace, call)
    storage = trace.storage
    for leader in sorted({_leader(trace, storage, v) for v in range(len(storage))}):
        size = trace.variables[leader].nbytes
        for smaller in dict.fromkeys((1, size // 2, size - 1)):
            if 0 < smaller < size:
                group = [v for v in range(len(storage)) if _leader(trace, storage, v) == leader]
                yield _rebuild(_resized(trace, group, smaller), trace.calls, trace)


def _without(trace: Trace, call: Call) -> Trace | None:
    """The trace without a call, whose readers read its first input instead; None where that is
    illegal.
    """
    if not call.ins:
        return None

    def instead(variable: int) -> int:
        return call.ins[0] if variable in call.outs else variable

    others = [
        replace(
            other,
            ins=tuple(map(instead, other.ins)),
            reuse={out: instead(source) for out, source in other.reuse.items()},
        )
        for other in trace.calls
        if other is not call
    ]
    try:
        return _rebuild(trace.variables, others, trace)
    except ConfigError:
        return None


def _simpler_calls(trace: Trace, call: Call) -> Iterator[Trace]:
    def with_call(changed: Call) -> Trace:
        calls = [changed if c is call else c for c in trace.calls]
        return _rebuild(trace.variables, calls, trace)

    if call.workspace_bytes:
        yield with_call(replace(call, workspace_bytes=0))
    for position, variable in enumerate(call.ins):
        if len(call.ins) > 1 and variable not in call.reuse.values():
            yield with_call(replace(call, ins=call.ins[:position] + call.ins[position + 1 :]))
    for out in call.outs:
        if len(call.outs) > 1 and not trace.readers[out] and out not in trace.carries:
            yield with_call(
                replace(
                    call,
                    outs=tuple(v for v in call.outs if v != out),
                    reuse={o: i for o, i in call.reuse.items() if o != out},
                )
            )


def _leader(trace: Trace, storage: Sequence[int], variable: int) -> int:
    """Names the variables that must have one size: those of a storage, and both of a carry."""
    root = storage[variable]
    return storage[trace.carries.get(root, root)]


def _resized(trace: Trace, group: list[int], size_bytes: int) -> list[Variable]:
    return [
        replace(v, nbytes=size_bytes, shape=(size_bytes,)) if v.id in group else v
        for v in trace.variables
    ]


def _rebuild(variables: Sequence[Variable], calls: Sequence[Call], old: Trace) -> Trace:
    """A trace of these calls, with the variables that they touch, renumbered."""
    used = sorted({v for call in calls for v in call.touched()})
    number = {variable: position for position, variable in enumerate(used)}
    builder = TraceBuilder()
    builder.variables = [replace(variables[v], id=number[v]) for v in used]
    for call in calls:
        ins, outs = (tuple(number[v] for v in side) for side in (call.ins, call.outs))
        builder.call(
            call.name, call.op, ins, outs, workspace_bytes=call.workspace_bytes, pure=call.pure,
            reuse={number[o]: number[i] for o, i in call.reuse.items()}, phase=call.phase,
            duration_ns=call.duration_ns,
        )  # fmt: skip
    written = {out for call in calls for out in call.outs}
    builder.carries = {
        number[n]: number[o] for n, o in old.carries.items() if n in written and o in number
    }
    return builder.build()
