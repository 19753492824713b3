"""Every error code with its meaning, the smallest example that raises it, and its remedy.

`ooctrain explain` prints these texts. A code is a promise to the user, so `tests/contracts/`
compares these tables with the codes that the library raises. The rules of the verifier bring their
own examples; the laws of allocators name the command that checks them. Read next: `arguments.py`,
the first table; `../errors.py`, `../sched/rules/`.
"""

from __future__ import annotations

import difflib
import inspect
import textwrap
from collections.abc import Mapping

from ooctrain.errors import ConfigError
from ooctrain.explain.arguments import ARGUMENTS
from ooctrain.explain.courses import COURSES
from ooctrain.explain.explanation import Explanation
from ooctrain.explain.lists import LISTS
from ooctrain.explain.memory import MEMORY
from ooctrain.explain.splitting import SPLITTING
from ooctrain.explain.training import TRAINING
from ooctrain.sched.drawn_list import KEY, drawn_example
from ooctrain.sched.list_words import INSTRUCTIONS
from ooctrain.sched.rules import EXAMPLE_STEP, RULES

CODES: Mapping[str, Explanation] = {
    **ARGUMENTS, **MEMORY, **SPLITTING, **COURSES, **LISTS, **TRAINING,
}  # fmt: skip
WIDTH = 88
LAW_MEANING = (
    "What an allocator promises: P all of them, B best fit, V virtual addressing, S those that "
    "plan ahead. A failure shows the smallest list of requests that breaks it. Read next: "
    "docs/allocators.md."
)


def all_codes() -> dict[str, str]:
    """{code: title} of all error codes, of the verifier's rules, of the allocators' laws, and of
    the instructions of a list."""
    return {
        **{code: entry.title for code, entry in CODES.items()},
        **{code: rule.title for code, rule in RULES.items()},
        **_laws(),
        **{word: entry.title for word, entry in INSTRUCTIONS.items()},
    }


def find_code(code: str) -> tuple[str, Explanation]:
    """(the code as it is written, what it means); the fix of a rule is to be read off its example,
    which of a law is the command that checks it.

    Raises:
        ConfigError: an unknown code.
    """
    wanted = code.strip().upper()
    if wanted.lower() in INSTRUCTIONS:
        kind = INSTRUCTIONS[wanted.lower()]
        return wanted.lower(), Explanation(kind.title, kind.meaning, kind.example, "")
    if wanted in CODES:
        return wanted, CODES[wanted]
    if wanted in RULES:
        rule = RULES[wanted]
        meaning = inspect.cleandoc(rule.check.__doc__ or "")
        return wanted, Explanation(rule.title, meaning, rule.example, "")
    if wanted in _laws():
        check = f"pytest --pyargs ooctrain.laws --allocator my.py:Mine -k law_{wanted}"
        return wanted, Explanation(_laws()[wanted], LAW_MEANING, check, "")
    near = difflib.get_close_matches(wanted, all_codes(), n=1)
    raise ConfigError(
        f"there is no code {code!r}",
        fix=f"did you mean {near[0]}?" if near else "`ooctrain explain` lists them all",
    )


def explain_code(code: str) -> str:
    """The text for a code, as `ooctrain explain` prints it.

    Raises:
        ConfigError: an unknown code.
    """
    known, entry = find_code(code)
    kind, example, meaning = "", "smallest example", textwrap.fill(entry.meaning, WIDTH)
    if known in _laws():
        kind, example = " (a law)", "what checks it"
    elif known in INSTRUCTIONS:
        kind = " (an instruction of a list)"
    elif known not in CODES:
        kind, example = " (a rule of the verifier)", "smallest list that breaks it"
        meaning = entry.meaning  # a docstring, with lines of its own
        if known < "R5":
            example = f"smallest list that breaks it, for the step\n    {EXAMPLE_STEP}\nis"
    parts = [f"{known}: {entry.title}{kind}", meaning, _section(example, entry.example)]
    if known in RULES and (drawing := drawn_example(known)):
        parts.append(_section(f"after each instruction ({KEY})", drawing))
    return "\n\n".join([*parts, *([_section("what mends it", entry.fix)] if entry.fix else [])])


def _section(title: str, text: str) -> str:
    """A title with a text below, indented."""
    return f"{title}\n{textwrap.indent(text, '    ')}"


def _laws() -> Mapping[str, str]:
    # Not at the top: codes are explained at once, without what the laws are made of.
    from ooctrain.testing.allocator_laws import LAWS

    return LAWS
