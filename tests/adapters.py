"""The only file that a course edits: which planner, allocator and rewrite the laws are tried on.

In: nothing. Out: what `pytest --pyargs ooctrain.laws`, called in this checkout, tries where
none of `--planner`, `--allocator`, `--rewrite` is given. Return a name, a name with parameters,
"my_file.py:Mine", or an instance. Read next: `ooctrain/laws/plugin.py`.
"""

from __future__ import annotations


def planner() -> str:
    """Your planner."""
    return "window"


def allocator() -> str:
    """Your allocator."""
    return "va"


def rewrite() -> str:
    """Your rewrite."""
    return "tile:2x2"
