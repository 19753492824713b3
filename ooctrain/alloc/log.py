"""The allocation log: the requests to an allocator, in order, as data or as a file.

`Recorder` wraps an allocator in use and makes an `AllocationLog`, saved as JSON lines: one header,
then one object for each request. Blocks are identified by the order in which they were made, never
by address, so the log of one allocator can be replayed on any other. Source: RMM's logging and
replay, which identify blocks by pointer and so are bound to the allocator they recorded. Read next:
`replay.py`; docs/json.md describes the file.
"""

from __future__ import annotations

import json
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec

from ooctrain.alloc.base import Allocator, Block, Event, Wrapper
from ooctrain.alloc.static import Forecast, Lifetime
from ooctrain.errors import ConfigError, OutOfDeviceMemory, reason
from ooctrain.step.schema import Misfit, fitted, parse_json
from ooctrain.step.user_values import as_path
from ooctrain.units import Granule

FORMAT, VERSION = "ooctrain-allocation-log", 1
Line = TypeVar("Line")
Op = Literal["allocate", "free", "reserve", "map", "unmap", "refused", "step"]


@dataclass(frozen=True, slots=True)
class Request:
    """One request to an allocator.

    Args:
        op: which; "refused" is an allocation that failed, "step" marks the beginning of a training
            step.
        key: number of the block, in order of its making; of a step: its number.
        nbytes: its size ("allocate", "reserve", "refused").
        lo, hi: the range in bytes ("map", "unmap").
        tag: what the memory is for.
    """

    op: Op
    key: int
    nbytes: int = 0
    lo: int = 0
    hi: int = 0
    tag: str = ""


@dataclass(frozen=True, slots=True)
class AllocationLog:
    """Requests with what one must know to judge them.

    Args:
        requests: in order.
        allocator: allocator that served them.
        granule: how it rounds.
        budget_bytes: size of its arena.
        about: free text for people: the model, the batch, the planner.
        parameters: tags of parameters, their states and gradients, for allocators that pool them.
    """

    requests: Sequence[Request]
    allocator: str
    granule: Granule
    budget_bytes: int
    about: str = ""
    parameters: frozenset[str] = frozenset()

    def save(self, path: str | Path) -> None:
        """Writes JSON lines."""
        header = {
            "format": FORMAT, "version": VERSION, "allocator": self.allocator,
            "granule": asdict(self.granule), "budget_bytes": self.budget_bytes,
            "about": self.about, "parameters": sorted(self.parameters),
        }  # fmt: skip
        with as_path(path).open("w", encoding="utf-8") as file:
            file.write(json.dumps(header) + "\n")
            file.writelines(json.dumps(_as_line(r)) + "\n" for r in self.requests)

    @classmethod
    def load(cls, path: str | Path) -> AllocationLog:
        """Reads what `save` wrote.

        Raises:
            ConfigError: not such a file, another version, or a line that cannot be read; it names
                the line.
        """
        try:
            text = as_path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(
                f"{path} cannot be read: {reason(error)}",
                code="OOC-114",
                fix="`ooctrain plan MODEL --allocation-log FILE` writes one",
            ) from error
        lines = text.splitlines()
        header = _fitted_line(_HeaderFile, path, 1, lines[0] if lines else "")
        requests = tuple(_read_lines(path, lines[1:]))
        check_requests(requests, str(path))
        return cls(
            requests, header.allocator, header.granule, header.budget_bytes, header.about,
            frozenset(header.parameters),
        )  # fmt: skip


class Recorder(Wrapper):
    """An allocator that writes down the requests to another.

    Args:
        inner: the allocator that does it.

    Attributes:
        requests: so far.
    """

    def __init__(self, inner: Allocator):
        super().__init__(inner)
        self.requests: list[Request] = []
        self._keys: dict[int, int] = {}
        self._made = self._steps = 0

    def log(self, about: str = "") -> AllocationLog:
        """What was recorded so far."""
        return AllocationLog(
            tuple(self.requests), self.name, self.granule, self.budget_bytes, about
        )

    def mark_step(self) -> None:
        """Writes down that a training step begins."""
        self.requests.append(Request("step", self._steps))
        self._steps += 1

    def allocate(self, nbytes: int, tag: str = "") -> Block:
        """Passed on and written down, with its refusal if it is refused."""
        try:
            block = self.inner.allocate(nbytes, tag)
        except OutOfDeviceMemory:
            self.requests.append(Request("refused", -1, nbytes, tag=tag))
            raise
        self.requests.append(Request("allocate", self._enter(block), nbytes, tag=tag))
        return block

    def reserve(self, nbytes: int, tag: str = "") -> Block:
        block = super().reserve(nbytes, tag)
        self.requests.append(Request("reserve", self._enter(block), nbytes, tag=tag))
        return block

    def map_range(self, block: Block, lo: int, hi: int) -> None:
        """Passed on, and written down if granted."""
        super().map_range(block, lo, hi)
        self.requests.append(Request("map", self._keys[block.id], lo=lo, hi=hi))

    def unmap_range(self, block: Block, lo: int, hi: int, after: Sequence[Event] = ()) -> None:
        super().unmap_range(block, lo, hi, after)
        self.requests.append(Request("unmap", self._keys[block.id], lo=lo, hi=hi))

    def free(self, block: Block, after: Sequence[Event] = ()) -> None:
        self.inner.free(block, after)
        self.requests.append(Request("free", self._keys.pop(block.id)))

    def _enter(self, block: Block) -> int:
        """Numbers a new block."""
        self._keys[block.id] = key = self._made
        self._made += 1
        return key


