"""The six instructions of a list, in words: what each one does, and why it stands where it stands.

`ooctrain explain run` prints the general words, `ooctrain train --step` adds those of the list at
hand: what the call reads and writes, which later instruction needs what is copied in, when a freed
value comes back, what the instruction waits for, and what the ledger says before and after. All of
it is read off the table (`../sched/ledger.py`); nothing is run. Read next: `docs/schedule.md`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from ooctrain.sched.instructions import WORDS, describe_instruction
from ooctrain.sched.ledger import Issued, walk
from ooctrain.sched.schedule import (
    End,
    Free,
    Instruction,
    Run,
    Schedule,
    SwapIn,
    SwapOut,
)  # fmt: skip
from ooctrain.step.trace import Trace
from ooctrain.units import format_bytes


@dataclass(frozen=True, slots=True)
class Meaning:
    """What holds of all instructions of a kind.

    Args:
        title: what it does, in a few words that follow "it".
        meaning: in a few sentences.
        example: one of them, as its line.
    """

    title: str
    meaning: str
    example: str


INSTRUCTIONS: Mapping[str, Meaning] = MappingProxyType(
    {
        "run": Meaning(
            "runs a call on the compute stream",
            "Its inputs must be on the device. It claims memory for its outputs and its "
            "workspace, so it waits for every release that is listed before it.",
            "run conv2 keep x2",
        ),
        "end": Meaning(
            "gives back what only the last call needed",
            "The workspace of the last call, and its outputs that `keep` does not name, are "
            "given back once the call is done. Before the next run an end is implied.",
            "end conv2",
        ),
        "out": Meaning(
            "copies bytes to the host",
            "The value stays on the device, too, until it is freed. The copy runs alongside the "
            "calls, on a stream of its own.",
            "out x1[0:64K]",
        ),
        "in": Meaning(
            "copies bytes back to the device",
            "It claims memory, so it waits for every release that is listed before it, and for "
            "the copy to the host that it reads. A call that reads the value waits for it.",
            "in x1[0:64K]",
        ),
        "free": Meaning(
            "gives memory of a value back",
            "The memory is given back once the copies and calls before it that use the value are "
            "done. A copy on the host stays valid.",
            "free x1",
        ),
        "fence": Meaning(
            "holds everything back",
            "Every instruction after it waits for every instruction before it.",
            "fence",
        ),
    }
)
#: How many names of a list are printed; the others are counted.
MOST_NAMES = 4


class ListGuide:
    """Words for each instruction of one list.

    Args:
        trace, schedule: a legal list and what it is for.

    Attributes:
        rows: rows of the table, implied Ends included.
    """

    def __init__(self, trace: Trace, schedule: Schedule):
        self.trace, self.schedule = trace, schedule
        self.rows = walk(trace, schedule)
        # By variable: copies of its parts, as (index, lo, hi), and its readers and writers.
        self._ins: defaultdict[int, list[tuple[int, int, int]]] = defaultdict(list)
        self._reads: defaultdict[int, list[int]] = defaultdict(list)
        self._writes: defaultdict[int, list[int]] = defaultdict(list)
        self._runs: defaultdict[int, list[int]] = defaultdict(list)
        for index, instruction in enumerate(schedule):
            self._note(index, instruction)

    def line(self, row: Issued) -> str:
        """The instruction as its line of the list."""
        return describe_instruction(row.instruction, self.trace)

    def words(self, row: Issued, *, briefly: bool = False) -> list[str]:
        """what it does, why, what it waits for, and what the ledger says: a sentence each.

        Args:
            briefly: without what holds of all instructions of its kind.
        """
        general = INSTRUCTIONS[WORDS[type(row.instruction)]]
        return [
            f"It {general.title}." + ("" if briefly else f" {general.meaning}"),
            *self._particular(row),
            *self._waits(row),
            self._ledger(row),
        ]

    def _note(self, index: int, instruction: Instruction) -> None:
        """Who reads, writes and brings in which variable, and where."""
        match instruction:
            case Run(call):
                self._runs[call].append(index)
                for variable in self.trace.calls[call].ins:
                    self._reads[variable].append(index)
                for variable in self.trace.calls[call].outs:
                    self._writes[variable].append(index)
            case SwapIn(variable, lo, hi):
                self._ins[variable].append((index, lo, hi))

    def _particular(self, row: Issued) -> list[str]:
        """Of this instruction alone."""
        match row.instruction:
            case Run(call, keep):
                return self._of_a_run(row, call, keep)
            case SwapOut(variable, lo, hi):
                back = (
                    self._back(variable, lo, hi, row.index) or "This step does not bring them back."
                )
                return [f"{format_bytes(hi - lo)} leave the device. {back}"]
            case SwapIn(variable, lo, hi):
                reader = self._later(self._reads[variable], row.index, "needs them")
                return [f"{format_bytes(hi - lo)} come in. {reader or 'The next step needs them.'}"]
            case Free(variable, lo, hi):
                back = self._back(variable, lo, hi, row.index) or self._later(
                    self._writes[variable], row.index, "computes them again"
                )
                after = back or "No later instruction needs them."
                return [f"{format_bytes(hi - lo)} are given back. {after}"]
            case End(call):
                return [f"The call is {self.trace.calls[call].name}."]
        return []

    def _of_a_run(self, row: Issued, call: int, keep: tuple[int, ...] | None) -> list[str]:
        described, variables = self.trace.calls[call], self.trace.variables
        reads = _names([variables[v].name for v in dict.fromkeys(described.ins)])
        writes = _names([variables[v].name for v in described.outs])
        words = [f"A call of the {described.phase} part: it reads {reads}, and writes {writes}."]
        if keep is not None and set(keep) != set(described.outs):
            kept = _names([variables[v].name for v in keep])
            words.append(f"Only {kept} stays." if keep else "None of its outputs stays.")
        if self._runs[call][0] < row.index:
            first = self._runs[call][0] + 1
            words.append(f"It ran before, as instruction {first}; its output was freed since.")
        return words

    def _back(self, variable: int, lo: int, hi: int, index: int) -> str:
        """Which later instruction brings some of these bytes back; "" for none."""
        ins = [at for at, start, end in self._ins[variable] if start < hi and lo < end]
        return self._later(ins, index, "brings them back")

    def _later(self, places: Sequence[int], index: int, verb: str) -> str:
        """The first of some instructions that comes after another one, and what it does."""
        later = next((at for at in places if at > index), None)
        return "" if later is None else f"Instruction {self._numbered(later)}, {verb}."

    def _numbered(self, index: int) -> str:
        line = describe_instruction(self.schedule.instructions[index], self.trace)
        return f"{index + 1}, {line}"

    def _waits(self, row: Issued) -> list[str]:
        if not row.waits:
            return []
        waits = " and ".join(self._numbered(index) for index in row.waits)
        return [f"It waits for instruction {waits}."]

    def _ledger(self, row: Issued) -> str:
        after = format_bytes(row.ledger_bytes)
        change = row.claim_bytes - row.release_bytes
        if not change:
            return f"Device memory stays at {after}."
        before = format_bytes(row.ledger_bytes - change)
        verb = "claims" if change > 0 else "gives back"
        return (
            f"It {verb} {format_bytes(abs(change))}: device memory goes from {before} to {after}."
        )


def _names(names: list[str]) -> str:
    named = ", ".join(names[:MOST_NAMES])
    return named + (f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else "")
