"""The forward operators of a step as a graph: its edges and its dominators.

The operators of a trace stand in an order in which each comes after those that it reads, so
dominators take one pass: the nearest common one of two operators is found by going up from
whichever is farther along. In the graph, `Operators`, the number of operators stands for the end of
the forward pass and -1 for its beginning. Source: paper 003, listing 1 (OpMeta); Cooper, Harvey and
Kennedy 2001 for the walk. Read next: `sft.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import reduce

from ooctrain.rewrite.tile.dimensions import LoopNest, loop_nest
from ooctrain.step.machine import specs_of
from ooctrain.step.trace import Call, Trace


@dataclass(frozen=True, slots=True)
class Operators:
    """Forward calls, named by their place in the order.

    Args:
        trace: theirs.
        calls: in their order.
        before, after: for each the places of those whose outputs it reads, and of its readers.
        leaves: for each whether its output is also read elsewhere, by the loss for example.
    """

    trace: Trace
    calls: tuple[Call, ...]
    before: tuple[tuple[int, ...], ...]
    after: tuple[tuple[int, ...], ...]
    leaves: tuple[bool, ...]

    def nest(self, place: int) -> LoopNest | None:
        """The dimension map of an operator."""
        call = self.calls[place]
        out = specs_of(self.trace, call.outs)[0]
        return loop_nest(call.op, specs_of(self.trace, call.ins), out)

    def nameable(self, *places: int) -> bool:
        """Whether a rewrite's name can have the names of these operators in it."""
        return not any(":" in self.calls[place].name for place in places)

    def flows(self, variable: int) -> bool:
        """Whether a variable flows through the graph: no parameter and no running statistic."""
        return not self.trace.variables[variable].persistent


def operators_of(trace: Trace) -> Operators:
    """The forward operators of a step; left out are calls that change a state, and those that read
    parameters and running statistics alone: nothing flows through them.

    A step that is tiled already has operators of tiles, which cannot be named as ends of a segment
    (their names have colons): `nameable` says so.
    """
    calls = tuple(
        call for call in trace.calls
        if call.phase == "forward" and call.pure
        and not all(trace.variables[v].persistent for v in call.ins)
    )  # fmt: skip
    place = {call.id: i for i, call in enumerate(calls)}
    before, after = [], []
    leaves = []
    for call in calls:
        producers = {trace.producer[v] for v in call.ins} & place.keys()
        readers = {r for v in call.outs for r in trace.readers[v]}
        others = {r for r in readers - place.keys() if trace.calls[r].phase == "loss"}
        before.append(tuple(sorted(place[p] for p in producers if p is not None)))
        after.append(tuple(sorted(place[r] for r in readers & place.keys())))
        handed_out = not set(trace.outputs.values()).isdisjoint(call.outs)
        leaves.append(bool(others) or handed_out or not after[-1])
    return Operators(trace, calls, tuple(before), tuple(after), tuple(leaves))


def post_dominators(operators: Operators) -> list[int]:
    """For each operator the nearest later one that all ways to the end lead through."""
    end = len(operators.calls)
    found = [end] * end
    for place in reversed(range(end)):
        ways = [*operators.after[place], *([end] if operators.leaves[place] else [])]
        found[place] = _common(ways, lambda p: found[p], nearer=max)
    return found


def dominators(operators: Operators) -> list[int]:
    """For each operator the nearest earlier one that all ways from the begin lead through; -1 where
    that is the begin itself.
    """
    found: list[int] = []
    for place, call in enumerate(operators.calls):
        producers = operators.before[place]
        made = {v for p in producers for v in operators.calls[p].outs}
        enters = any(operators.flows(v) and v not in made for v in call.ins) or not producers
        ways = [*producers, *([-1] if enters else [])]
        found.append(_common(ways, lambda p: found[p], nearer=min))
    return found


def _common(places: Iterable[int], up: Callable[[int], int], nearer: Callable[..., int]) -> int:
    """The nearest operator at or above all of these: the one farther from the top goes up."""
    top = nearer

    def meet(a: int, b: int) -> int:
        while a != b:
            a, b = (up(a), b) if top(a, b) == b else (a, up(b))
        return a

    return reduce(meet, places)
