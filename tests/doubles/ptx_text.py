"""PTX as data: the text of the compiler as instructions in a graph of pieces.

The text of a module and the name of an entry give a `PtxProgram`: parameters with their offsets,
variables, registers, labels, instructions. PTX is regular, `@guard opcode.suffix operands;`, so one
scan of statements and one of operands are the whole parser; the meaning of an opcode is left to the
table. From instructions and labels comes a `Flow`: pieces that run from start to end, how each
ends, and for each branch the piece where its two ways meet. Whichever way a lane takes from a
branch, it passes through the branch's immediate post-dominator. So both ways run up to that point,
one after the other, and the lanes go on together. Source: PTX ISA, "Syntax"; Cooper, Harvey and
Kennedy, "A Simple, Fast Dominance Algorithm" (2001), on the reversed graph. Read next:
`ptx_machine.py`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from ooctrain.errors import ConfigError

#: bytes of PTX's types; `tf32` lies in a register of 32 bits
WIDTH_BYTES = {
    "pred": 1, "b8": 1, "u8": 1, "s8": 1, "b16": 2, "u16": 2, "s16": 2, "f16": 2, "bf16": 2,
    "b32": 4, "u32": 4, "s32": 4, "f32": 4, "tf32": 4, "b64": 8, "u64": 8, "s64": 8, "f64": 8,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Register:
    """%r12, or !%p3."""

    name: str
    negated: bool = False


@dataclass(frozen=True, slots=True)
class Number:
    """A constant; of a float (0f3F800000) the bits."""

    bits: int
    is_float: bool = False


@dataclass(frozen=True, slots=True)
class Symbol:
    """A variable, parameter or label."""

    name: str


@dataclass(frozen=True, slots=True)
class Address:
    """[base + offset]"""

    base: Register | Symbol | Number
    offset_bytes: int


@dataclass(frozen=True, slots=True)
class Several:
    """{a, b, c, d}, or a|b."""

    parts: tuple


Operand = Register | Number | Symbol | Address | Several


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction.

    Args:
        line: of the text, from 1.
        text: as it stands there.
        guard: the predicate in front of it.
        opcode: "ld".
        suffixes: ("global", "v4", "f32").
        operands: in order, the result first.
    """

    line: int
    text: str
    guard: Register | None
    opcode: str
    suffixes: tuple[str, ...]
    operands: tuple[Operand, ...]


@dataclass(frozen=True, slots=True)
class PtxVariable:
    """A parameter, or a variable in shared, local or global memory."""

    name: str
    space: str
    align_bytes: int
    size_bytes: int
    is_dynamic: bool = False


@dataclass(frozen=True, slots=True)
class PtxProgram:
    """One entry of a module, read.

    Args:
        parameters: {name: (offset, size) in bytes within the block of parameters}.
        registers: {name without its number: type}.
        labels: {label: index of the instruction that follows it}.
    """

    name: str
    parameters: dict[str, tuple[int, int]]
    variables: tuple[PtxVariable, ...]
    registers: dict[str, str]
    labels: dict[str, int]
    instructions: tuple[Instruction, ...]

    @property
    def parameter_bytes(self) -> int:
        """Size of the block of parameters."""
        return max((offset + size for offset, size in self.parameters.values()), default=0)

    def width_bytes(self, register: str) -> int:
        """Bytes of a register; 0 if no register is called so."""
        kind = self.registers.get(register) or self.registers.get(register.rstrip("0123456789"))
        return WIDTH_BYTES[kind] if kind else 0


_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_ENTRY = re.compile(r"\.entry\s+([\w$]+)\s*(?:\(([^)]*)\))?([^{]*)\{")
_DECLARED = re.compile(
    r"\.(param|shared|local|global|const)\b([^;={]*?)([\w$]+)\s*(?:\[(\d*)\])?\s*$"
)
_REGISTERS = re.compile(r"\.reg\s+\.(\w+)\s+(.*)", re.DOTALL)
_LABEL = re.compile(r"\s*([\w$]+):(?!:)")
_INSTRUCTION = re.compile(r"(?:@(!?)(%?\w+)\s+)?([a-z]\w*)((?:[.:][\w:]+)*)\s*(.*)", re.DOTALL)
_FLOAT = re.compile(r"0[fFdD]([0-9a-fA-F]+)$")
_INTEGER = re.compile(r"-?(0[xX][0-9a-fA-F]+|\d+)U?$")


@cache
def read_program(text: str, name: str) -> PtxProgram:
    """The entry `name` of a module.

    Raises:
        ConfigError: there is none.
    """
    plain = _COMMENT.sub(lambda found: "\n" * found.group().count("\n"), text)
    for entry in _ENTRY.finditer(plain):
        if entry.group(1) == name:
            return _read_entry(plain, entry)
    raise ConfigError(f"the PTX has no entry {name!r}", numbers=", ".join(entries(text)))


def entries(text: str) -> list[str]:
    """Names of all kernels of a module."""
    return [found.group(1) for found in _ENTRY.finditer(_COMMENT.sub(" ", text))]


