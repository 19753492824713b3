"""Pages to look things up in: every code, every option, every public name.

They are made of what the library itself says: `ooctrain explain`, `--help`, docstrings. So a search
for `OOC-210`, `R203` or `--host-budget` finds its page, and none is ever out of date. Read next:
`site_pages.py`, which writes all pages.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import click
from prose import as_markdown, docstring_of, escaped, tree, write

import ooctrain as oc
from ooctrain.cli import command_line
from ooctrain.explain import all_codes, explain_code

SERIES = {
    "OOC-0": "The root",
    "OOC-1": "Arguments and settings",
    "OOC-2": "Memory, lists and plans",
    "OOC-3": "Data, checkpoints, training",
    "OOC-4": "Gradients and data types",
    "R": "Rules of the verifier",
    "": "Laws of allocators",
}
INSTRUCTIONS = "Instructions of a list"


def write_codes(folder: Path) -> None:
    """A heading for each code, with its page of `ooctrain/explain/`."""
    parts = [
        "# Codes of errors, rules and laws",
        "`ooctrain explain CODE` prints the same in a terminal. A code means the same for ever.",
        "```{highlight} text\n```",
    ]
    last = ""
    for code, title in all_codes().items():
        series = next(name for start, name in SERIES.items() if code.startswith(start))
        series = INSTRUCTIONS if code.islower() else series
        if series != last:
            parts.append(f"## {series}")
            last = series
        told = explain_code(code).partition("\n\n")[2]
        # A search finds a heading first that is nothing but the code.
        parts += [f"({code})=", f"### {code}", f"**{escaped(title)}**", told]
    write(folder / "codes.md", "\n\n".join(parts) + "\n")


def commands(
    command: click.Command, words: tuple[str, ...] = ("ooctrain",)
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """(words, command) of all commands, those of groups included."""
    yield words, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None, name
            yield from commands(found, (*words, name))


def write_options(folder: Path) -> list[str]:
    """A page for each command, with a heading for each option; returns their names."""
    pages = []
    for words, command in commands(command_line):
        page = "-".join(words[1:]) or "ooctrain"
        pages.append(page)
        write(folder / f"{page}.md", _command_page(words, command))
    head = "# Commands and options\n\nWhat `--help` says, to search in.\n\n"
    write(folder / "index.md", head + tree(pages))
    return pages


def _command_page(words: tuple[str, ...], command: click.Command) -> str:
    context = click.Context(command, info_name=" ".join(words))
    usage = command.get_usage(context).removeprefix("Usage: ")
    parts = [f"# {' '.join(words)}", escaped(inspect.cleandoc(command.help or ""))]
    parts.append(f"```text\n{usage}\n```")
    for option in command.params:
        record = option.get_help_record(context)
        if isinstance(option, click.Option) and record and not option.hidden:
            name, told = record
            parts += [f"## {option.opts[-1]}", f"`{name}`", escaped(told)]
    return "\n\n".join(parts) + "\n"


def write_names(folder: Path) -> list[str]:
    """A page for all short names, and one for each public module; returns their names."""
    modules = {n: getattr(oc, n) for n in oc.__all__ if isinstance(getattr(oc, n), ModuleType)}
    short = [n for n in oc.__all__ if n not in modules and not n.startswith("_")]
    parts = ["# oc: the short names", "`import ooctrain as oc`. Each is loaded when first used."]
    parts += [_entry(f"ooctrain.{name}", getattr(oc, name)) for name in short]
    write(folder / "oc.md", "\n\n".join(parts) + "\n")
    for name, module in modules.items():
        parts = [f"# oc.{name}", as_markdown(docstring_of(module))]
        parts += [_entry(f"ooctrain.{name}.{n}", thing) for n, thing in public(module).items()]
        write(folder / f"{name}.md", "\n\n".join(parts) + "\n")
    head = (
        "# API by public name\n\nThe names that programs use. `import ooctrain as oc` gives the "
        "short ones; modules have PyTorch's names.\n\n"
    )
    write(folder / "index.md", head + tree(["oc", *modules]))
    return ["oc", *modules]


def public(module: ModuleType) -> dict[str, object]:
    """{name: class or function} that a module offers."""
    names = getattr(module, "__all__", None)
    home = "ooctrain" if names else module.__name__
    found = {name: getattr(module, name) for name in sorted(names or vars(module))}
    return {
        name: thing
        for name, thing in found.items()
        if not name.startswith("_")
        and callable(thing)
        and str(getattr(thing, "__module__", "")).startswith(home)
    }


def _entry(name: str, thing: object) -> str:
    kind = "class" if isinstance(thing, type) else "function" if callable(thing) else "data"
    parts = [as_markdown(_own_docstring(thing))]
    if isinstance(thing, type):
        parts += [_method(name, n, m) for n, m in vars(thing).items() if _is_method(n, m)]
    body = "\n\n".join(part for part in parts if part)
    return f"::::{{py:{kind}}} {name}{_signature(thing) if kind != 'data' else ''}\n{body}\n::::"


def _own_docstring(thing: object) -> str:
    """Not that of `object`, and not what `dataclass` writes of itself."""
    told = docstring_of(thing)
    return "" if re.match(r"\w+\(.*\)( -> None)?$", told.partition("\n")[0]) else told


def _is_method(name: str, method: object) -> bool:
    method = getattr(method, "__func__", method)
    return inspect.isfunction(method) and not name.startswith("_") and bool(method.__doc__)


def _method(of: str, name: str, method: object) -> str:
    function = getattr(method, "__func__", method)
    head = f"{of}.{name}{_signature(function)}"
    return f":::{{py:method}} {head}\n{as_markdown(docstring_of(function))}\n:::"


def _signature(thing: object) -> str:
    """Names and defaults of the parameters; types stand in the docstring's words."""
    try:
        found = inspect.signature(thing)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return "()"
    bare = [
        p.replace(
            annotation=p.empty, default=p.empty if p.default is p.empty else _Shown(p.default)
        )
        for p in found.parameters.values()
        if p.name != "self"
    ]
    return str(inspect.Signature(bare)).replace("\n", " ")


class _Shown:
    """A default, as a reader would write it."""

    def __init__(self, value: object):
        self.value = value

    def __repr__(self) -> str:
        text = repr(self.value)
        return "..." if text.startswith("<") or len(text) > 40 else text
