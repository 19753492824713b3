"""Plug-ins named in text: "window:size=2", "my_file.py:MyPlanner", "va:chunk=1MiB".

Planners and allocators are named in the same way, so the grammar is defined once, here:
NAME[:KEY=VALUE,...] or FILE.py:CLASS[:KEY=VALUE,...], for example "window:size=2,count=occurrence".
The text is looked up in a table of known names or in the entry points of other packages, and the
result is an object made with the given parameters. An unexpected error in a user's file is most
likely that file's own, so the error names the line there, not the calls of this library that led
to it; any other error is the library's. Read next: `sched/planners/registry.py`.
"""

from __future__ import annotations

import importlib
import importlib.resources
import importlib.util
import inspect
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ooctrain.errors import ConfigError, OoctrainError, PartFailed, did_you_mean, unknown_name
from ooctrain.units import parse_bytes

_WHOLE = re.compile(r"[+-]?[0-9]+")
_SIZE = re.compile(r"[0-9]+(\.[0-9]+)?[ ]*[kmgt]?i?b", re.IGNORECASE)
#: "mine.py", "./mine", "~/mine.ipynb": the path of a file, rather than a name.
_PATH = re.compile(r"[/\\]|^~|\.py:|\.[A-Za-z]\w*$")
_FRAME = re.compile(r'^ *File "(.+)", line (\d+), in (.+)$', re.MULTILINE)
_FROM = re.compile(r"cannot import name '(\w+)' from '([\w.]+)'")
_WORDS: Mapping[str, Any] = {"true": True, "false": False, "none": None}


@dataclass(frozen=True, slots=True)
class PluginSpec:
    """A plug-in as named in text.

    Args:
        name: name of the plug-in, or of the class where `file` is given.
        options: {parameter: value}; values are whole numbers, floats, bytes ("1MiB"), true, false,
            none or words.
        file: path of a Python file, or "".
    """

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)
    file: str = ""


def parse_spec(text: str) -> PluginSpec:
    """Reads NAME[:KEY=VALUE,...] or FILE.py:CLASS[:KEY=VALUE,...].

    Raises:
        ConfigError: neither.
    """
    file, separator, rest = text.strip().partition(".py:")
    name, _, options = (rest if separator else text.strip()).partition(":")
    if not name and separator:
        refuse_path(f"{file}.py")
    if not name:
        raise ConfigError(
            f"{text!r} names nothing",
            code="OOC-106",
            fix='such as "window:size=2" or "my_file.py:MyPlanner"',
        )
    return PluginSpec(name, _parse_options(options, text), f"{file}.py" if separator else "")


def parse_value(text: str) -> Any:
    """A parameter's value: "3" -> 3, "1.5" -> 1.5, "1MiB" -> 1048576, "true" -> True, else the
    word.
    """
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    if _WHOLE.fullmatch(text):
        return int(text)
    if _SIZE.fullmatch(text):
        return parse_bytes(text)
    try:
        return float(text)
    except ValueError:
        return text


def resolve(text: str, known: Mapping[str, Callable[..., Any]], *, group: str, what: str) -> Any:
    """Makes the plug-in that a text names.

    Args:
        text: what the user typed.
        known: {name: class or function that takes the parameters by keyword}.
        group: entry-point group of other packages' plug-ins.
        what: "planner" or "allocator", for messages.

    Raises:
        ConfigError: unknown name (the nearest ones are suggested), file, class or parameter.
    """
    factory, options = locate(text, known, group=group, what=what)
    check_call(factory, (), options, text, what)
    return factory(**options)


def check_call(
    factory: Callable[..., Any], values: Sequence[Any], options: Mapping[str, Any], text: str,
    what: str,
) -> None:  # fmt: skip
    """Raises ConfigError where a plug-in cannot be called with these values and parameters."""
    try:
        inspect.signature(factory).bind(*values, **options)
    except TypeError as error:
        raise ConfigError(
            f"{what} {text!r} cannot be made: {error}", code="OOC-106",
            fix="give every parameter a default, or a value in the text",
        ) from error  # fmt: skip


