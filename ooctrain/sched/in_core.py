"""The least memory of runs that send nothing to the host.

In: runs. Out: bytes, and the call that needs them. The one idea: walk from the last run to the
first; what a later run wants is there, what a run makes was not there before it. So one set and one
sum are enough, where `profile.py` cuts the runs into lives, for planners that move them. Source:
liveness analysis, as compilers do it (Aho, Sethi and Ullman, Compilers, section 10.6). Read next:
`chain_runs.py`, which asks for each of many ways to run a chain.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from ooctrain.errors import ConfigError
from ooctrain.sched.schedule import Granule, Run
from ooctrain.trace import Trace


class Liveness:
    """What runs of a step need, for many choices of runs.

    Args:
        trace: the step.
        granule: how sizes are rounded.
    """

    def __init__(self, trace: Trace, granule: Granule):
        self.trace = trace
        self.size = [granule.granted(variable.nbytes) for variable in trace.variables]
        self.start_bytes = sum(self.size[v] for v in trace.initial if trace.variables[v].persistent)
        # What a call claims: outputs on storages of their own, and workspace.
        self.claim_bytes = [
            sum(self.size[v] for v in call.outs if v not in call.reuse)
            + granule.granted(call.workspace_bytes)
            for call in trace.calls
        ]
        self.inputs = frozenset(
            v for v in trace.initial if trace.readers[v] and not trace.variables[v].persistent
        )

    def least_budget(self, runs: Sequence[Run]) -> tuple[int, str]:
        """(bytes, call): the least budget of some runs, and who needs it: the largest of
        `Table.resident_bytes` and `Table.start_bytes` without gaps.

        Raises:
            ConfigError: a run reads what is not alive, a parameter that has been updated for
                example.

        Cost: O(uses by the runs).
        """
        size, calls = self.size, self.trace.calls
        comes_at = self._first_reads_of_inputs(runs)
        wanted = set(self.trace.end_variables.values())
        held, most, witness = sum(size[v] for v in wanted), 0, -1
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
            needed = held + self.claim_bytes[run.call]
            if needed >= most:
                most, witness = needed, run.call
            if position in comes_at:
                wanted -= comes_at[position]
                held -= sum(size[v] for v in comes_at[position])
        if not wanted.issubset(self.trace.initial):
            raise self._not_alive(wanted.difference(self.trace.initial))
        if self.start_bytes >= most:
            return self.start_bytes, "the start"
        return most, calls[witness].name

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
        return ConfigError(f"the runs read {names} when it is not alive", code="OOC-109",
                           fix="run the producer again before")  # fmt: skip
