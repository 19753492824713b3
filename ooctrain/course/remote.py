"""A submission's plug-in as an ordinary one, whose methods are calls to another process.

A submission's process gets plain data and answers with plain data. Here it is an ordinary
`Planner`, `Allocator`, `BandsByHand` or `LawByHand`, so the same laws and tests run over it in a
process that has never seen the submission's code. Its answer is only a claim: the side that asks
verifies it. Read next: `interview.py`; `cage/serve.py`, which answers.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from ooctrain.alloc.base import Block, Event, Stats
from ooctrain.course.cage.serve_allocator import WITH_BOOKS
from ooctrain.course.cage.step_data import machine_data, trace_data
from ooctrain.course.cage.wire import error_data, error_of, printable
from ooctrain.course.interview import Interview
from ooctrain.errors import ConfigError, DriverError, Infeasible
from ooctrain.sched.planning.question import Question
from ooctrain.sched.schedule import Granule, Plan
from ooctrain.step.trace import Trace
from ooctrain.testing.law_by_hand import AskedArena
from ooctrain.units import MAX_BYTES

# A planner: a trace, a budget and a machine go out, a plan comes back, which is verified here.

MOST_LETTERS = 80


class RemotePlanner:
    """A submission as a planner.

    Args:
        interview: with its process.

    Raises:
        NoAnswer: it cannot be loaded.
    """

    def __init__(self, interview: Interview):
        self._interview = interview
        self._sent: tuple[Trace | None, int] = (None, 0)
        self.name = name_in_answer(interview)

    def plan(self, question: Question) -> Plan:
        """The submission's plan. Raises what it raises."""
        trace, granule = question.trace, question.granule
        # Of a step that was asked about just now the process knows the rows.
        known = self._sent == (trace, self._interview.processes) and self._sent[0] is trace
        asked = {
            "ask": "plan", "trace": None if known else trace_data(trace),
            "machine": machine_data(question.machine), "budget_bytes": question.budget_bytes,
            "granule": [granule.size_bytes, granule.ranges, granule.fixed_bytes],
            "host_budget_bytes": question.host_budget_bytes, "seed": question.seed,
        }  # fmt: skip
        self._sent = (None, 0)
        reply = self._interview.ask(asked)
        self._sent = (trace, self._interview.processes)
        if not isinstance(reply, Mapping):
            raise _no_plan()
        if reply.get("changed"):
            # It did so to a copy. Harm of that kind is done here, for the law that looks for it.
            vars(trace)["variable_by_name"] = {}
        if "refusal" in reply:
            refusal, _ = error_of(reply["refusal"])
            if not isinstance(refusal, Infeasible) or (refusal.minimum_bytes or 0) < 0:
                raise ConfigError(
                    "its refusal names no minimum_bytes", code="OOC-104",
                    fix="Infeasible(..., minimum_bytes=) of a budget that is enough",
                )  # fmt: skip
            raise refusal
        return plan_in_answer(reply.get("plan"), trace)


def plan_in_answer(data: Any, trace: Trace) -> Plan:
    """The plan in an untrusted answer; traces are not rewritten. Raises ConfigError or PlanMismatch
    where the data is not a plan.
    """
    if not isinstance(data, Mapping):
        raise _no_plan()
    rewrites, notes = data.get("rewrites"), data.get("notes")
    sizes = [data.get("peak_bytes"), data.get("host_peak_bytes")]
    makespan: Any = data.get("makespan_us")
    fits = (
        rewrites == [] and isinstance(notes, dict)
        and all(type(size) is int and 0 <= size < MAX_BYTES for size in sizes)
        and type(makespan) in (int, float) and -MAX_BYTES < makespan < MAX_BYTES
        and isinstance(data.get("schedule"), dict)
    )  # fmt: skip
    if not fits or not math.isfinite(makespan or 0):
        raise ConfigError(
            "broken plan file: a claim is not a number", code="OOC-104",
            fix="peaks and times that are numbers of 0 or more, and no rewrites",
        )  # fmt: skip
    return Plan.from_json({**data, "lower_bound": None}, trace)


def _no_plan() -> ConfigError:
    return ConfigError(
        "what it answers is not a plan", code="OOC-104",
        fix="plan() returns a Plan, such as `make_plan(...)` gives",
    )  # fmt: skip


def name_in_answer(interview: Interview) -> str:
    """The name that a submission gives itself."""
    reply = interview.ask({"ask": "name"})
    name = reply.get("name") if isinstance(reply, Mapping) else None
    return printable(name)[:MOST_LETTERS] if isinstance(name, str) else "nameless"


# An allocator: every method is a question to the submission's process. The memory stays here: the
# process gets addresses, and asks back for more. What it claims, a block at an address, is only a
# number; before the laws write there, their grounds check that there is memory at that address.

METHODS = ("name", "granule", "budget_bytes", "allocate", "free", "stats", "check", "snapshot",
           "close")  # fmt: skip
