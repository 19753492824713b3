"""A tileable chain inside a trace, with the role of each of its calls.

A trace and the names of the first and the last layer give a `Segment` of stages, one per forward
call, each with its backward calls. In such a chain each call reads the image that the call before
wrote, and no other call reads it, so the images in between need not exist whole at once. Source:
paper 003, sections 4.1 and 4.2 (partitions of graphs into segments stand on this). Read next:
`weave.py`.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ooctrain.engine.tensor import Tape, Tensor
from ooctrain.errors import ConfigError, did_you_mean
from ooctrain.step.machine import specs_of
from ooctrain.step.op import Op, Scalars, Site, Spec, can_be_tiled, why_untiled
from ooctrain.step.rows import Window
from ooctrain.step.trace import Call, Phase, Trace

#: How the name of a tile's call ends: "[h 0:8, w 0:8]"; of a band's: "[h 0:8]", "[n 1, h 0:8]".
_PART = re.compile(r"\[(?:n \d+, )?h \d+:\d+(?:, w \d+:\d+)?\]")


@dataclass(frozen=True, slots=True)
class TiledLayer:
    """One layer of a segment.

    Args:
        forward: its forward call; `forward.ins[0]` is the image, the others are parameters or
            states.
        backward: its backward calls, in order; none in a trace without a backward pass.
        gradients: {input of the forward call: variable that is its gradient from this call}.
        seed: variable that is the gradient of the output, None without a backward pass.
    """

    forward: Call
    backward: tuple[Call, ...]
    gradients: Mapping[int, int]
    seed: int | None

    @property
    def windows(self) -> tuple[Window, Window]:
        """Which rows and columns an output reads."""
        return self.forward.op.window()


@dataclass(frozen=True, slots=True)
class Segment:
    """Stages in forward order; each one's image is the output of the one before."""

    stages: tuple[TiledLayer, ...]

    @property
    def source(self) -> int:
        """The variable that the first stage reads."""
        return self.stages[0].forward.ins[0]

    @property
    def target(self) -> int:
        """The variable that the last stage writes."""
        return self.stages[-1].forward.outs[0]


def find_segment(trace: Trace, first: str | None = None, last: str | None = None) -> Segment:
    """The chain from the layer (or call) `first` to `last`, ends included.

    Args:
        trace: the step.
        first, last: names such as "conv1" or "conv1.fwd"; None: as far as the chain goes, and if
            both are None, the longest chain of the trace (the first one of equally long ones).

    Raises:
        ConfigError: there is no such call, or a call between them cannot be tiled; it says which
            and why.
    """
    chain = choose_chain(trace, first, last)
    return Segment(_stages(trace, chain))


# Which calls


def choose_chain(trace: Trace, first: str | None, last: str | None) -> list[Call]:
    """The forward calls of the chain that `find_segment` describes."""
    if first is not None:
        start = named_calls(trace, first)[0]
        _require_tileable(trace, start)
        return _until(trace, _follow(trace, start), last)
    chains = _maximal_chains(trace)
    if last is not None:
        ends = named_calls(trace, last)
        _require_tileable(trace, ends[0])
        return _until(trace, next(chain for chain in chains if ends[0] in chain), last)
    if not chains:
        if any(is_tile(call) for call in trace.calls):
            raise _tiled_already("all that can be tiled")
        raise ConfigError(
            "no call of this trace can be tiled",
            code="OOC-113",
            fix="a network with convolutions, poolings or ReLUs in a chain",
        )
    return max(chains, key=len)


def named_calls(trace: Trace, name: str, phases: Sequence[Phase] = ("forward",)) -> list[Call]:
    """The forward calls of a layer, or one by its own name. Raises ConfigError: there is none."""
    found = [call for call in trace.calls if call.phase in phases and _is_named(call, name)]
    tiles = [c for c in trace.calls if c.phase in phases and _is_named(c, name, tiles=True)]
    if tiles and all(is_tile(call) for call in found):
        raise _tiled_already(repr(name), tiles)
    if not found:
        known = [call.name for call in trace.calls if call.phase in phases]
        layers = [call.removesuffix(".fwd") for call in known]
        raise ConfigError(
            f"no forward call is named {name!r}",
            code="OOC-113",
            numbers=f"{len(known)} are there: {', '.join(known[:8])}{', ...' * (len(known) > 8)}",
            fix=did_you_mean(name, layers)
            or "the name of a layer, as in model.named_modules(), or of a call, as in trace.calls",
        )
    return found


def _is_named(call: Call, name: str, *, tiles: bool = False) -> bool:
    """Whether a call belongs to a layer, or has this name; or, of `tiles`, is a part of such."""
    whole = _PART.split(call.name)[0] if tiles and is_tile(call) else call.name
    return name in (whole, call.name) or whole.startswith(f"{name}.")


def is_tile(call: Call) -> bool:
    """Whether a call runs over a part of the image: an earlier tiling has made it."""
    return _PART.search(call.name) is not None


def check_untiled(calls: Sequence[Call]) -> None:
    """Raises ConfigError: an earlier tiling has made one of these calls."""
    tiles = [call for call in calls if is_tile(call)]
    if tiles:
        raise _tiled_already(repr(_PART.split(tiles[0].name)[0]), tiles)