def locate(
    text: str, known: Mapping[str, Callable[..., Any]], *, group: str, what: str, given: int = 0
) -> tuple[Callable[..., Any], Mapping[str, Any]]:
    """What `resolve` would call, and the parameters it would give.

    Args:
        given: how many of the first parameters are the caller's, and cannot be set in the text.

    Raises:
        ConfigError: as `resolve`.
    """
    spec = parse_spec(text)
    if spec.file:
        factory: Callable[..., Any] | None = load_from_file(spec.file, spec.name)
    else:
        factory = known.get(spec.name) or _load_entry_point(spec.name, group)
    if factory is None:
        refuse_path(spec.name, what)
        otherwise = f"one of the known names, or file.py:Class for your own {what}"
        raise unknown_name(f"unknown {what}", spec.name, names(known, group), otherwise)
    _check_options(factory, spec, what, given)
    return factory, spec.options


def refuse_path(name: str, what: str = "class or function", of: str = "Name") -> None:
    """For a word that is not a known name. Raises ConfigError: it is the path of a file, which is
    not there, or is there and wants the name of something in it.

    Args:
        what: would be named, such as "planner".
        of: what stands for the name of one in "file.py:Name".
    """
    if not is_path(name):
        return
    path, python = _in_home(name), name.endswith(".py")
    example = f"{name if python else 'file.py'}:{of}"
    if not path.exists():
        said = f"there is no {'Python file' if python else 'file'} {name!r}"
        example = f"its path, from here: {Path.cwd()}; then {example}"
    elif path.is_file() and python:
        said = f"{name!r} names a file, but no {what} in it"
    else:
        said = f"{name!r} is {'a folder' if path.is_dir() else 'no Python file'}"
    raise ConfigError(said, code="OOC-106", fix=example)


def is_path(name: str) -> bool:
    """Whether a word looks like the path of a file or folder, rather than a name."""
    return bool(_PATH.search(name))


def entry_points(**wanted: str) -> Iterable[Any]:
    """The plug-ins of other packages. Python's reader of them is slow to load, and our own names
    are looked up first.
    """
    return importlib.import_module("importlib.metadata").entry_points(**wanted)


def names(known: Iterable[str], group: str) -> tuple[str, ...]:
    """All names that `resolve` knows, sorted: our own and those of other packages."""
    return tuple(sorted({*known, *(entry.name for entry in entry_points(group=group))}))


def load_from_file(path: str, name: str) -> Callable[..., Any]:
    """The class (or function) `name` of a Python file, which is executed.

    While it runs, and afterwards, `sys.modules` has it under its path: `dataclass` looks there for
    the module of a class, and a path hides no other module of the same name.

    Raises:
        ConfigError: no such file, or no such name in it.
    """
    if not name:
        refuse_path(path)
    where = _in_home(path)
    specification = importlib.util.spec_from_file_location(str(where.resolve()), where)
    if not where.is_file() or specification is None or specification.loader is None:
        raise ConfigError(
            f"there is no Python file {path!r}", code="OOC-106",
            fix=f"its path, from here: {Path.cwd()}",
        )  # fmt: skip
    module = importlib.util.module_from_spec(specification)
    sys.modules[specification.name] = module
    try:
        specification.loader.exec_module(module)
    except ImportError as error:
        if moved := _moved(error):
            raise moved from error
        raise
    if not hasattr(module, name):
        near = did_you_mean(name, [word for word in vars(module) if not word.startswith("_")])
        raise ConfigError(
            f"{path!r} defines no {name!r}", code="OOC-106", fix=near or "a name in it"
        )
    found = getattr(module, name)
    if not callable(found):
        kind = type(found).__name__
        raise ConfigError(
            f"{name!r} of {path!r} is {kind}, not a class or function",
            code="OOC-106",
            fix="file.py:Name of a class, or of a function that makes the object",
        )
    return found


def _moved(error: ImportError) -> ConfigError | None:
    """What to write instead of an import of a module of ours that has moved; None: it has not."""
    wanted = error.name or ""
    if one_of := _FROM.fullmatch(str(error).partition(" (")[0]):
        wanted = f"{one_of[2]}.{one_of[1]}"
    table = importlib.resources.files("ooctrain").joinpath("moved.csv")
    homes = dict(line.split(",") for line in table.read_text(encoding="utf-8").splitlines()[1:])
    if wanted not in homes:
        return None
    home = homes[wanted]
    return ConfigError(
        f"{wanted} has moved", code="OOC-106", where="an import of your file",
        fix=f"it is {home} now" if home else "it is a part of the library's tests now",
    )  # fmt: skip


