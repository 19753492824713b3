"""The list as text: one instruction a line, as people write it.

    device W              # on the device before the step
    host x                # has a host copy before the step
    in x; run f1; free x
    out a[0:64K]          # a part of a variable: bytes, K, M or G
    run f2 keep nothing   # its outputs are scratch

A text is cut into words, each of which knows its line and column, and is read statement by
statement. A statement that cannot be read is refused with its place and a fix. Names are those of
the trace; ids (`@3`) need none. Nothing is proved here: a text that reads well may still break
every rule of the verifier. Source: docs/schedule.md, "The list as text", has the grammar.
Read next: `instructions.py`, which writes a line; `verify.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from ooctrain.errors import ListSyntaxError, did_you_mean
from ooctrain.sched import instructions as listed
from ooctrain.sched.instructions import WORDS, End, Fence, Instruction, Range, Run
from ooctrain.sched.plan_file import Parts
from ooctrain.step.trace import Call, Trace, Variable
from ooctrain.units import BYTES, GIB, KIB, MIB, Granule

_KINDS = {word: kind for kind, word in WORDS.items()}
#: What a list may say before its first instruction.
_START = ("device", "host", "granule")
_TOKEN = re.compile(
    r"""(?P<space>[^\S\n]+)
      | (?P<comment>\#.*)
      | (?P<quoted>"(?:[^"\\\n]|\\.)*")
      | (?P<range>\[[^\]\n]*\])
      | (?P<id>@-?[0-9]+)
      | (?P<end>[;\n])
      | (?P<name>[^\s\[\];"\#@][^\s\[\];"]*)
      | (?P<wrong>.)""",
    re.VERBOSE,
)
_SIZE = re.compile(r"\s*(-?[0-9]+)([KMG]?)\s*", re.ASCII)
#: Of a number in a list, as in a plan file; and of its digits.
_MOST, _MOST_DIGITS = (1 << 63) - 1, 24
_UNITS = {"": 1, "K": KIB, "M": MIB, "G": GIB}
Item = TypeVar("Item")


def list_to_text(parts: Parts, trace: Trace | None) -> str:
    """The text of a list; `list_from_text` gives back equal parts."""
    instructions, device, host, granule = parts
    lines = []
    if granule != BYTES:
        whole = "" if granule.ranges else " whole"
        region = (
            f" region {listed.spelled_size(granule.fixed_bytes)}" if granule.fixed_bytes else ""
        )
        lines.append(f"granule {listed.spelled_size(granule.size_bytes)}{whole}{region}")
    if trace is None or (device, host) != listed.default_start(trace):
        for word, ranges in (("device", device), ("host", host)):
            names = [listed.spelled_range(part, trace) for part in ranges] or ["nothing"]
            lines.append(" ".join([word, *names]))
    lines += [listed.describe_instruction(instruction, trace) for instruction in instructions]
    return "\n".join(lines)


def list_from_text(text: str, trace: Trace | None) -> Parts:
    """The parts of a list that a text says.

    Raises:
        ListSyntaxError: the first word that cannot be read.
    """
    device, host = listed.default_start(trace) if trace else ((), ())
    granule, instructions = BYTES, list[Instruction]()
    for words in _statements(text):
        statement = _Statement(text, words, trace)
        verb = statement.verb()
        if verb in _START and instructions:
            what = f"{verb!r} stands after the first instruction"
            raise statement.refused(words[0], what, fix="what holds before the step comes first")
        if verb == "device":
            device = statement.ranges()
        elif verb == "host":
            host = statement.ranges()
        elif verb == "granule":
            granule = statement.granule()
        else:
            instructions.append(statement.instruction(_KINDS[verb]))
        statement.finish()
    return tuple(instructions), device, host, granule


def first_difference(ours: str, theirs: str) -> str:
    """The first line in which two lists differ, with the two lines before it; "" for equal ones."""
    a, b = ([*text.split("\n"), "(the list ends)"] for text in (ours, theirs))
    if a == b:
        return ""
    same = next(n for n, (x, y) in enumerate(zip(a, b, strict=False)) if x != y)
    lines = [f"the first {same} lines are equal"]
    lines += [f"    {n:4d}  {a[n]}" for n in range(max(0, same - 2), same)]
    return "\n".join([*lines, f"  - {same:4d}  {a[same]}", f"  + {same:4d}  {b[same]}"])


@dataclass(frozen=True, slots=True)
class _Word:
    """A word of a text: what kind it is of, and where it stands."""

    kind: str
    text: str
    at: int


def _statements(text: str) -> Iterator[list[_Word]]:
    """The words of each statement; empty ones are left out."""
    words: list[_Word] = []
    for found in _TOKEN.finditer(text):
        word = _Word(found.lastgroup or "", found[0], found.start())
        if word.kind == "end":
            if words:
                yield words
            words = []
        elif word.kind not in ("space", "comment"):
            words.append(word)
    if words:
        yield words


class _Statement:
    """Reads the words of one statement, from left to right."""

    def __init__(self, text: str, words: Sequence[_Word], trace: Trace | None):
        self._text, self._words, self._trace, self._next = text, words, trace, 0

    def verb(self) -> str:
        """The first word."""
        word = self._take("an instruction")
        if word.kind != "name" or word.text not in (*_KINDS, *_START):
            fix = did_you_mean(word.text, _KINDS) or f"one of {', '.join((*_KINDS, *_START))}"
            raise self.refused(word, f"no instruction is called {word.text!r}", fix=fix)
        return word.text

    def instruction(self, kind: type) -> Instruction:
        """The rest of an instruction."""
        if kind is Fence:
            return Fence()
        if kind not in (Run, End):
            return kind(*self._range())
        call = self._named("call", self._trace.call_by_name if self._trace else None)
        if kind is End or not self._follows("keep"):
            return kind(call)
        if self._follows("nothing"):
            return Run(call, ())
        return Run(call, tuple(self._each(self._variable)))

    def ranges(self) -> tuple[Range, ...]:
        """What stands behind `device` and `host`."""
        return () if self._follows("nothing") else tuple(self._each(self._range))

    def granule(self) -> Granule:
        """What stands behind `granule`."""
        size, whole = self._size(), self._follows("whole")
        region = self._size() if self._follows("region") else 0
        return Granule(size, not whole, region)

    def finish(self) -> None:
        """Refuses a word too many."""
        word = self._peek()
        if word is not None:
            what = f"{word.text!r} is one word too many"
            raise self.refused(word, what, fix="a line, or a `;`, between two")

    def refused(self, word: _Word | None, what: str, *, fix: str) -> ListSyntaxError:
        """The error at a word; None: behind the last one."""
        last = self._words[-1]
        at = last.at + len(last.text) if word is None else word.at
        line = self._text.count("\n", 0, at) + 1
        column = at - (self._text.rfind("\n", 0, at) + 1) + 1
        shown = self._text.split("\n")[line - 1].rstrip()
        return ListSyntaxError(
            what, line=line, column=column, where=f"line {line}, column {column}: {shown}", fix=fix
        )

    def _take(self, wanted: str) -> _Word:
        if self._next == len(self._words):
            what = f"the line ends where {wanted} should stand"
            raise self.refused(None, what, fix="run CALL, out X, in X, free X, fence")
        self._next += 1
        return self._words[self._next - 1]

    def _follows(self, text: str) -> bool:
        """Whether this word comes next; if so it is taken."""
        word = self._peek()
        found = word is not None and (word.kind, word.text) == ("name", text)
        self._next += found
        return found

    def _peek(self) -> _Word | None:
        return self._words[self._next] if self._next < len(self._words) else None

    def _each(self, read: Callable[[], Item]) -> Iterator[Item]:
        """As many as there are, at least one."""
        yield read()
        while self._peek():
            yield read()

    def _variable(self) -> int:
        return self._named("variable", self._trace.variable_by_name if self._trace else None)

    def _named(self, what: str, known: Mapping[str, Call] | Mapping[str, Variable] | None) -> int:
        """The id of the call or variable that comes next."""
        word = self._take(f"a {what}")
        if word.kind == "id":
            return self._whole(word, word.text[1:])
        if known is None:
            raise self.refused(word, "names need a trace", fix="Schedule.parse(text, trace)")
        name = word.text if word.kind == "name" else listed.unquoted(word.text)
        if name not in known:
            names = [*list(known)[:8], *(["..."] if len(known) > 8 else [])]
            fix = did_you_mean(name, known) or f"one of {', '.join(names)}"
            raise self.refused(word, f"no {what} is called {name!r}", fix=fix)
        return known[name].id

    def _range(self) -> Range:
        """A variable, or a part of it."""
        variable = self._variable()
        known = self._trace.variables if self._trace else ()
        size = known[variable].nbytes if 0 <= variable < len(known) else None
        word = self._peek()
        if word is None or word.kind != "range":
            if size is None:
                what = "the size of this variable is not known here"
                raise self.refused(self._words[self._next - 1], what, fix="a range such as [0:64K]")
            return variable, 0, size
        self._next += 1
        lo, colon, hi = word.text[1:-1].partition(":")
        if not colon:
            raise self.refused(word, f"{word.text} is not a range of bytes", fix="[0:64K]")
        return variable, self._bytes(word, lo), self._bytes(word, hi)

    def _size(self) -> int:
        word = self._take("a size")
        return self._bytes(word, word.text)

    def _bytes(self, word: _Word, text: str) -> int:
        found = _SIZE.fullmatch(text)
        if not found:
            raise self.refused(word, f"{text.strip()!r} is not a size", fix="65536 or 64K, M, G")
        return self._whole(word, found[1], _UNITS[found[2]])

    def _whole(self, word: _Word, digits: str, unit: int = 1) -> int:
        """A number of 64 bits, as files hold it. Python reads no more than some thousand digits."""
        number = int(digits) * unit if len(digits) <= _MOST_DIGITS else 1 << 64
        if not -_MOST - 1 <= number <= _MOST:
            short = digits if len(digits) <= _MOST_DIGITS else f"{digits[:_MOST_DIGITS]}..."
            raise self.refused(word, f"{short} is too large", fix="a number of at most 63 bits")
        return number
