"""The verifier's rules: one function each, with the smallest list that breaks it.

A rule asks one question about one instruction, and knows the names, the numbers and the likely fix.
`RULES` lists them all, with the rules that each instruction meets, in order: R1 shape, R2
residency, R3 budget, R4 order and end, R5 claims of a plan, R6 rewrites. `ooctrain explain R203`
prints an entry of this table. Source: docs/schedule.md, "The verifier's rules". Read next:
`shape.py`, then `ooctrain/sched/verify.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from ooctrain.sched.rules import claims, limits, residency, shape
from ooctrain.sched.rules.claims import Recomputed
from ooctrain.sched.rules.state import Problem, State
from ooctrain.sched.schedule import End, Fence, Free, Run, SwapIn, SwapOut

__all__ = [
    "AFTER",
    "AT_END",
    "AT_START",
    "BEFORE",
    "CLAIMS",
    "EXAMPLE_STEP",
    "RULES",
    "Problem",
    "Recomputed",
    "Rule",
    "State",
]


#: The step of all examples; every variable has 64 bytes, x is an input and W a parameter.
EXAMPLE_STEP = (
    "f(x W) -> y; relu(y) -> z in place of y; b(x z) -> gW; update(W gW) -> W' in place of W"
)


class Rule(NamedTuple):
    """A rule of the verifier: title, function, and the smallest bad example."""

    title: str
    check: Callable[..., Problem | None]
    example: str


RULES: Mapping[str, Rule] = {
    "R101": Rule("names exist", shape.known_names, "run @7  # the step has four calls"),
    "R102": Rule("ranges lie inside", shape.range_inside, "out W[0:128]"),
    "R103": Rule("ranges are aligned", shape.range_aligned, "granule 32; out W[0:20]"),
    "R104": Rule("whole variables only", shape.range_whole, "granule 32 whole; out W[0:32]"),
    "R105": Rule("keep names outputs", shape.keep_is_output, "in x; run f keep x"),
    "R106": Rule("start: initial variables", shape.start_is_initial, "device W y; host x"),
    "R107": Rule(
        "start: everything is somewhere", shape.start_is_complete, "device nothing; host x"
    ),
    "R108": Rule(
        "the region is counted",
        shape.region_is_counted,
        "granule 64 whole  # of a step after pin_small; `region 192` is missing",
    ),
    "R201": Rule("inputs are resident", residency.inputs_resident, "in x; run f; free y; run relu"),
    "R202": Rule(
        "no read after reuse", residency.inputs_not_overwritten, "in x; run f; run relu; run relu"
    ),
    "R203": Rule(
        "no output twice", residency.outputs_absent, "in x; run f; run f  # keep nothing is legal"
    ),
    "R204": Rule("SwapOut, Free: resident", residency.range_resident, "free x"),
    "R205": Rule("SwapIn: not resident", residency.range_absent, "in x; in x"),
    "R206": Rule("SwapIn: a host copy", residency.host_copy_listed, "free W; in W  # no `out W`"),
    "R207": Rule(
        "SwapIn: a current host copy",
        residency.host_copy_current,
        "in x; out W; run f; run relu; run b; run update; out W'; in W",
    ),
    "R301": Rule("device budget", limits.device_budget, "in x; run f  # within 128 bytes"),
    "R302": Rule("host budget", limits.host_budget, "out W  # within 64 bytes, which x takes"),
    "R303": Rule("ledgers above zero", limits.ledgers_positive, "free W; free W  # R204 is first"),
    "R401": Rule("every call runs", limits.all_calls_run, "in x"),
    "R402": Rule("first runs in trace order", limits.first_runs_in_order, "run relu; run f"),
    "R403": Rule(
        "only pure calls run again",
        limits.pure_reruns,
        "in x; run f; run relu; run b; run update; run update",
    ),
    "R404": Rule("End follows its Run", limits.end_matches_run, "in x; run f; end f; end f"),
    "R405": Rule(
        "end = start on the device",
        limits.device_end,
        "in x; run f; run relu; run b; run update; free W'",
    ),
    "R406": Rule(
        "end = start on the host",
        limits.host_end,
        "device W; host x W; in x; run f; run relu; run b; run update  # no `out W'`",
    ),
    "R407": Rule(
        "nothing else is left",
        limits.nothing_else_resident,
        "in x; run f; run relu; run b; run update  # x, z and gW stay",
    ),
    "R501": Rule(
        "peak as claimed", claims.peak_claim, "Plan(peak_bytes=64) of a list that peaks at 128"
    ),
    "R502": Rule(
        "host peak as claimed",
        claims.host_peak_claim,
        "Plan(host_peak_bytes=0) of a list that swaps",
    ),
    "R503": Rule(
        "makespan as claimed",
        claims.makespan_claim,
        "Plan(makespan_us=1.0) of a list that takes 2 us",
    ),
    "R504": Rule("not below its bound", claims.bound_claim, "makespan 10 us, lower bound 12 us"),
    "R601": Rule("rewrites exist", claims.rewrites_known, "Plan(rewrites=('shrink',))"),
    "R602": Rule(
        "rewrites as declared", claims.rewrites_declared, "a fused trace with rewrites=()"
    ),
}

_RANGE = ("R101", "R102", "R103", "R104")
#: Which rules an instruction meets before it is issued, in order.
BEFORE: Mapping[type, tuple[str, ...]] = {
    Run: ("R101", "R105", "R402", "R403", "R202", "R201", "R203"),
    End: ("R101", "R404"),
    SwapOut: (*_RANGE, "R204"),
    SwapIn: (*_RANGE, "R205", "R207", "R206"),
    Free: (*_RANGE, "R204"),
    Fence: (),
}
#: Which rules the state must meet after each instruction, and before the first.
AFTER = ("R301", "R302", "R303")
AT_START = ("R106", "R107", "R108")
AT_END = ("R401", "R405", "R406", "R407")
CLAIMS = ("R501", "R502", "R503", "R504")
