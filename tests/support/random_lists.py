"""Random legal lists, independent of planners, ledger and verifier.

For a trace it draws from a `random.Random` a legal `Schedule` that swaps parts of variables at
random moments, drops and recomputes, evicts clean copies, prefetches, runs calls twice for nothing.
Before it destroys a value it asks whether everything that is still needed could be had again; if
not, it swaps the value out first. Its books are plain sets of granule numbers. Read next:
`testing/interpreter.py`.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator

from ooctrain.sched.schedule import (
    BYTES,
    End,
    Fence,
    Free,
    Granule,
    Instruction,
    Range,
    Run,
    Schedule,
    SwapIn,
    SwapOut,
)
from ooctrain.step.trace import Trace


def random_schedule(
    trace: Trace, rng: random.Random, *, granule: Granule = BYTES, mischief: float = 1.0
) -> Schedule:
    """A random legal list.

    Args:
        granule: ranges are multiples of it, or whole variables where `granule.ranges` is False.
        mischief: how many useless or costly things happen between two calls, on average.
    """
    return _Author(trace, rng, granule).write(mischief)


class _Author:
    """Writes a list; `device` and `host` hold for each variable the granules that are there."""

    def __init__(self, trace: Trace, rng: random.Random, granule: Granule):
        self.trace, self.rng, self.granule = trace, rng, granule
        self.all = [
            set(range(granule.granted(v.nbytes) // granule.size_bytes)) for v in trace.variables
        ]
        self.device: list[set[int]] = [set() for _ in trace.variables]
        self.host: list[set[int]] = [set() for _ in trace.variables]
        self.mate = {**trace.carries, **trace.carried_from}
        self.ran = -1
        self.open_call: int | None = None
        self.wanted: list[int] = []  # what is being fetched for the next call
        self.list: list[Instruction] = []
        for variable in trace.initial:
            self._place_at_start(variable)
        self.start_device = [set(blocks) for blocks in self.device]
        self.start_host = [set(blocks) for blocks in self.host]

    def write(self, mischief: float) -> Schedule:
        for call in self.trace.calls:
            while self.rng.random() < mischief / (1 + mischief):
                self._mischief()
            self._run(call.id, keep_all=True)
            self.ran = call.id
        self._bring_about_end()
        return Schedule(
            tuple(self.list),
            self._ranges(self.start_device),
            self._ranges(self.start_host),
            self.granule,
        )

    # ------------------------------------------------------------ start and end

    def _place_at_start(self, variable: int) -> None:
        everything = self.all[variable]
        side = self.rng.choice(["device", "host", "both", "split"])
        if side == "split":
            self.device[variable] = self._part(everything)
            self.host[variable] = (everything - self.device[variable]) | self._part(everything)
            return
        if side in ("device", "both"):
            self.device[variable] = set(everything)
        if side in ("host", "both"):
            self.host[variable] = set(everything)

    def _bring_about_end(self) -> None:
        for old, new in self.trace.end_variables.items():
            self._make_available(new)
            self._swap_in(new, self.start_host[old] - self.host[new] - self.device[new])
            self._swap_out(new, self.start_host[old] - self.host[new])
        for old, new in self.trace.end_variables.items():
            self._swap_in(new, self.start_device[old] - self.device[new])
            self._free(new, self.device[new] - self.start_device[old])
        lasting = set(self.trace.end_variables.values())
        leftovers = [v for v in range(len(self.device)) if v not in lasting]
        self.rng.shuffle(leftovers)
        for variable in leftovers:
            self._free(variable, self.device[variable])

    def _ranges(self, blocks: list[set[int]]) -> tuple[Range, ...]:
        return tuple(
            piece for v, numbers in enumerate(blocks) for piece in self._pieces(v, numbers)
        )

    # ------------------------------------------------------------ what can still be had

    def _needed(self) -> set[int]:
        """Variables that a first run or the end still reads."""
        later = {v for call in self.trace.calls[self.ran + 1 :] for v in call.ins}
        first = {v for v in later if self._exists(v)}
        return (
            first
            | set(self.wanted)
            | {v for v in self.trace.end_variables.values() if self._exists(v)}
        )

    def _exists(self, variable: int) -> bool:
        producer = self.trace.producer[variable]
        return producer is None or producer <= self.ran

    def _obtainable(self, variable: int, known: dict[int, bool]) -> bool:
        """Whether a value is somewhere, or can be computed from what is somewhere."""
        if variable not in known:
            here = self.all[variable] <= self.device[variable] | self.host[variable]
            producer = self.trace.producer[variable]
            again = (
                producer is not None and producer <= self.ran and self.trace.calls[producer].pure
            )
            known[variable] = False
            known[variable] = here or (
                again
                and producer is not None
                and all(self._obtainable(v, known) for v in self.trace.calls[producer].ins)
            )
        return known[variable]

    def _all_obtainable(self) -> bool:
        known: dict[int, bool] = {}
        return all(self._obtainable(v, known) for v in self._needed())

    # ------------------------------------------------------------ instructions

    def _swap_out(self, variable: int, blocks: Iterable[int]) -> None:
        blocks = set(blocks)
        for piece in self._pieces(variable, blocks):
            self.list.append(SwapOut(*piece))
        self.host[variable] |= blocks
        if variable in self.mate:
            self.host[self.mate[variable]] -= blocks

    def _swap_in(self, variable: int, blocks: Iterable[int]) -> None:
        blocks = set(blocks)
        for piece in self._pieces(variable, blocks):
            self.list.append(SwapIn(*piece))
        self.device[variable] |= blocks

    def _free(self, variable: int, blocks: Iterable[int]) -> None:
        blocks = set(blocks)
        for piece in self._pieces(variable, blocks):
            self.list.append(Free(*piece))
        self.device[variable] -= blocks

    def _run(self, call_id: int, *, keep_all: bool, keep: Iterable[int] = ()) -> None:
        """Fetches the inputs and runs a call."""
        call = self.trace.calls[call_id]
        depth = len(self.wanted)
        self.wanted += call.ins
        for variable in call.ins:
            self._fetch(variable)
        for source in call.reuse.values():
            self._save_from_reuse(source)
        if self.open_call is not None and self.rng.random() < 0.3:
            self.list.append(End(self.open_call))
        kept = [v for v in call.outs if not self.device[v] and (keep_all or v in keep)]
        self.list.append(Run(call_id, self._spell_keep(kept, call.outs)))
        for source in call.reuse.values():
            self.device[source] = set()
        for out in kept:
            self.device[out] = set(self.all[out])
        self.open_call = call_id
        del self.wanted[depth:]
        if self.rng.random() < 0.3:
            self.list.append(End(call_id))
            self.open_call = None

    def _spell_keep(self, kept: list[int], outs: tuple[int, ...]) -> tuple[int, ...] | None:
        return None if len(kept) == len(outs) and self.rng.random() < 0.5 else tuple(kept)

    def _save_from_reuse(self, source: int) -> None:
        """Swaps out a storage that is about to be overwritten, if its value is still needed."""
        missing, self.device[source] = self.device[source], set()
        safe = self._all_obtainable()
        self.device[source] = missing
        if not safe:
            self._swap_out(source, self.all[source] - self.host[source])

    def _fetch(self, variable: int) -> None:
        """Makes a variable resident: from the host if it can, else by running its producer."""
        self._make_available(variable)
        self._swap_in(variable, self.all[variable] - self.device[variable])

    def _make_available(self, variable: int) -> None:
        """Sees to it that every byte of a variable is on the device or on the host."""
        if self.all[variable] <= self.device[variable] | self.host[variable]:
            return
        producer = self.trace.producer[variable]
        if producer is None:
            raise AssertionError(f"lost {self.trace.variables[variable].name}")
        self._free(variable, self.device[variable])
        others = [v for v in self.trace.calls[producer].outs if self.rng.random() < 0.5]
        self._run(producer, keep_all=False, keep=[variable, *others])

    # ------------------------------------------------------------ mischief

    def _mischief(self) -> None:
        self.rng.choice(
            [
                self._evict,
                self._evict,
                self._drop,
                self._copy_out,
                self._prefetch,
                self._rerun,
                self._fence,
            ]
        )()

    def _evict(self) -> None:
        variable, blocks = self._some(self.device)
        if self._may_copy_out(variable, blocks - self.host[variable]):
            if self.rng.random() < 0.8:
                self._swap_out(variable, blocks - self.host[variable])
            else:
                self._swap_out(variable, blocks)
            self._free(variable, blocks)

    def _copy_out(self) -> None:
        variable, blocks = self._some(self.device)
        if self._may_copy_out(variable, blocks):
            self._swap_out(variable, blocks)

    def _may_copy_out(self, variable: int, blocks: set[int]) -> bool:
        """Not where it would overwrite the only copy of the other tenant of the host slot."""
        if variable not in self.mate:
            return True
        mate = self.mate[variable]
        kept, self.host[mate] = self.host[mate], self.host[mate] - blocks
        safe = self._all_obtainable()
        self.host[mate] = kept
        return safe

    def _drop(self) -> None:
        variable, blocks = self._some(self.device)
        kept, self.device[variable] = self.device[variable], self.device[variable] - blocks
        safe = self._all_obtainable()
        self.device[variable] = kept
        if safe:
            self._free(variable, blocks)

    def _prefetch(self) -> None:
        variable, blocks = self._some([h - d for h, d in zip(self.host, self.device, strict=True)])
        self._swap_in(variable, blocks)

    def _rerun(self) -> None:
        candidates = [c for c in self.trace.calls[: self.ran + 1] if c.pure]
        if candidates:
            call = self.rng.choice(candidates)
            known: dict[int, bool] = {}
            if all(self._obtainable(v, known) for v in call.ins):
                keep = [v for v in call.outs if self.rng.random() < 0.5]
                self._run(call.id, keep_all=False, keep=keep)

    def _fence(self) -> None:
        self.list.append(Fence())

    def _some(self, blocks: list[set[int]]) -> tuple[int, set[int]]:
        """A random variable with granules in `blocks`, and some of these."""
        variables = [v for v, numbers in enumerate(blocks) if numbers]
        if not variables:
            return 0, set()
        variable = self.rng.choice(variables)
        return variable, self._part(blocks[variable])

    def _part(self, blocks: set[int]) -> set[int]:
        """A random contiguous part of some granules; all of them where there are no ranges."""
        if not self.granule.ranges or not blocks or self.rng.random() < 0.5:
            return set(blocks)
        ordered = sorted(blocks)
        first = self.rng.randrange(len(ordered))
        return set(ordered[first : self.rng.randint(first, len(ordered))])

    def _pieces(self, variable: int, blocks: set[int]) -> Iterator[Range]:
        """Granules as ranges, now and then cut where they need not be."""
        step, size = self.granule.size_bytes, self.trace.variables[variable].nbytes
        ordered = sorted(blocks)
        first = 0
        for position in range(1, len(ordered) + 1):
            cut = self.granule.ranges and self.rng.random() < 0.05
            if position == len(ordered) or ordered[position] != ordered[position - 1] + 1 or cut:
                yield variable, ordered[first] * step, min(size, (ordered[position - 1] + 1) * step)
                first = position
