"""Results on disk, each under a name made of all that decides it: found again, never stale.

If the name holds everything that a result depends on, a kept result with that name is always right.
For a plan the name is made of the step, the machine, the budget, the planner with its parameters,
and the text of every source file. An edit of any source makes new names, because computing twice
costs time and a stale number costs trust. A result is plain data, and a file whose content is not
what was written counts as missing. Read next: `planned.py`, `compare.py`.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import secrets
from collections.abc import Iterable
from dataclasses import dataclass, is_dataclass
from functools import lru_cache
from pathlib import Path
from types import UnionType
from typing import Any, Union, cast, get_args, get_origin, get_type_hints

from ooctrain.execution.planners import PLANNERS, get_planner
from ooctrain.plugins import parse_spec

PACKAGE = Path(__file__).parents[1]


@dataclass(frozen=True, slots=True)
class ResultStore:
    """A folder of results; it may be emptied at any time.

    Args:
        folder: made when the first result is written; None: nothing is kept.
    """

    folder: Path | None

    def read(self, name: str) -> Any:
        """What was written under a name; None: nothing was, or the file is damaged."""
        if self.folder is None:
            return None
        try:
            text = self._path(name).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            return None
        checksum, _, content = text.partition("\n")
        return json.loads(content) if checksum == digest(content) else None

    def write(self, name: str, content: Any) -> None:
        """Keeps plain data, whole or not at all: another process may look at the same time."""
        if self.folder is None:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        text = json.dumps(content)
        part = self._path(f"{name}.{secrets.token_hex(8)}.part")
        part.write_text(f"{digest(text)}\n{text}", encoding="utf-8")
        part.replace(self._path(name))

    def _path(self, name: str) -> Path:
        assert self.folder is not None
        return self.folder / name


def digest(*parts: object) -> str:
    """A name made of the parts' content."""
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:24]


def revived(hint: Any, data: Any) -> Any:
    """What a value of a type was before it became plain data: lists, tuples and dataclasses of
    them, or None, are made again; anything else is what it was.
    """
    if data is None:
        return None
    if is_dataclass(hint):
        hints = get_type_hints(hint)
        again = {name: revived(hints[name], value) for name, value in data.items()}
        return cast("type", hint)(**again)
    inner = [each for each in get_args(hint) if each not in (type(None), ...)]
    if get_origin(hint) in (Union, UnionType):
        return revived(inner[0], data) if len(inner) == 1 else data
    if get_origin(hint) is list:
        return [revived(inner[0], value) for value in data]
    if get_origin(hint) is tuple:
        every = inner if len(inner) == len(data) else inner * len(data)
        return tuple(map(revived, every, data))
    return data


def planner_sources(planner: str) -> tuple[str, str]:
    """Names the sources that a plan depends on: this package's, and those next to a planner of
    another user's.

    Args:
        planner: as typed: by name with parameters, or "file.py:Class".
    """
    spec = parse_spec(planner)
    if spec.file:
        return package_sources(), _sources(Path(spec.file).parent.glob("*.py"))
    if spec.name in PLANNERS:
        return package_sources(), ""
    home = Path(inspect.getfile(type(get_planner(planner)))).parent
    return package_sources(), _sources(home.rglob("*.py"))


@lru_cache(maxsize=1)
def package_sources() -> str:
    """Names the sources of this package."""
    return _sources(PACKAGE.rglob("*.py"))


def _sources(paths: Iterable[Path]) -> str:
    return digest(*((path.name, path.read_bytes()) for path in sorted(paths)))