def _tiled_already(what: str, tiles: Sequence[Call] = ()) -> ConfigError:
    shown = ", ".join(repr(call.name) for call in tiles[:2])
    return ConfigError(
        f"{what} runs in tiles already",
        code="OOC-113",
        numbers=f"{len(tiles)} calls of tiles: {shown}" if tiles else "",
        fix="tile the untiled trace, once: each segment in one tiling, of as many tiles as are "
        "wanted in the end",
    )


def _follow(trace: Trace, start: Call) -> list[Call]:
    """The longest tileable chain that begins with `start`."""
    chain = [start]
    while (after := _successor(trace, chain[-1])) is not None and not _problem(trace, after):
        chain.append(after)
    return chain


def _until(trace: Trace, chain: list[Call], last: str | None) -> list[Call]:
    """The chain up to the last call named `last`."""
    if last is None:
        return chain
    ends = [i for i, call in enumerate(chain) if _is_named(call, last)]
    if ends:
        return chain[: ends[-1] + 1]
    if named_calls(trace, last)[-1].id < chain[0].id:
        raise ConfigError(
            f"{last!r} comes before {chain[0].name!r}",
            code="OOC-113",
            fix="start and end in the order of the network",
        )
    after = _successor(trace, chain[-1])
    if after is not None:
        _require_tileable(trace, after)
    raise _fork(trace, chain[-1], last)


def _maximal_chains(trace: Trace) -> list[list[Call]]:
    chains: list[list[Call]] = []
    ends: dict[int, list[Call]] = {}
    for call in trace.calls:
        if call.phase != "forward" or _problem(trace, call):
            continue
        before = trace.producer[call.ins[0]]
        chain = ends.pop(before, None) if before is not None else None
        if chain is None or _successor(trace, chain[-1]) is not call:
            chain = []
            chains.append(chain)
        chain.append(call)
        ends[call.id] = chain
    return chains


def _forward_readers(trace: Trace, variable: int) -> list[Call]:
    calls = (trace.calls[reader] for reader in trace.readers[variable])
    return [call for call in calls if call.phase != "backward"]


def _successor(trace: Trace, call: Call) -> Call | None:
    """The one call that goes on with the output as its image; None at a fork or at the end."""
    readers = _forward_readers(trace, call.outs[0])
    if len(readers) != 1 or readers[0].ins[0] != call.outs[0] or readers[0].phase != "forward":
        return None
    return readers[0]


def _problem(trace: Trace, call: Call) -> str:
    """Why a call cannot be part of a segment; empty if it can."""
    if is_tile(call):
        return "it is a tile's already"
    if not can_be_tiled(call.op):
        return why_untiled(call.op)
    others = [trace.variables[v] for v in call.ins[1:]]
    if any(len(variable.shape) == 4 and not variable.persistent for variable in others):
        return "it reads more than one image"
    if not call.pure:
        return "it changes a state"
    if len(trace.variables[call.ins[0]].shape) != 4:
        return "its input is not (N, C, H, W)"
    return ""


def _require_tileable(trace: Trace, call: Call) -> None:
    problem = _problem(trace, call)
    if problem:
        raise ConfigError(
            f"{call.name!r} cannot be tiled: {problem}",
            code="OOC-113",
            fix="choose `first` and `last` so that the segment does not contain it",
        )


def _fork(trace: Trace, call: Call, last: str) -> ConfigError:
    readers = []
    for reader in _forward_readers(trace, call.outs[0]):
        problem = _problem(trace, reader)
        readers.append(f"{reader.name!r}" + (f" ({problem})" if problem else ""))
    return ConfigError(
        f"{call.name!r} does not lead straight to {last!r}: its output is read by "
        f"{', '.join(readers) or 'nothing'}",
        code="OOC-113",
        fix="end it at the fork, or cut rows alone: tile:16x1 or bands:16, with both ends named",
    )


# Which gradients


def _stages(trace: Trace, chain: Sequence[Call]) -> tuple[TiledLayer, ...]:
    backward: dict[int, list[Call]] = {call.id: [] for call in chain}
    for call in trace.calls:
        if call.phase == "backward" and call.forward_of in backward:
            backward[call.forward_of].append(call)
    stages: list[TiledLayer] = []
    for call in chain:
        gradients, seed = match_backward(trace, call, backward[call.id])
        stages.append(TiledLayer(call, tuple(backward[call.id]), gradients, seed))
    _require_private(trace, stages)
    return tuple(stages)


def _require_private(trace: Trace, stages: Sequence[TiledLayer]) -> None:
    """Nothing outside the segment may read what tiles no longer keep."""
    inside = {call.id for stage in stages for call in (stage.forward, *stage.backward)}
    for variable in _dropped(stages):
        strangers = [r for r in trace.readers[variable] if r not in inside]
        if strangers or variable in trace.outputs.values():
            reader = trace.calls[strangers[0]].name if strangers else "the caller"
            raise ConfigError(
                f"{reader!r} reads {trace.variables[variable].name!r}, which lies in the segment",
                code="OOC-113",
                fix="choose a segment that ends at this variable",
            )