_SIZES = ("size_bytes", "ranges", "granularity_bytes", "max_mappings")
_MEMORY = ("linear", "reserve", "map", "unmap", "release", "used_bytes")
_NUMBERS = itertools.count()


class AllocatorsOf:
    """What makes allocators of a submission, as its class would: called with a memory."""

    def __init__(self, interview: Interview):
        self._interview = interview
        self._forgotten: list[int] = []

    def __call__(self, memory: Any) -> RemoteAllocator:
        sizes = {name: getattr(memory, name) for name in _SIZES if hasattr(memory, name)}
        asking = _Asking(self._interview, memory, next(_NUMBERS), self._forgotten)
        reply = _mapping(asking.ask({"ask": "make", "memory": sizes, "methods": METHODS}))
        granule = _granule(reply.get("granule"))
        if reply.get("foresees"):
            raise ConfigError("an allocator that gets all requests before cannot be graded",
                              code="OOC-119", fix="allocators that know nothing can")  # fmt: skip
        return (RemoteRanged if granule.ranges else RemoteAllocator)(asking, granule, reply)


class _Asking:
    """One allocator's way to its process, and the memory that the process asks back for.

    Args:
        memory: the allocator's.
        number: number of the allocator there.
        forgotten: numbers of those that are no longer used.
    """

    def __init__(self, interview: Interview, memory: Any, number: int, forgotten: list[int]):
        self._interview, self._memory, self.number = interview, memory, number
        self.forgotten = forgotten
        self._events: list[Event] = []  # all that were ever passed on: it may wait later
        self._refused: DriverError | None = None

    def ask(self, question: Mapping[str, Any], events: Sequence[Event] = ()) -> Any:
        """The answer; what the memory refuses is raised as it was."""
        forget, self.forgotten[:] = [*self.forgotten], []
        self._refused = None
        numbers = range(len(self._events), len(self._events) + len(events))
        self._events += events
        whole = {**question, "number": self.number, "forget": forget, "events": list(numbers)}
        try:
            return self._interview.ask(whole, self._called)
        except Exception as error:
            if self._refused is not None and getattr(error, "of_driver", False):
                raise self._refused from None
            raise

    def _called(self, what: str, values: list[Any]) -> dict[str, Any]:
        if not all(type(value) is int and abs(value) < MAX_BYTES for value in values):
            return {"error": error_data(TypeError(f"{what}: not whole numbers"), "")}
        try:
            if what == "wait" and len(values) == 1 and 0 <= values[0] < len(self._events):
                self._events[values[0]].wait()
                return {"value": None}
            if what not in _MEMORY or not hasattr(self._memory, what):
                return {"error": error_data(AttributeError(f"no {what!r} in this memory"), "")}
            return {"value": getattr(self._memory, what)(*values)}
        except DriverError as error:
            self._refused = error
            return {"error": error_data(error, ""), "driver": error.call or "driver"}
        except Exception as error:
            return {"error": error_data(error, "")}


class RemoteAllocator:
    """A submission's allocator of whole blocks.

    Args:
        asking: the way to it.
        granule: how it rounds.
        reply: what it says of itself.
    """

    def __init__(self, asking: _Asking, granule: Granule, reply: Mapping[str, Any]):
        self._asking, self.granule = asking, granule
        self.name = printable(str(reply.get("name")))[:MOST_LETTERS]
        self.budget_bytes = _size(reply.get("budget_bytes"))
        self.needs_virtual_memory = reply.get("needs_virtual_memory") is True
        self._books: Mapping[str, Any] = {}  # as they came with the last answer, or nothing
        self._blocks: dict[int, Block] = {}
        self._numbers: dict[int, int] = {}  # by the identity of a block that is kept above

    def allocate(self, nbytes: int, tag: str = "") -> Block:
        """A block. Raises what the submission raises."""
        return self._new(self._call("allocate", [nbytes, tag]))

    def free(self, block: Block, after: Sequence[Event] = ()) -> None:
        """Takes a block back. Raises what the submission raises."""
        self._call("free", [], block, after)

    def stats(self) -> Stats:
        """Its books, by its own word."""
        reply = self._books or _mapping(self._call("stats", []))
        return Stats(**{field.name: _whole(reply.get(field.name)) for field in fields(Stats)})

    def check(self) -> None:
        """Its own check."""
        self._call("check", [])

    def snapshot(self) -> dict[str, Any]:
        """Its layout, by its own word."""
        return dict(_mapping(self._call("snapshot", [])))

    def close(self) -> list[Block]:
        """The blocks that were live, by its own word."""
        found = self._call("close", [])
        if not isinstance(found, list) or not all(number in self._blocks for number in found):
            raise TypeError("close() returns what is not a list of its blocks")
        return [self._blocks[number] for number in found]

    def __del__(self) -> None:
        self._asking.forgotten.append(self._asking.number)

    def _call(
        self, method: str, values: Sequence[Any], block: Block | None = None,
        events: Sequence[Event] = (),
    ) -> Any:  # fmt: skip
        question: dict[str, Any] = {"ask": "do", "method": method, "values": values}
        if block is not None:
            question["block"] = self._asked(block)
        self._books = {}
        reply = _mapping(self._asking.ask(question, events))
        if method in WITH_BOOKS and isinstance(reply.get("books"), Mapping):
            self._books = reply["books"]
        if block is not None and id(block) in self._numbers:
            granted = reply["block"][3] if isinstance(reply.get("block"), list) else None
            block.granted_bytes = _whole(granted)
        return reply.get("value")

    def _asked(self, block: Any) -> Any:
        """A block of this allocator by its number, a foreign one by its fields."""
        if id(block) in self._numbers:
            return self._numbers[id(block)]
        return [block.id, block.address, block.requested_bytes, block.granted_bytes, block.tag]

    def _new(self, reply: Any) -> Block:
        row = _mapping(reply).get("block")
        if not isinstance(row, list) or len(row) != 5 or not isinstance(row[4], str):
            raise TypeError("it gives what is not a block")
        block_id, address, requested, granted = map(_whole, row[:4])
        number = _whole(reply.get("number"))
        block = Block(block_id, address, requested, granted, row[4])
        self._blocks[number] = block
        self._numbers[id(block)] = number
        return block


