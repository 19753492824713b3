"""The bytes on the device during each run if nothing moves.

From a sequence of runs come the bytes on the device during each, or the least budget once some gaps
are spent on the host. One walk goes from the last run to the first. A value that a later run reads
is on the device; a value that a run makes was not there before it. So one set of variables and one
sum are enough, and values need not be cut into lives. Planners use it to find what fits, for many
choices of runs; `lower.py` and `bounds/` use it too, and `search/expand.py` does the same compiled.
(`sched/budget.py` needs no runs: each call runs once, so storages will do.) Source: liveness
analysis, as compilers do it (Aho, Sethi and Ullman, Compilers, section 10.6). Read next:
`lower.py`; `chain_runs.py`, which compares many ways to run a chain.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from operator import sub

from ooctrain.errors import ConfigError
from ooctrain.sched.planning.decisions import Gap, runs_once
from ooctrain.sched.schedule import BYTES, Granule, Run
from ooctrain.sched.spans import held_during
from ooctrain.step.trace import Trace


class Liveness:
    """What runs of a step need, for many choices of runs.

    Attributes:
        size: granted bytes of each variable.
        start_bytes: granted bytes of what persists, before the first run.
        workspace, claim_bytes: for each call; it claims workspace, and outputs on storages of their
            own.
        inputs: those that some call reads; until their first read they are on the host.
    """

    def __init__(self, trace: Trace, granule: Granule):
        self.trace, self.granule = trace, granule
        self.size = [granule.granted(variable.nbytes) for variable in trace.variables]
        self.start_bytes = sum(self.size[v] for v in trace.initial if trace.variables[v].persistent)
        self.workspace = [granule.granted(call.workspace_bytes) for call in trace.calls]
        self.claim_bytes = [
            sum(self.size[v] for v in call.outs if v not in call.reuse) + self.workspace[call.id]
            for call in trace.calls
        ]
        self.inputs = frozenset(
            v for v in trace.initial if trace.readers[v] and not trace.variables[v].persistent
        )

    def least_budget(self, runs: Sequence[Run], gaps: Iterable[Gap] = ()) -> tuple[int, str]:
        """(bytes, call): the least budget of some runs, and the call that needs it: the largest of
        `Table.resident_bytes` and `Table.start_bytes`.

        Args:
            runs: in order.
            gaps: which are spent on the host; none of them after `BEFORE_THE_STEP`.

        Raises:
            ConfigError: a run reads what is not alive, a parameter that has been updated for
                example.

        Cost: O(uses by the runs).
        """
        granted = self.granule.granted
        away = ((gap.after + 1, gap.before - 1, granted(gap.hi - gap.lo)) for gap in gaps)
        needs = list(map(sub, self.resident_bytes(runs), held_during(away, len(runs))))
        most = max(needs, default=0)
        if self.start_bytes >= most:
            return self.start_bytes, "the start"
        return most, self.trace.calls[runs[needs.index(most)].call].name

    def resident_bytes(self, runs: Sequence[Run]) -> list[int]:
        """For each run the bytes on the device meanwhile if nothing leaves."""
        size, calls, needs = self.size, self.trace.calls, [0] * len(runs)
        comes_at = self._first_reads_of_inputs(runs)
        wanted = set(self.trace.end_variables.values())
        held = sum(size[v] for v in wanted)
        for position in range(len(runs) - 1, -1, -1):
            run = runs[position]
            call = calls[run.call]
            if call.reuse and not wanted.isdisjoint(call.reuse.values()):
                raise self._not_alive(wanted.intersection(call.reuse.values()))
            for v in call.outs if run.keep is None else run.keep:
                if v in wanted:
                    wanted.remove(v)
                    held -= size[v]
            for v in call.ins:
                if v not in wanted:
                    wanted.add(v)
                    held += size[v]
            needs[position] = held + self.claim_bytes[run.call]
            if position in comes_at:
                wanted -= comes_at[position]
                held -= sum(size[v] for v in comes_at[position])
        if not wanted.issubset(self.trace.initial):
            raise self._not_alive(wanted.difference(self.trace.initial))
        return needs

    def end_bytes(self, run: Run) -> int:
        """What the End of a run releases: workspace, and outputs that it does not keep. One of
        these on the storage of an input releases that storage.
        """
        outs, kept = self.trace.calls[run.call].outs, run.keep
        scratch = () if kept is None else [v for v in outs if v not in kept]
        return self.workspace[run.call] + sum(self.size[v] for v in scratch)

    def _first_reads_of_inputs(self, runs: Sequence[Run]) -> Mapping[int, set[int]]:
        """{position: the inputs that a run reads first there}: until then they are on the host."""
        away, found = set(self.inputs), dict[int, set[int]]()
        for position, run in enumerate(runs):
            if not away:
                break
            read = away.intersection(self.trace.calls[run.call].ins)
            if read:
                found[position] = read
                away -= read
        return found

    def _not_alive(self, variables: Collection[int]) -> ConfigError:
        names = ", ".join(repr(self.trace.variables[v].name) for v in sorted(variables)[:3])
        return ConfigError(f"a run reads {names}, which is not alive at that point", code="OOC-109",
                           fix="run the producer again before")  # fmt: skip


def always_resident(trace: Trace) -> tuple[frozenset[int], dict[int, int]]:
    """(what lies on a storage that is never given back, {old value: the call that updates it})."""
    fixed, updated = set[int](), dict[int, int]()
    for old, new in trace.end_variables.items():
        taker = trace.taker.get(old)
        if old == new and taker is None:
            fixed.add(old)
        elif taker is not None and new not in trace.taker:
            call = trace.calls[taker]
            if call.reuse.get(new) == old and not call.pure:
                fixed |= {old, new}
                updated[old] = taker
    return frozenset(fixed), updated


# What a list needs that runs each call once, known before any list is made: **at least the in-core
# peak, arena and slab together**, since every value that is still read is in one of the two. The
# number depends on the step alone, so it is found once for many budgets. Source: ours.


def alive_bytes(trace: Trace) -> int:
    """The most that is alive at a time where each call runs once in the order of the trace,
    workspace included, unrounded: no such list holds less on device and host together.

    Cost: O(uses).
    """
    return max(Liveness(trace, BYTES).resident_bytes(runs_once(trace)), default=0)