def fault_of_own_code(error: BaseException, given: Sequence[str]) -> OoctrainError | None:
    """The error as its author should read it; None if it did not pass through a file of his."""
    if isinstance(error, PartFailed) and error.__cause__ is not None:
        error = error.__cause__
    files = {Path(file).resolve() for file in own_files(given)}
    places = [p for p in _places(error) if Path(p[0]).resolve() in files]
    if not places:
        return None
    file, line, function = places[-1]
    kind = type(error).__name__
    text = error.msg if isinstance(error, SyntaxError) else str(error)  # the place stands below
    fix = "`ooctrain --traceback COMMAND ...` shows the whole way there"
    if isinstance(error, ModuleNotFoundError) and error.name:
        fix = f"install what has it, where ooctrain runs: {sys.executable} -m pip install ..."
    return OoctrainError(
        f"your own code raised {kind}" + (f": {text}" if text else ""),
        code="OOC-115",
        where=f"{file}, line {line}" + (f", in {function}" if function else ""),
        fix=fix,
    )


def own_files(given: Sequence[str]) -> Iterator[str]:
    """The Python files named in arguments such as mine.py:Mine or --planner=lru,mine.py:Mine."""
    for word in given:
        value = word.partition("=")[2] if word.startswith("--") else word
        for name in (value, *value.split(",")):  # a list of names, or a path with a comma
            file, separator, _ = name.partition(".py:")
            if separator:
                yield f"{file}.py"


def _in_home(path: str) -> Path:
    """A path, where no shell has replaced its tilde, as in --planner=~/mine.py:Mine."""
    return Path(path).expanduser() if path.startswith("~/") else Path(path)


def _parse_options(text: str, whole: str) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for item in filter(None, text.split(",")):
        key, separator, value = (part.strip() for part in item.partition("="))
        if not separator or not key.isidentifier() or not value:
            raise ConfigError(
                f"{item!r} in {whole!r} is not key=value",
                code="OOC-106",
                fix='such as "window:size=2"',
            )
        if key in options:
            raise ConfigError(
                f"{whole!r} gives {key!r} twice", code="OOC-106", fix=f"one value of {key!r}"
            )
        options[key] = parse_value(value)
    return options


def _load_entry_point(name: str, group: str) -> Callable[..., Any] | None:
    for entry in entry_points(group=group, name=name):
        try:
            return entry.load()
        except (ImportError, AttributeError) as error:
            raise ConfigError(
                f"{name!r} of another package cannot be loaded: {error}", code="OOC-106",
                where=f"entry point {entry.value!r} of group {group!r}",
                fix="install that package and what it needs again",
            ) from error  # fmt: skip
    return None


def _check_options(factory: Callable[..., Any], spec: PluginSpec, what: str, given: int) -> None:
    parameters = list(inspect.signature(factory).parameters.values())[given:]
    if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters):
        return
    accepted = [parameter.name for parameter in parameters]
    for option in spec.options:
        if option not in accepted:
            raise ConfigError(
                f"{what} {spec.name!r} has no parameter {option!r}",
                code="OOC-106",
                numbers=f"parameters: {', '.join(accepted) or 'none'}",
                fix=did_you_mean(option, accepted) or f"leave {option} out",
            )


def _places(error: BaseException) -> list[tuple[str, int, str]]:
    """(file, line, function) from the outermost frame to the innermost, syntax errors included."""
    frames = traceback.extract_tb(error.__traceback__)
    places = [(frame.filename, frame.lineno or 0, frame.name) for frame in frames]
    # An error in a worker process comes with the frames of that process as text only.
    remote = getattr(error.__cause__, "tb", "")
    places += [(file, int(line), function) for file, line, function in _FRAME.findall(remote)]
    if isinstance(error, SyntaxError) and error.filename:
        places.append((error.filename, error.lineno or 0, ""))
    return places