class RemoteRanged(RemoteAllocator):
    """A submission's allocator whose blocks can be held in parts."""

    def reserve(self, nbytes: int, tag: str = "") -> Block:
        """A block that holds nothing yet."""
        return self._new(self._call("reserve", [nbytes, tag]))

    def map_range(self, block: Block, lo: int, hi: int) -> None:
        """Claims a part."""
        self._call("map_range", [lo, hi], block)

    def unmap_range(self, block: Block, lo: int, hi: int, after: Sequence[Event] = ()) -> None:
        """Gives a part back."""
        self._call("unmap_range", [lo, hi], block, after)


def _mapping(data: Any) -> Mapping[str, Any]:
    if not isinstance(data, Mapping):
        raise TypeError("it answers what is not an answer")
    return data


def _whole(value: Any) -> int:
    if type(value) is not int or not abs(value) < 2**63:
        raise TypeError(f"{value!r:.40} is not a whole number of bytes")
    return value


def _size(value: Any) -> int:
    if not 0 <= _whole(value) < MAX_BYTES:
        raise TypeError(f"{value!r:.40} is not a size")
    return value


def _granule(row: Any) -> Granule:
    if not isinstance(row, list) or len(row) != 3 or not isinstance(row[1], bool):
        raise TypeError("its granule is not a granule")
    return Granule(_size(row[0]), row[1], _size(row[2]))


# Bands by hand: layers and cuts go out, rows come back, three numbers for each band and tensor.
# This side counts with these numbers.


class RemoteBands:
    """A submission as `BandsByHand`.

    Args:
        interview: with its process.
    """

    def __init__(self, interview: Interview):
        self._interview = interview
        self.name = name_in_answer(interview)

    def rows(self, layers: Sequence[Sequence[int]], cuts: Sequence[int]) -> Any:
        """The submission's answer. Raises what it raises, or ValueError: no list of lists."""
        asked = {"ask": "rows", "layers": [list(layer) for layer in layers], "cuts": list(cuts)}
        reply = self._interview.ask(asked)
        rows = reply.get("rows") if isinstance(reply, dict) else None
        if not isinstance(rows, list) or not all(isinstance(band, list) for band in rows):
            raise ValueError("rows() gives no list of bands")
        return rows


# A law: the submission's process gets the size of an arena and a random generator's state, so it
# draws what it would draw at home; it requests blocks through the pipe, and answers with the law's
# finding. The arena stays on this side.

#: Of what a law says.
MOST_LETTERS_OF_A_REASON = 200


class RemoteLaw:
    """A submission as `LawByHand`.

    Args:
        interview: with its process.
    """

    def __init__(self, interview: Interview):
        self._interview = interview
        self.name = name_in_answer(interview)

    def begin(self) -> None:
        """From now on its time counts anew."""
        self._interview.begin()

    def check(self, arena: AskedArena, rng: random.Random) -> None:
        """Raises AssertionError where the law stops the arena, and what else it raises."""

        def called(what: str, values: list[Any]) -> dict[str, Any]:
            known = what in ("allocate", "free") and len(values) == 1
            if not known or type(values[0]) is not int or not 0 <= values[0] < MAX_BYTES:
                return {"error": error_data(ValueError(f"{what}: no size or offset"), "")}
            try:
                return {"value": getattr(arena, what)(values[0])}
            except KeyError:
                return {"error": error_data(KeyError(f"there is no block at {values[0]}"), "")}

        asked = {"ask": "try", "size": arena.size, "state": rng.getstate()}
        reply = self._interview.ask(asked, called)
        stopped = reply.get("stopped") if isinstance(reply, dict) else None
        if not isinstance(stopped, str):
            raise TypeError("check() gives no answer")
        if stopped:
            raise AssertionError(printable(stopped).replace("\n", " ")[:MOST_LETTERS_OF_A_REASON])