def _dropped(stages: Sequence[TiledLayer]) -> Iterator[int]:
    """Variables of the original calls that the tiled trace does not have."""
    for i, stage in enumerate(stages):
        ends = i == len(stages) - 1
        yield from stage.forward.outs[1 if ends else 0 :]
        kept = {
            v for image, v in stage.gradients.items() if i == 0 or image != stage.forward.ins[0]
        }
        yield from (v for call in stage.backward for v in call.outs if v not in kept)


# Which variable is the gradient of which. The trace does not say it, but the operation does: `vjp`
# records its calls once more, on shapes alone, and the trace is compared with that record.


#: Role of a variable in the gradient of one call, see `Recorded`.
Role = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Recorded:
    """One backward call: its operation, and its variables by role.

    A role is ("in", i), ("out", i) of the forward call, ("seed", 0) for the gradient of its first
    output, or ("new", n) for the n-th variable that the backward calls write.
    """

    op: Op
    ins: tuple[Role, ...]
    outs: tuple[Role, ...]
    specs: tuple[Spec, ...]


@dataclass(frozen=True, slots=True)
class VjpCalls:
    """The backward calls of one operation; `results[i]` is the gradient of input i, or None."""

    calls: tuple[Recorded, ...]
    results: tuple[Role | None, ...]


class _Recorder:
    """A runner that computes nothing and remembers the calls."""

    def __init__(self, roles: dict[int, Role]) -> None:
        self.roles, self._new = roles, itertools.count()
        self.calls: list[tuple[Op, tuple[Tensor, ...], tuple[Tensor, ...]]] = []

    def run(
        self, op: Op, ins: Sequence[Tensor], outs: Sequence[Tensor], site: Site, scalars: Scalars
    ) -> None:
        self.roles |= {id(tensor): ("new", next(self._new)) for tensor in outs}
        self.calls.append((op, tuple(ins), tuple(outs)))

    def assign(self, target: Tensor, new: Tensor) -> None:
        """Nothing has a value here."""

    def constant(self, tensor: Tensor) -> Tensor:
        """Nothing is trained here."""
        return tensor


def record_vjp(
    op: Any, ins: Sequence[Spec], outs: Sequence[Spec], wanted: Sequence[bool]
) -> VjpCalls:
    """The backward calls of an operation for inputs of which `wanted` need a gradient."""
    images = [Tensor(s, name="x", requires_grad=w) for s, w in zip(ins, wanted, strict=True)]
    results = [Tensor(spec, name="y") for spec in outs]
    seed = Tensor(outs[0], name="dy")
    roles: dict[int, Role] = {id(t): ("in", i) for i, t in enumerate(images)}
    roles |= {id(t): ("out", i) for i, t in enumerate(results)}
    roles[id(seed)] = ("seed", 0)
    recorder = _Recorder(roles)
    tape = Tape(recorder, recording=False)
    gradients = op.vjp(tape, images, results, [seed, *[None] * (len(outs) - 1)])
    kept = [g if w else None for g, w in zip(gradients, wanted, strict=True)]
    calls = tuple(
        Recorded(
            called,
            tuple(roles[id(t)] for t in read),
            tuple(roles[id(t)] for t in written),
            tuple(t.spec for t in written),
        )
        for called, read, written in recorder.calls
    )
    return VjpCalls(calls, tuple(None if g is None else roles[id(g)] for g in kept))


def _unify(record: VjpCalls, backward: Sequence[Call], known: dict[Role, int]) -> bool:
    """Whether the record is what the trace has; fills in `known`, the variables of the roles."""
    if len(record.calls) != len(backward):
        return False
    for recorded, call in zip(record.calls, backward, strict=True):
        pairs = [
            *zip(recorded.ins, call.ins, strict=False),
            *zip(recorded.outs, call.outs, strict=False),
        ]
        same_count = len(recorded.ins) == len(call.ins) and len(recorded.outs) == len(call.outs)
        if type(recorded.op) is not type(call.op) or not same_count:
            return False
        if any(known.setdefault(role, variable) != variable for role, variable in pairs):
            return False
    return True


def match_backward(
    trace: Trace, call: Call, backward: Sequence[Call]
) -> tuple[dict[int, int], int | None]:
    """{input: its gradient}, and the gradient of the output, read off the backward calls."""
    if not backward:
        return {}, None
    for wanted in itertools.product((True, False), repeat=len(call.ins)):
        record = record_vjp(
            call.op,
            specs_of(trace, call.ins),
            specs_of(trace, call.outs),
            wanted,
        )
        known = {("in", i): v for i, v in enumerate(call.ins)}
        known |= {("out", i): v for i, v in enumerate(call.outs)}
        if _unify(record, backward, known):
            results = zip(call.ins, record.results, strict=True)
            return {v: known[role] for v, role in results if role}, known["seed", 0]
    raise ConfigError(
        f"the backward calls of {call.name!r} are not those of its operation",
        code="OOC-113",
        numbers=", ".join(other.name for other in backward),
        fix="tile before rewrites that join backward calls of this segment",
    )
