"""Reads the page of an error code, a rule, a law or an instruction.

A code and a rule of the verifier have a page of Markdown beside this file (`OOC-120.md`,
`R203.md`): title, meaning, smallest example, and what mends it. `ooctrain explain` prints it as it
stands, and the documentation has them all. The verifier's drawing of the example is added to the
page of a rule; laws of allocators and instructions of a list are read off their tables. The word
`list` is explained by two lists of one small step. Read next: `OOC-120.md`; `../errors.py`,
`../sched/rules.py`.
"""

from __future__ import annotations

import difflib
import itertools
import re
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files

from ooctrain.errors import ConfigError
from ooctrain.sched.drawn_list import EXAMPLE_STEP, KEY, drawn_example
from ooctrain.sched.list_words import INSTRUCTIONS
from ooctrain.sched.rules import RULES
from ooctrain.sched.schedule import End, Plan, Run
from ooctrain.step.chain import equal_stages, toy_machine
from ooctrain.units import format_us

_PAGE = re.compile(
    r"# \S+: (?P<title>[^\n]+)\n\n(?P<meaning>.+)\n\n"
    r"Smallest [^\n]+:\n\n(?P<example>(?:    [^\n]+\n)+)(?:\nWhat mends it: (?P<fix>.+)\n)?",
    re.DOTALL,
)
WIDTH = 88
LAW_MEANING = (
    "What an allocator promises: P all of them, B best fit, V virtual addressing, S those that "
    "plan ahead. A failure shows the smallest list of requests that breaks it. Read next: "
    "`docs/allocators.md`."
)


LIST = "list"
LIST_MEANING = (
    "A training step is a straight-line list of instructions. F0 to F2 are layers, B2 to B0 their "
    "backward passes; x1 is what F0 makes, y1 its gradient; every value has 100 bytes. In-core, "
    "values are only freed. In less memory, some are copied out, freed, and copied in again. "
    "Correctness and memory are decided by the order of the list alone, speed by the streams that "
    "it runs on: one computes, one copies out, one copies in."
)


@dataclass(frozen=True, slots=True)
class Explanation:
    """What a code means.

    Args:
        title: in a few words.
        meaning: in a few sentences.
        example: the smallest thing that raises it; for a law, the command that checks it.
        fix: what mends it; "" for rules, laws and instructions.
        text: all of this as Markdown, as it is printed.
    """

    title: str
    meaning: str
    example: str
    fix: str
    text: str


def all_codes() -> dict[str, str]:
    """{code: title} of all error codes, of the verifier's rules, of the allocators' laws, and of
    the words of a list."""
    return {
        **{code: _page(code).title for code in codes_with_a_page()},
        **_laws(),
        **{word: entry.title for word, entry in INSTRUCTIONS.items()},
        LIST: "a training step, in-core and in less memory",
    }


def codes_with_a_page() -> list[str]:
    """All error codes, then all rules of the verifier."""
    names = [path.name for path in files(__name__).iterdir()]
    return sorted(name.removesuffix(".md") for name in names if name.endswith(".md"))


def find_code(code: str) -> tuple[str, Explanation]:
    """(the code as it is written, what it means).

    Raises:
        ConfigError: an unknown code.
    """
    wanted = code.strip().upper()
    if wanted in codes_with_a_page():
        return wanted, _page(wanted)
    if wanted.lower() in INSTRUCTIONS:
        return wanted.lower(), _instruction(wanted.lower())
    if wanted.lower() == LIST:
        return LIST, _list()
    if wanted in _laws():
        return wanted, _law(wanted)
    near = difflib.get_close_matches(wanted, all_codes(), n=1)
    raise ConfigError(
        f"there is no code {code!r}",
        fix=(f"did you mean {near[0]}? " if near else "") + "`ooctrain explain` lists them all",
    )


def explain_code(code: str) -> str:
    """The text for a code, as `ooctrain explain` prints it.

    Raises:
        ConfigError: an unknown code.
    """
    known, entry = find_code(code)
    drawing = drawn_example(known, entry.example) if known in RULES else ""
    if not drawing:
        return entry.text
    step = _section("It is a list for the step", EXAMPLE_STEP)
    return f"{entry.text}\n\n{step}\n\n{_section(f'After each instruction ({KEY})', drawing)}"


def _page(code: str) -> Explanation:
    text = files(__name__).joinpath(f"{code}.md").read_text(encoding="utf-8")
    found = _PAGE.fullmatch(text)
    assert found, f"{code}.md has not the form of a page"
    title, meaning, fix = (_joined(found[part]) for part in ("title", "meaning", "fix"))
    example = textwrap.dedent(found["example"]).strip()
    return Explanation(title, meaning, example, fix, text.removeprefix("# ").strip())


def _instruction(word: str) -> Explanation:
    kind = INSTRUCTIONS[word]
    head, example = f"{word}: {kind.title} (an instruction of a list)", "Smallest example"
    text = _written(head, kind.meaning, _section(example, kind.example))
    return Explanation(kind.title, kind.meaning, kind.example, "", text)


def _list() -> Explanation:
    example, title = two_lists(), all_codes()[LIST]
    text = _written(f"{LIST}: {title}", LIST_MEANING, _section("Three layers, twice", example))
    return Explanation(title, LIST_MEANING, example, "", text)


def two_lists() -> str:
    """A step of three stages, in-core and in the least memory, side by side: a line for each call,
    with what is listed up to the next one.
    """
    # Not at the top: codes are explained at once, without what planners are made of.
    from ooctrain.sched.planners.keep_all import KeepAll
    from ooctrain.sched.planners.window import SlidingWindow
    from ooctrain.sched.planning.question import Question
    from ooctrain.units import Granule

    trace, machine, whole = equal_stages(3), toy_machine(), Granule(1, ranges=False)
    in_core = KeepAll().plan(Question(trace, 600, machine, whole))
    window = SlidingWindow().plan(Question(trace, 400, machine, whole))
    left = ["in-core", "", *_lines_by_call(in_core)]
    right = ["in less memory", *_lines_by_call(window)]
    rows = itertools.zip_longest(left, right, fillvalue="")
    return "\n".join(f"{one:36} {other}".rstrip() for one, other in rows)


def _lines_by_call(plan: Plan) -> list[str]:
    lines: list[str] = []
    for index, instruction in enumerate(plan.schedule.instructions):
        text = plan.schedule.describe(index, plan.trace)
        if isinstance(instruction, Run) or not lines:
            lines.append(text)
        elif not isinstance(instruction, End):
            lines[-1] += f"; {text}"
    return [*lines, f"{plan.peak_bytes} bytes, {format_us(plan.makespan_us)}"]


def _law(code: str) -> Explanation:
    title = _laws()[code]
    check = f"pytest --pyargs ooctrain.laws --allocator my.py:Mine -k law_{code}"
    text = _written(f"{code}: {title} (a law)", LAW_MEANING, _section("What checks it", check))
    return Explanation(title, LAW_MEANING, check, "", text)


def _joined(text: str | None) -> str:
    """A paragraph of a page in one line; "" where the page has none."""
    return " ".join((text or "").split())


def _written(title: str, meaning: str, example: str) -> str:
    return f"{title}\n\n{textwrap.fill(meaning, WIDTH)}\n\n{example}"


def _section(title: str, text: str) -> str:
    """A title, and a block of code below it."""
    return f"{title}:\n\n{textwrap.indent(text, '    ')}"


def _laws() -> Mapping[str, str]:
    # Not at the top: codes are explained at once, without what the laws are made of.
    from ooctrain.testing.allocator_laws import LAWS

    return LAWS