def hold_whole(requests: Iterable[Request]) -> list[Request]:
    """The same requests for allocators without ranges: a block is held whole from the first range
    that is mapped to the last that is unmapped.

    Such a block may come again after that, under its old key.
    """
    sizes: dict[int, Request] = {}
    held: dict[int, int] = {}
    found = []
    for request in requests:
        key = request.key
        if request.op in ("reserve", "allocate"):
            sizes[key], held[key] = request, request.nbytes * (request.op == "allocate")
        if request.op == "reserve":
            continue
        if request.op == "map":
            if not held[key]:
                found.append(Request("allocate", key, sizes[key].nbytes, tag=sizes[key].tag))
            held[key] += min(request.hi, sizes[key].nbytes) - request.lo
        elif request.op == "unmap":
            held[key] -= min(request.hi, sizes[key].nbytes) - request.lo
            if not held[key]:
                found.append(Request("free", key))
        elif request.op != "free" or held.pop(key):
            found.append(request)
    return found


def foresee(requests: Iterable[Request], parameters: Container[str] = ()) -> Forecast:
    """The same requests as lifetimes, for allocators that want to know them all before the first.

    Args:
        requests: without ranges (`hold_whole`); all of them are one round, and what they do not
            free lives on to its end.
        parameters: tags that belong into the pool of parameters.

    Raises:
        ConfigError: a request for a part of a block.
    """
    requests = list(requests)
    live: dict[int, int] = {}
    found: list[Lifetime] = []
    for time, request in enumerate(requests):
        if request.op == "allocate":
            live[request.key] = len(found)
            pool = request.tag in parameters
            found.append(Lifetime(request.nbytes, request.tag, time, len(requests), pool))
        elif request.op == "free":
            place = live.pop(request.key)
            found[place] = replace(found[place], end=time)
        elif request.op in ("reserve", "map", "unmap"):
            raise ConfigError(
                "a static packing places whole blocks only",
                code="OOC-108",
                fix="--allocator va for a log with parts of blocks",
            )
    return Forecast(tuple(found))


def check_requests(requests: Iterable[Request], where: str = "") -> None:
    """A block is made once, and only what is live is freed or mapped.

    Raises:
        ConfigError: it names the first request that breaks this.
    """
    live: dict[int, Op] = {}
    made: set[int] = set()
    for place, request in enumerate(requests):
        op, key = request.op, request.key
        if op in ("allocate", "reserve"):
            wrong = key in made or request.nbytes <= 0
            made.add(key)
            live[key] = op
        elif op == "free":
            wrong = live.pop(key, None) is None
        elif op in ("map", "unmap"):
            wrong = live.get(key) is None or not 0 <= request.lo < request.hi
        else:
            wrong = False
        if wrong:
            raise ConfigError(
                f"request {place} of the log is impossible: {op} of block {key}", code="OOC-114",
                where=where, fix="a block has bytes, is made once, and freed once after that",
            )  # fmt: skip


def _as_line(request: Request) -> dict[str, Any]:
    op = request.op
    if op in ("allocate", "reserve"):
        return {"op": op, "id": request.key, "bytes": request.nbytes, "tag": request.tag}
    if op in ("map", "unmap"):
        return {"op": op, "id": request.key, "lo": request.lo, "hi": request.hi}
    if op == "refused":
        return {"op": op, "bytes": request.nbytes, "tag": request.tag}
    return {"op": op, "id": request.key}


class _HeaderFile(msgspec.Struct):
    """The first line of a log."""

    format: Literal["ooctrain-allocation-log"]
    version: Literal[1]
    granule: Granule
    budget_bytes: int
    allocator: str
    about: str = ""
    parameters: list[str] = []


class _LineFile(msgspec.Struct):
    """Each other line of a log."""

    op: Op
    id: int = -1
    bytes: int = 0
    lo: int = 0
    hi: int = 0
    tag: str = ""


def _read_lines(path: str | Path, lines: Sequence[str]) -> Iterator[Request]:
    for number, line in enumerate(lines, 2):
        found = _fitted_line(_LineFile, path, number, line)
        yield Request(found.op, found.id, found.bytes, found.lo, found.hi, found.tag)


def _fitted_line(schema: type[Line], path: str | Path, number: int, line: str) -> Line:
    """A line of JSON as an object. Raises ConfigError, which names the line, for anything else."""
    try:
        return fitted(schema, parse_json(line))
    except ValueError as error:
        place = error.place if isinstance(error, Misfit) else ""
        wrong = f"{line[:60]!r} is not a request"
        if schema is _HeaderFile:
            of_granule = place.startswith("$.granule")
            wrong = "its header has no granule" if of_granule else "its first line is not a header"
        raise _not_a_log(path, number, f"{wrong}: {error}", place) from error


def _not_a_log(path: str | Path, line: int, why: str, place: str = "") -> ConfigError:
    return ConfigError(
        f"{path} is not an allocation log: {why}", code="OOC-114",
        where=f"line {line}{place and f', {place}'}",
        fix="`ooctrain plan MODEL --allocation-log FILE` writes one",
    )  # fmt: skip