def readable(name: str) -> str:
    """The Python function behind a mangled name, with its module: "losses._cross_entropy"."""
    parts, rest = [], name.removeprefix("_ZN")
    while rest != name and (found := re.match(r"\d+", rest)) is not None:
        end = found.end() + int(found.group())
        parts.append(rest[found.end() : end])
        rest = rest[end:]
    return ".".join(parts[-2:]) or name


def _read_entry(text: str, entry: re.Match) -> PtxProgram:
    end = _closing_brace(text, entry.end())
    outside = text[: entry.start()] + text[end:]
    variables = [v for s in outside.split(";") for v in _variables(s.partition("=")[0])]
    registers: dict[str, str] = {}
    labels: dict[str, int] = {}
    instructions: list[Instruction] = []
    for offset, statement in _statements(text[entry.end() : end]):
        if statement.endswith(":"):
            labels[statement[:-1]] = len(instructions)
        elif found := _REGISTERS.match(statement):
            names = [name.strip().partition("<")[0] for name in found.group(2).split(",")]
            registers |= dict.fromkeys(names, found.group(1))
        elif statement.startswith("."):
            variables += _variables(statement)
        else:
            line = text.count("\n", 0, entry.end() + offset) + 1
            instructions.append(_instruction(statement, line))
    parameters = _offsets([v for p in (entry.group(2) or "").split(",") for v in _variables(p)])
    return PtxProgram(
        entry.group(1), parameters, tuple(variables), registers, labels, tuple(instructions)
    )


def _closing_brace(text: str, start: int) -> int:
    depth = 1
    for found in re.compile(r"[{}]").finditer(text, start):
        depth += 1 if found.group() == "{" else -1
        if depth == 0:
            return found.start()
    raise ConfigError("the PTX ends within a kernel")


def _statements(body: str) -> Iterator[tuple[int, str]]:
    """(offset, statement) of a body; labels keep their colon, and braces of scopes are dropped."""
    at = 0
    while (found := re.compile(r"\S").search(body, at)) is not None:
        at = found.start()
        label = _LABEL.match(body, at)
        if body[at] in "{};":
            at += 1
        elif label is not None:
            yield at, f"{label.group(1)}:"
            at = label.end()
        else:
            end = body.index(";", at)
            yield at, " ".join(body[at:end].split())
            at = end + 1


def _variables(statement: str) -> Iterator[PtxVariable]:
    """The variable that a statement declares, if any."""
    found = _DECLARED.search(" ".join(statement.split()))
    if found is None:
        return
    space, words, name, count = found.groups()
    kinds = [word for word in re.findall(r"\.(\w+)", words) if word in WIDTH_BYTES]
    width = WIDTH_BYTES[kinds[0]]
    align = re.search(r"(?<!ptr )\.align (\d+)", words)
    size = width * int(count) if count else width
    is_dynamic = count == ""
    align_bytes = int(align.group(1)) if align and ".ptr" not in words else width
    yield PtxVariable(name, space, align_bytes, 0 if is_dynamic else size, is_dynamic)


def _offsets(parameters: list[PtxVariable]) -> dict[str, tuple[int, int]]:
    """Where each parameter lies: in order, each at a multiple of its alignment."""
    found: dict[str, tuple[int, int]] = {}
    end = 0
    for parameter in parameters:
        start = -(-end // parameter.align_bytes) * parameter.align_bytes
        found[parameter.name] = start, parameter.size_bytes
        end = start + parameter.size_bytes
    return found


def _instruction(statement: str, line: int) -> Instruction:
    found = _INSTRUCTION.fullmatch(statement)
    if found is None:
        raise ConfigError("a line of PTX cannot be read", where=f"line {line}", numbers=statement)
    negated, guard, opcode, suffixes, operands = found.groups()
    return Instruction(
        line, statement, Register(guard, bool(negated)) if guard else None, opcode,
        tuple(suffixes.split(".")[1:]), tuple(_operand(text) for text in _split(operands)),
    )  # fmt: skip


def _split(text: str) -> list[str]:
    """Operands, at the commas that stand in no bracket."""
    return [part.strip() for part in re.findall(r"(?:\{[^}]*\}|\[[^\]]*\]|[^,{\[])+", text)]


def _operand(text: str) -> Operand:
    if text.startswith("{"):
        return Several(tuple(_operand(part) for part in _split(text[1:-1])))
    if text.startswith("["):
        base, sign, offset = re.fullmatch(r"\[([^+]*?)\s*(?:(\+)\s*(-?\w+))?\]", text).groups()  # type: ignore[union-attr]
        return Address(_operand(base.strip()), int(offset, 0) if sign else 0)  # type: ignore[arg-type]
    if "|" in text:
        return Several(tuple(_operand(part.strip()) for part in text.split("|")))
    if found := _FLOAT.match(text):
        return Number(int(found.group(1), 16), is_float=True)
    if _INTEGER.match(text):
        return Number(int(text.rstrip("U"), 0))
    if text == "_" or text.startswith(("%", "!")):
        return Register(text.lstrip("!"), text.startswith("!"))
    return Symbol(text)


# Where lanes that diverged at a branch meet again: basic blocks and their post-dominators.

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
