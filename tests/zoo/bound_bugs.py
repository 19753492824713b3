"""Planted bugs of the bound for a host without room: rows that say too much, or too little.

`BUGS` is {name: a function that plants it}. A row that says too much makes a bound that some list
beats, or none where there is a list; one that says too little, a bound that is true but lower. So
the law asks both: by exhaustive search, and by how much the bound is above the LP's. Read next:
`test_bound_bugs.py`; `unit/test_recompute_bound.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from unit.test_fluid import computes_nothing_again_while_the_first_call_waits
from unit.test_recompute_bound import (
    never_above_the_least,
    proves_as_much_as_it_did,
    proves_most_where_memory_has_a_price,
    waits_for_what_the_first_call_reads,
)
from zoo.planting import plant

from ooctrain.sched.bounds import lp_bound, recompute
from ooctrain.sched.bounds.lp_bound import FluidProgram
from ooctrain.sched.bounds.recompute import RecomputeProgram, StepValues

Plant = Callable[[pytest.MonkeyPatch], Any]


def _slip(owner: Any, name: str, piece: str, wrong: str) -> Plant:
    return lambda patch: plant(patch, owner, name, piece, wrong)


def law() -> None:
    """No list beats it, and it is as high as it was."""
    assert never_above_the_least(range(20)) > 489  # us above the LP, all together
    proves_as_much_as_it_did()
    proves_most_where_memory_has_a_price()
    waits_for_what_the_first_call_reads()
    computes_nothing_again_while_the_first_call_waits()


BUGS: dict[str, Plant] = {
    "bound: what was there is not found": _slip(
        RecomputeProgram, "_found", "return [(self.there[value, stage - 1], 1.0)]", "return []"
    ),
    "bound: what was there counts as made again": _slip(
        RecomputeProgram, "_remaining", "(there, 1.0), (kept, -1.0), *again", "(there, 0.0)"
    ),
    "bound: what is kept need not have been there": _slip(
        RecomputeProgram, "_remaining",
        "self.program.at_most([(kept, 1.0), (self.there[value, stage - 1], -1.0)])", "pass",
    ),
    "bound: a storage that is taken over is kept": _slip(
        RecomputeProgram, "_kept_columns", "0.0 if lost else 1.0", "1.0"
    ),
    "bound: a first run finds all that it reads": _slip(
        RecomputeProgram, "_reading", "self.program.at_most(_less(there), -1.0)", "pass"
    ),
    "bound: a run again finds all that it reads": _slip(
        RecomputeProgram, "_reading", "[(ran, 1.0), *_less(there)]", "[(ran, 0.0)]"
    ),
    "bound: what is there as a stage ends takes no room": _slip(
        RecomputeProgram, "_memory", "self.program.at_most(held, 1.0 - needs[end].share)", "pass"
    ),
    "bound: what the last call touches counts twice": _slip(
        RecomputeProgram, "_memory", "and v not in needs[end].touched", "and True"
    ),
    "bound: a run again takes no room": _slip(
        RecomputeProgram, "_memory", "(self.run[call, stage], needs[call].share)",
        "(self.run[call, stage], 0.0)",
    ),
    "bound: what a call touches counts twice": _slip(
        RecomputeProgram, "_untouched", "-self.step.size[v]", "-0.0"
    ),
    "bound: outputs on the storage of an input claim room": _slip(
        StepValues, "_need", "if v not in call.reuse", "if True"
    ),
    "bound: workspace counts twice": _slip(
        StepValues, "_need", "call.workspace_bytes / self", "2 * call.workspace_bytes / self"
    ),
    "bound: a source is of no use after its own readers": _slip(
        StepValues, "_add", "*(self.until.get(out, 0) for out in outs)", "0"
    ),
    "bound: impure calls run again": _slip(
        StepValues, "may_run", "call.pure and", "True and"
    ),
    "bound: calls of the backward pass never run again": _slip(
        StepValues, "may_run", "self._backward or", "False or"
    ),
    "bound: an unfinished search proves what it found": _slip(
        recompute, "_proved_us", "found.bound", "found.objective"
    ),
    "bound: the first call waits for all inputs": _slip(
        recompute, "first_wait_us", "if v.id in read and", "if"
    ),
    "bound: the first call waits for its parameters": _slip(
        recompute, "first_wait_us", "and not v.persistent", ""
    ),
    "bound: what a byte costs is what it saves": _slip(
        lp_bound, "_memory_prices", "-sum(", "sum("
    ),
    "bound: a change of stages that proves less is kept": _slip(
        recompute, "dearest_ends", "if found > proved + GAIN", "if found < proved - GAIN"
    ),
    "bound: stages where memory has a price are not tried": _slip(
        recompute, "_choices", "[widest, dearest_ends(step, machine, prices)]", "[widest]"
    ),
    "bound: the LP counts an input that comes twice twice": _slip(
        FluidProgram, "_fits_host", ", *self.inputs_away[call]]", "]"
    ),
    "bound: the LP computes again while the first call waits": _slip(
        FluidProgram, "_write_calls", "if call else []", "if True else []"
    ),
}  # fmt: skip
