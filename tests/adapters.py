"""The only file that a course edits: which planner, allocator, rewrite and split the laws are tried
on.

`pytest --pyargs ooctrain.laws`, called in this checkout, tries what is named here where none of
`--planner`, `--allocator`, `--rewrite`, `--split` is given. Return a name, a name with parameters,
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


def split() -> str:
    """Your split of networks into patches, a function with the arguments of `oc.split`."""
    return "oc.split"
