"""A course wheel: the library without one assignment's solution, with all its par.

Par is computed here, where the solution still is, and travels in the wheel; the solution does not.
Read next: `par.py`.
"""

from __future__ import annotations

import ast
import base64
import hashlib
import re
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from importlib import metadata
from pathlib import Path

from ooctrain.course import par
from ooctrain.course.assignments import home
from ooctrain.course.footprints import par_number
from ooctrain.course.measures import par_us
from ooctrain.course.replays import par_bytes
from ooctrain.course.rubric import Compared, Rubric
from ooctrain.errors import ConfigError

# Both together.


def write_course_wheel(folder: Path, rubric: Rubric) -> Path:
    """Writes the wheel that students of an assignment install; returns where it is.

    Raises:
        ConfigError: the rubric withholds nothing.
    """
    assignment = rubric.folder.resolve().name
    if not rubric.withheld:
        raise ConfigError(
            f"the rubric of {assignment} does not say what to leave out", code="OOC-119",
            fix='withheld = ["sched/planners/lru.py"] in its grade.toml, for example',
        )  # fmt: skip
    files = stripped_files(rubric.withheld, assignment)
    files[par.FILE] = par.written(_numbers(rubric))
    label = ".".join(filter(str.isalnum, assignment.replace("-", "_").split("_")))
    return write_wheel(folder, files, f"course.{label}" if label else "course")


def _numbers(rubric: Rubric) -> Iterator[tuple[Compared, float]]:
    yield from ((part, par_us(part)) for part in rubric.measures)
    yield from ((part, par_bytes(part)) for part in rubric.replays)
    yield from ((part, par_number(part)) for part in rubric.footprints)


# The library without the solution. `stripped` takes a file's text and leaves out the bodies that
# the assignment's `grade.toml` names: `withheld = ["sched/planners/lru.py",
# "alloc/best_fit.py:BestFit"]`. Names, parameters, fields and constants stay, so they can still be
# imported; a function or method that is called raises `Withheld`, which names it and the assignment
# (an object of a dataclass can be made). Docstrings, comments and private names go too, as they
# explain the method.

PACKAGE = Path(__file__).resolve().parents[1]
_Function = ast.FunctionDef | ast.AsyncFunctionDef
#: They look at the fields of an object that has been made.
_MAKERS = ("__post_init__", "__init_subclass__", "__set_name__")


def stripped_files(withheld: Iterable[str], assignment: str) -> dict[str, str]:
    """{file below the package: its text without what is withheld}.

    Args:
        withheld: "file.py", or "file.py:name" for a function or class at the file's top.

    Raises:
        ConfigError: there is no such file or name.
    """
    wanted: dict[str, set[str]] = {}
    for entry in withheld:
        file, _, name = entry.partition(":")
        wanted.setdefault(file, set()).add(name)
    return {file: stripped(file, names, assignment) for file, names in wanted.items()}


def stripped(file: str, names: Iterable[str], assignment: str) -> str:
    """A file of the package without the bodies of what is named; "": of all that it defines."""
    try:
        tree = ast.parse((PACKAGE / file).read_text(encoding="utf-8"))
    except OSError as error:
        raise _none_such(file) from error
    defined = {node.name: node for node in tree.body if isinstance(node, _Function | ast.ClassDef)}
    chosen = set(names)
    if "" in chosen:
        tables = [node for node in tree.body if isinstance(node, ast.Assign | ast.AnnAssign)]
        named = {n.id for table in tables for n in ast.walk(table) if isinstance(n, ast.Name)}
        chosen = {name for name in defined if not _is_private(name) or name in named}
        gone = [node for name, node in defined.items() if name not in chosen]
        tree.body = [node for node in tree.body if node not in gone]
    for name in sorted(chosen):
        if name not in defined:
            raise _none_such(f"{file}:{name}")
        _empty(defined[name], f"{file}: {name}", assignment)
    raiser = ast.ImportFrom("ooctrain.errors", [ast.alias("Withheld", "_Withheld")], 0)
    later = [n for n in tree.body if isinstance(n, ast.ImportFrom) and n.module == "__future__"]
    rest = [node for node in tree.body if node not in later and not _is_text(node)]
    text = f'"""Part of this file is left out: assignment {assignment} requests it."""'
    tree.body = [*ast.parse(text).body, *later, raiser, *rest]
    return f"{ast.unparse(ast.fix_missing_locations(tree))}\n"


