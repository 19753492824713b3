"""R5: what a plan claims is what comes out. R6: its trace is the original one, as rewritten.

A planner's own numbers are never trusted: the list of a plan is walked and timed again, and each
rule compares, and returns a `Problem` or None. Source: docs/schedule.md, "The verifier's rules".
Read next: `ooctrain/sched/verify.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Real
from typing import Any, NamedTuple

from ooctrain.sched.rules.state import Problem
from ooctrain.sched.schedule import LowerBound, Plan
from ooctrain.step.trace import Trace


class Recomputed(NamedTuple):
    """A plan next to what came out when its list was walked and timed again."""

    plan: Plan
    peak_bytes: int
    host_peak_bytes: int
    makespan_us: float | None


def peak_claim(again: Recomputed) -> Problem | None:
    """The claimed device peak is the recomputed one."""
    return _claim("peak_bytes", again.plan.peak_bytes, again.peak_bytes)


def host_peak_claim(again: Recomputed) -> Problem | None:
    """The claimed host peak is the recomputed one."""
    return _claim("host_peak_bytes", again.plan.host_peak_bytes, again.host_peak_bytes)


def makespan_claim(again: Recomputed) -> Problem | None:
    """The claimed makespan is the one simulated on the planner's machine, to the nanosecond."""
    claimed = again.plan.makespan_us
    if not isinstance(claimed, Real):
        return _no_time("makespan_us", claimed)
    if again.makespan_us is None or abs(claimed - again.makespan_us) < 0.0005:
        return None
    return _claim("makespan_us", claimed, again.makespan_us)


def bound_claim(again: Recomputed) -> Problem | None:
    """No plan beats its own lower bound."""
    bound = again.plan.lower_bound
    if bound is not None and not (
        isinstance(bound, LowerBound) and isinstance(bound.makespan_us, Real)
    ):
        return _no_time("lower_bound", bound)
    if bound is None or bound.makespan_us <= again.plan.makespan_us * (1 + 1e-9) + 0.001:
        return None
    return _claim(f"lower bound ({bound.kind})", bound.makespan_us, again.plan.makespan_us)


def rewrites_known(plan: Plan, rewrites: Mapping[str, Any]) -> Problem | None:
    """Every rewrite that a plan names exists."""
    unknown = [name for name in plan.rewrites if not isinstance(name, str) or name not in rewrites]
    if not unknown:
        return None
    return Problem(f"no rewrite is called {unknown[0]!r}", f"known: {', '.join(sorted(rewrites))}")


def rewrites_declared(plan: Plan, rewritten: Trace) -> Problem | None:
    """The plan's trace is the original one after the rewrites that it names, in their order."""
    if plan.trace.fingerprint == rewritten.fingerprint:
        return None
    names = ", ".join(plan.rewrites) or "no rewrite"
    return Problem(
        f"the plan's trace is not the original one after {names}",
        f"{plan.trace!r} against {rewritten!r}",
        "plan again for this trace, or name all rewrites in their order",
    )


def _no_time(name: str, claimed: object) -> Problem:
    return Problem(f"the plan claims {name} {claimed!r}, which is not a time")


def _claim(name: str, claimed: float, found: float) -> Problem | None:
    if claimed == found:
        return None
    return Problem(
        f"the plan claims {name} {claimed}, but it is {found}",
        fix="fill in the claims from `simulate` on the machine that the plan is for",
    )
