"""A submission's allocators, kept in its process and asked from another.

A request, as data, makes an allocator, calls a method of one or forgets one; the answer is what the
method returns. The memory is not in this process. An allocator that needs it (`linear`, `map`) asks
back through the pipe, and when the memory refuses, the same error is raised here. Read next:
`../remote.py`, the other side; `serve.py`.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import fields
from typing import Any

from ooctrain.alloc.base import Block, Stats
from ooctrain.course.cage.wire import Line, error_of
from ooctrain.errors import ConfigError, DriverError
from ooctrain.plugins import check_call, locate

#: Methods after which the books are always looked at: they come with the answer.
WITH_BOOKS = ("check", "snapshot")
_MEMORY = ("linear", "reserve", "map", "unmap", "release", "used_bytes")


class Shelf:
    """All allocators of a submission that are in use.

    Args:
        line: to the process that asks, and has the memory.
        submission: "file.py:Class", with parameters or without.
    """

    def __init__(self, line: Line, submission: str):
        self._line, self._submission = line, submission
        self._factory, self._options = locate(
            submission, {}, group="ooctrain.nobody", what="allocator", given=1
        )
        self._made: dict[int, _Kept] = {}

    def __call__(self, question: Mapping[str, Any]) -> Any:
        for number in question.get("forget", ()):
            self._made.pop(number, None)
        if question["ask"] == "name":
            return {"name": str(getattr(self._factory, "name", self._factory.__name__))}
        if question["ask"] == "make":
            return self._make(question)
        return self._made[question["number"]].do(question, self._line)

    def _make(self, question: Mapping[str, Any]) -> Any:
        memory = MemoryThere(self._line, question["id"], question["memory"])
        options = dict(self._options)
        defaults = getattr(self._factory, "defaults", None)
        if defaults:
            options = {**defaults(memory.size_bytes), **options}
        if inspect.isclass(self._factory):
            check_call(self._factory, (memory,), options, self._submission, "allocator")
        allocator = self._factory(memory, **options)
        missing = [name for name in question["methods"] if not hasattr(allocator, name)]
        if missing:
            raise ConfigError(
                f"allocator {type(allocator).__name__!r} lacks {', '.join(missing)}",
                code="OOC-108", fix="ooctrain/alloc/base.py says what an allocator has",
            )  # fmt: skip
        kept = self._made[question["number"]] = _Kept(allocator, memory)
        granule = kept.allocator.granule
        return {
            "name": str(allocator.name),
            "granule": [granule.size_bytes, granule.ranges, granule.fixed_bytes],
            "budget_bytes": allocator.budget_bytes,
            "needs_virtual_memory": bool(getattr(allocator, "needs_virtual_memory", False)),
            "foresees": hasattr(allocator, "load_plan"),
        }


class _Kept:
    """One allocator and all blocks that it has given, by their numbers here."""

    def __init__(self, allocator: Any, memory: MemoryThere):
        self.allocator, self._memory = allocator, memory
        self._blocks: list[Any] = []

    def do(self, question: Mapping[str, Any], line: Line) -> Any:
        """Calls a method; what it returns, with the block that it was about."""
        self._memory.asked_in = question["id"]
        values = list(question["values"])
        block = self._block(question.get("block"))
        if block is not None:
            values.insert(0, block)
        events = question.get("events", [])
        rest = [[EventThere(self._memory, number) for number in events]] if events else []
        found = getattr(self.allocator, question["method"])(*values, *rest)
        reply = {"value": self._value(question["method"], found), "block": _block_row(block)}
        if question["method"] in WITH_BOOKS:
            with suppress(Exception):  # a question for them alone gets the error
                reply["books"] = self._value("stats", self.allocator.stats())
        return reply

    def _block(self, asked: Any) -> Any:
        """The block of a number; a foreign one is made of its fields."""
        if asked is None:
            return None
        return self._blocks[asked] if isinstance(asked, int) else Block(*asked)

    def _value(self, method: str, found: Any) -> Any:
        if method in ("allocate", "reserve"):
            self._blocks.append(found)
            return {"number": len(self._blocks) - 1, "block": _block_row(found)}
        if method == "stats":
            return {field.name: getattr(found, field.name) for field in fields(Stats)}
        if method == "close":
            numbers = {id(block): number for number, block in enumerate(self._blocks)}
            return [numbers.get(id(block)) for block in found]
        return found if method == "snapshot" else None


def _block_row(block: Any) -> Any:
    if block is None:
        return None
    return [block.id, block.address, block.requested_bytes, block.granted_bytes, block.tag]


class MemoryThere:
    """The memory of the process that asks: its sizes, and calls that go through the pipe.

    Args:
        line: to that process.
        asked_in: id of the question that is being answered.
        sizes: {attribute: value}.
    """

    size_bytes: int

    def __init__(self, line: Line, asked_in: str, sizes: Mapping[str, Any]):
        self._line, self.asked_in = line, asked_in
        for name, value in sizes.items():
            setattr(self, name, value)

    def __getattr__(self, name: str) -> Any:
        if name not in _MEMORY:
            raise AttributeError(f"this memory has no {name!r}")
        return lambda *values: self.call(name, values)

    def call(self, method: str, values: Any) -> Any:
        """What a method of the memory returns. Raises what it raises."""
        self._line.send({"id": self.asked_in, "call": method, "values": list(values)})
        reply = self._line.receive()
        if "value" in reply:
            return reply["value"]
        if reply.get("driver"):
            error = reply["error"]
            raise DriverError(
                error["what"], call=reply["driver"], numbers=error.get("numbers") or "",
                fix=error.get("fix") or "addresses and sizes that the memory has given",
            )  # fmt: skip
        raise error_of(reply["error"])[0]


class EventThere:
    """The last use of a block: the point in time is known to the process that asks.

    Args:
        number: by which that process knows it, also when a later question is answered.
    """

    def __init__(self, memory: MemoryThere, number: int):
        self._memory, self._number = memory, number

    def wait(self) -> None:
        """Until it is over."""
        self._memory.call("wait", [self._number])
