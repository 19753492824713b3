"""Every planted bug can still be planted: its piece of text stands in the source.

The quick tests run a share of the bugs. A bug whose text has moved would be seen days later; this
plants each one that needs nothing but a patch, and takes it out again.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path

import pytest

HERE = Path(__file__).parent
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="some of the bugs are Linux's")


def planted() -> Iterator[tuple[str, Callable[[pytest.MonkeyPatch], object]]]:
    """(file and name, plant) of each bug of a table; a table may name its law beside the plant."""
    for path in sorted(HERE.glob("*_bugs.py")):
        if path.name.startswith("test_"):
            continue
        for name, table in vars(import_module(f"zoo.{path.stem}")).items():
            if name.endswith("BUGS") and isinstance(table, dict):
                for bug, entry in table.items():
                    plant = entry[0] if isinstance(entry, tuple) else entry
                    if callable(plant):
                        yield f"{path.stem}: {bug}", plant


def test_the_text_of_every_bug_stands():
    tried, missing = 0, []
    for bug, plant in planted():
        tried += 1
        with pytest.MonkeyPatch.context() as patch:
            try:
                plant(patch)
            except Exception as error:  # some tables want more than a patch
                if " stands " in str(error) or "module 'ooctrain" in str(error):
                    missing.append(f"{bug}: {error}")
    assert tried > 200
    assert not missing, "\n".join(missing)
