"""Where lanes that diverged at a branch meet again: basic blocks and their post-dominators.

From instructions and labels comes a `Flow`: pieces that run from start to end, how each ends, and
for each branch the piece where its two ways meet. Whichever way a lane takes from a branch, it
passes through the branch's immediate post-dominator. So both ways run up to that point, one after
the other, and the lanes go on together. Source: Cooper, Harvey and Kennedy, "A Simple, Fast
Dominance Algorithm" (2001), on the reversed graph. Read next: `ptx_machine.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

from ooctrain.testing.emulator.ptx_text import Instruction, PtxProgram, Register, Symbol

#: instructions that end a piece
ENDS = ("bra", "ret", "exit")


@dataclass(frozen=True, slots=True)
class CodeBlock:
    """A basic block.

    Args:
        body: its instructions, without the one that ends it.
        guard: which lanes take `target`; None: all.
        target: the piece jumped to, `Flow.end` for a return; None: there is no jump.
        following: the piece below.
        last: the instruction that ends it, if it jumps.
    """

    body: tuple[Instruction, ...]
    guard: Register | None
    target: int | None
    following: int
    last: Instruction | None


@dataclass(frozen=True, slots=True)
class Flow:
    """Pieces by number; `meets[i]` is where the two ways from piece i meet."""

    pieces: tuple[CodeBlock, ...]
    meets: tuple[int, ...]

    @property
    def end(self) -> int:
        """The number that stands for no piece: all threads have returned."""
        return len(self.pieces)


def find_flow(program: PtxProgram) -> Flow:
    """The pieces of a program."""
    code = program.instructions
    jumps = [i for i, instruction in enumerate(code) if instruction.opcode in ENDS]
    starts = sorted({0, *program.labels.values(), *(i + 1 for i in jumps)} - {len(code)})
    number = {start: i for i, start in enumerate(starts)} | {len(code): len(starts)}
    pieces = [
        _piece(program, start, end, number)
        for start, end in zip(starts, [*starts[1:], len(code)], strict=True)
    ]
    return Flow(tuple(pieces), tuple(post_dominators([_ways(piece) for piece in pieces])))


def _piece(program: PtxProgram, start: int, end: int, number: dict[int, int]) -> CodeBlock:
    *body, last = program.instructions[start:end]
    if last.opcode not in ENDS:
        return CodeBlock((*body, last), None, None, number[end], None)
    if last.opcode == "bra":
        (label,) = last.operands
        assert isinstance(label, Symbol), last.text
        target = number[program.labels[label.name]]
    else:
        target = number[len(program.instructions)]
    return CodeBlock(tuple(body), last.guard, target, number[end], last)


def _ways(piece: CodeBlock) -> tuple[int, ...]:
    if piece.target is None:
        return (piece.following,)
    return (piece.target,) if piece.guard is None else (piece.target, piece.following)


def post_dominators(ways: list[tuple[int, ...]]) -> list[int]:
    """The immediate post-dominator of each node; the node len(ways) is the end.

    A node from which no way leads to the end gets the end.
    """
    end = len(ways)
    rank = {node: i for i, node in enumerate(_from_the_end(ways))}
    nearest: dict[int, int] = {end: end}

    def common(a: int, b: int) -> int:
        while a != b:
            if rank[a] > rank[b]:
                a = nearest[a]
            else:
                b = nearest[b]
        return a

    changed = True
    while changed:
        changed = False
        for node in sorted(set(rank) - {end}, key=rank.__getitem__):
            known = [way for way in ways[node] if way in nearest]
            if not known:
                continue
            best = known[0]
            for way in known[1:]:
                best = common(best, way)
            changed |= nearest.get(node) != best
            nearest[node] = best
    return [nearest.get(node, end) for node in range(end)]


def _from_the_end(ways: list[tuple[int, ...]]) -> list[int]:
    """Nodes that reach the end, in reverse postorder of the reversed graph."""
    before: dict[int, list[int]] = {node: [] for node in range(len(ways) + 1)}
    for node, targets in enumerate(ways):
        for target in targets:
            before[target].append(node)
    order: list[int] = []
    seen = {len(ways)}
    stack = [(len(ways), iter(before[len(ways)]))]
    while stack:
        node, rest = stack[-1]
        for near in rest:
            if near not in seen:
                seen.add(near)
                stack.append((near, iter(before[near])))
                break
        else:
            order.append(node)
            stack.pop()
    return order[::-1]
