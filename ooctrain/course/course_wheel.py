"""A wheel of the library as it is installed here, with some of its files changed.

A wheel is a zip with the package's files, its metadata, and a list of both with their digests. So
one can be written without building anything: from a checkout as well as from an installed wheel,
without a network. The version gets a label, `1.0+course.lru.planner`, by which a student and
`pip list` see what is installed. Source: PyPA specifications, "Binary distribution format" and
"Recording installed projects"; PEP 440, local version identifiers. Read next: `strip.py`, which
makes a student's; `autograders/gradescope.py`, which packs a grader's.
"""

from __future__ import annotations

import base64
import hashlib
import re
import zipfile
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path

from ooctrain.course.assignments import home
from ooctrain.errors import ConfigError

PACKAGE = Path(__file__).resolve().parents[1]
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
    """All files of the package, and of what a wheel brings beside it, by their names there."""
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
