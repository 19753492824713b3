"""Inner functions as users call them: with their arguments checked.

Planners and the composition above call these thousands of times with values that are right, so the
functions themselves check nothing; `oc.resolve_budget` is the one of this module. Functions that
only users call carry `@checked` where they stand. Read next: `step/arguments.py`.
"""

from ooctrain import rewrite
from ooctrain.sched import budget
from ooctrain.sched.bounds import lp_bound
from ooctrain.sched.planning import chain_view as chains
from ooctrain.step import presets
from ooctrain.step.arguments import checked

apply_rewrites = checked(rewrite.apply_rewrites)
chain_view = checked(chains.chain_view)
fluid_bound = checked(lp_bound.fluid_bound)
machine = checked(presets.machine)
resolve_budget = checked(budget.resolve_budget)
trace_minimum_bytes = checked(budget.trace_minimum_bytes)
trace_peak_bytes = checked(budget.trace_peak_bytes)
