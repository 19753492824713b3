"""The law-checker for planners, for the library's own and for a user's.

Random traces of a few bytes show every kind of trouble that a real network can cause, and a failing
trace is made small enough to read. The result is the number of examples that the planner passed, or
a `PlannerFailure` with the smallest failing trace that could be found, the list up to the offending
instruction, and the rule. Read next: `planner_laws.py`, `random_traces.py`, `shrink.py`,
`tests/zoo/planner_bugs.py`.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import replace

from ooctrain.errors import OoctrainError, unknown_name
from ooctrain.execution.planners import as_planner
from ooctrain.sched.planning.planner import Planner
from ooctrain.sched.schedule import BYTES, Granule
from ooctrain.step.trace import Trace
from ooctrain.testing.describe import describe_list, describe_trace
from ooctrain.testing.planner_cases import Breach, Case
from ooctrain.testing.planner_laws import LAWS, Law
from ooctrain.testing.random_traces import random_machine, random_trace
from ooctrain.testing.shrink import shrink

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
        seed: of the cases.
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