def _empty(node: ast.stmt, path: str, assignment: str) -> None:
    """Leaves out what a function does, or what a class's methods do."""
    if isinstance(node, ast.ClassDef):
        kept = [inner for inner in node.body if not _is_text(inner)]
        kept = [inner for inner in kept if not _is_private(getattr(inner, "name", ""))]
        node.body = kept or [ast.Pass()]
        for inner in node.body:
            _empty(inner, f"{path}.{getattr(inner, 'name', '')}", assignment)
    elif isinstance(node, _Function):
        raising = f"raise _Withheld({path!r}, {assignment!r})"
        node.body = [ast.Pass()] if node.name in _MAKERS else ast.parse(raising).body


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("__")


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _none_such(what: str) -> ConfigError:
    return ConfigError(
        f"the library has no {what!r}, which the assignment withholds", code="OOC-119",
        fix='withheld = ["file.py", "file.py:name"], below ooctrain/, of a function or class there',
    )  # fmt: skip


# A wheel is a zip with the package's files, its metadata, and a list of both with their digests. So
# one can be written without building anything: from a checkout as well as from an installed wheel,
# without a network. The version gets a label, `1.0+course.lru.planner`, by which a student and `pip
# list` see what is installed. Source: PyPA specifications, "Binary distribution format" and
# "Recording installed projects"; PEP 440, local version identifiers.

NAME = "ooctrain"
#: As early as a zip can say, so that the same files give the same wheel.
_TIME = (1980, 1, 1, 0, 0, 0)


def write_wheel(folder: Path, changed: Mapping[str, str], label: str = "") -> Path:
    """Writes the wheel, and returns where it is.

    Args:
        folder: it is made.
        changed: {file below the package: its text here}.
        label: behind the version: letters, digits and dots.

    Raises:
        ConfigError: the library was not installed, so that its metadata are missing.
    """
    facts, entries = _metadata()
    version = re.search(r"^Version: (\S+)$", facts, re.MULTILINE)
    assert version is not None
    public = version[1].partition("+")[0]
    labelled = f"{public}+{label}" if label else public
    facts = facts.replace(version[0], f"Version: {labelled}", 1)
    about = f"{NAME}-{labelled}.dist-info"
    texts = {
        **{f"{NAME}/{file}": text for file, text in changed.items()},
        f"{about}/METADATA": facts, f"{about}/entry_points.txt": entries,
        f"{about}/WHEEL": "Wheel-Version: 1.0\nGenerator: ooctrain course\n"
        "Root-Is-Purelib: true\nTag: py3-none-any\n",
    }  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{NAME}-{labelled}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        record = [
            _put(wheel, name, file.read_bytes())
            for name, file in _files()
            if name not in texts
        ]  # fmt: skip
        record += [_put(wheel, name, text.encode()) for name, text in texts.items()]
        listed = "".join(f"{line}\n" for line in (*record, f"{about}/RECORD,,"))
        _put(wheel, f"{about}/RECORD", listed.encode())
    return path


def _files() -> Iterator[tuple[str, Path]]:
    """All files of the package, and of what a wheel brings with it, by their names there, but for
    the pocket system, which solves most assignments in small.
    """
    for name, path in _all_files():
        if not name.startswith(f"{NAME}/tutorials/pocket/"):
            yield name, path


def _all_files() -> Iterator[tuple[str, Path]]:
    for path in sorted(PACKAGE.rglob("*")):
        if _counts(path):
            yield f"{NAME}/{path.relative_to(PACKAGE).as_posix()}", path
    tutorials = home().parent
    if PACKAGE not in tutorials.parents:
        for path in sorted(tutorials.rglob("*")):
            if _counts(path) and path.parent != tutorials and "pictures" not in path.parts:
                yield f"{NAME}/tutorials/{path.relative_to(tutorials).as_posix()}", path


def _counts(path: Path) -> bool:
    return path.is_file() and "__pycache__" not in path.parts and not path.name.startswith(".")


def _put(wheel: zipfile.ZipFile, name: str, content: bytes) -> str:
    """Adds a file; returns its line in the record."""
    entry = zipfile.ZipInfo(name, _TIME)
    entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
    wheel.writestr(entry, content)
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    return f"{name},sha256={digest},{len(content)}"


def _metadata() -> tuple[str, str]:
    """(METADATA, entry_points.txt) of the installed library."""
    try:
        found = metadata.distribution(NAME)
        facts, entries = found.read_text("METADATA"), found.read_text("entry_points.txt")
    except metadata.PackageNotFoundError:
        facts = entries = None
    if not facts or not entries:
        raise ConfigError(
            "the library is not installed, so that its metadata are missing", code="OOC-108",
            fix="pip install . (or -e .) in its checkout, then this command again",
        )  # fmt: skip
    return facts, entries
