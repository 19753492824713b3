"""An allocator that runs in another process, for the laws and tests of allocators.

Every method of this `Allocator` is a question to a submission's process. The memory stays here: the
process gets addresses, and asks back for more. What it claims, a block at an address, is only a
number; before the laws write there, their grounds check that there is memory at that address.
Read next: `interview.py`; `cage/serve_allocator.py`, which answers.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from ooctrain.alloc.base import Block, Reached, Stats
from ooctrain.course.cage.serve_allocator import WITH_BOOKS
from ooctrain.course.cage.told import error_data, printable
from ooctrain.course.interview import Interview
from ooctrain.course.remote_planner import MOST_LETTERS
from ooctrain.errors import ConfigError, DriverError
from ooctrain.units import MAX_BYTES, Granule

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
        told = _mapping(asking.ask({"ask": "make", "memory": sizes, "methods": METHODS}))
        granule = _granule(told.get("granule"))
        if told.get("foresees"):
            raise ConfigError("an allocator that is told all requests before cannot be graded",
                              code="OOC-119", fix="allocators that know nothing can")  # fmt: skip
        return (RemoteRanged if granule.ranges else RemoteAllocator)(asking, granule, told)


class _Asking:
    """One allocator's way to its process, and the memory that the process asks back for.

    Args:
        memory: the allocator's.
        number: of the allocator there.
        forgotten: numbers of those that nobody uses any more.
    """

    def __init__(self, interview: Interview, memory: Any, number: int, forgotten: list[int]):
        self._interview, self._memory, self.number = interview, memory, number
        self.forgotten = forgotten
        self._events: list[Reached] = []  # all that it was ever told of: it may wait later
        self._refused: DriverError | None = None

    def ask(self, question: Mapping[str, Any], events: Sequence[Reached] = ()) -> Any:
        """The answer; what the memory refuses is raised as it was."""
        forget, self.forgotten[:] = [*self.forgotten], []
        self._refused = None
        told = range(len(self._events), len(self._events) + len(events))
        self._events += events
        whole = {**question, "number": self.number, "forget": forget, "events": list(told)}
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
        told: what it says of itself.
    """

    def __init__(self, asking: _Asking, granule: Granule, told: Mapping[str, Any]):
        self._asking, self.granule = asking, granule
        self.name = printable(str(told.get("name")))[:MOST_LETTERS]
        self.budget_bytes = _size(told.get("budget_bytes"))
        self.needs_virtual_memory = told.get("needs_virtual_memory") is True
        self._books: Mapping[str, Any] = {}  # as they came with the last answer, or nothing
        self._blocks: dict[int, Block] = {}
        self._numbers: dict[int, int] = {}  # by the identity of a block that is kept above

    def allocate(self, nbytes: int, tag: str = "") -> Block:
        """A block. Raises what the submission raises."""
        return self._new(self._call("allocate", [nbytes, tag]))

    def free(self, block: Block, after: Sequence[Reached] = ()) -> None:
        """Takes a block back. Raises what the submission raises."""
        self._call("free", [], block, after)

    def stats(self) -> Stats:
        """Its books, by its own word."""
        told = self._books or _mapping(self._call("stats", []))
        return Stats(**{field.name: _whole(told.get(field.name)) for field in fields(Stats)})

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
        events: Sequence[Reached] = (),
    ) -> Any:  # fmt: skip
        question: dict[str, Any] = {"ask": "do", "method": method, "values": values}
        if block is not None:
            question["block"] = self._asked(block)
        self._books = {}
        told = _mapping(self._asking.ask(question, events))
        if method in WITH_BOOKS and isinstance(told.get("books"), Mapping):
            self._books = told["books"]
        if block is not None and id(block) in self._numbers:
            granted = told["block"][3] if isinstance(told.get("block"), list) else None
            block.granted_bytes = _whole(granted)
        return told.get("value")

    def _asked(self, block: Any) -> Any:
        """A block of this allocator by its number, a foreign one by its fields."""
        if id(block) in self._numbers:
            return self._numbers[id(block)]
        return [block.id, block.address, block.requested_bytes, block.granted_bytes, block.tag]

    def _new(self, told: Any) -> Block:
        row = _mapping(told).get("block")
        if not isinstance(row, list) or len(row) != 5 or not isinstance(row[4], str):
            raise TypeError("it gives what is not a block")
        block_id, address, requested, granted = map(_whole, row[:4])
        number = _whole(told.get("number"))
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

    def unmap_range(self, block: Block, lo: int, hi: int, after: Sequence[Reached] = ()) -> None:
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
