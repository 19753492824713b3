"""Inner functions as users call them: with their arguments checked.

Planners and what composes them call these functions all the time with values that are right, so
the functions themselves check nothing; `oc.resolve_budget` is the one of this module. Functions
that only users call are `@checked` where they stand. Read next: `step/arguments.py`.
"""

from collections.abc import Callable
from typing import Any, TypeVar

from ooctrain import rewrite
from ooctrain.sched import budget
from ooctrain.sched.bounds import lp_bound
from ooctrain.sched.planning import chain_view as chains
from ooctrain.step import presets
from ooctrain.step.arguments import checked

C = TypeVar("C", bound=Callable[..., Any])


def _door(function: C) -> C:
    """A function with its arguments checked; a pickle finds it here."""
    found = checked(function)
    found.__module__ = __name__
    return found


apply_rewrites = _door(rewrite.apply_rewrites)
chain_view = _door(chains.chain_view)
fluid_bound = _door(lp_bound.fluid_bound)
machine = _door(presets.machine)
resolve_budget = _door(budget.resolve_budget)
trace_minimum_bytes = _door(budget.trace_minimum_bytes)
trace_peak_bytes = _door(budget.trace_peak_bytes)
