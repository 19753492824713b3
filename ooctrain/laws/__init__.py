"""The laws as named tests: `pytest --pyargs ooctrain.laws --planner my.py:Mine`.

A planner, an allocator, a rewrite or a split is named on the command line, and each law becomes a
test that it passes or fails. The author of a plug-in sees at a glance which promises it keeps, not
only the first one that it breaks. A failure prints the shrunken example, the list up to the
offending instruction, the law and the command that repeats it. Read next: `plugin.py` for the
options and fixtures, `test_planner.py`, `test_allocator.py`; `../testing/` for the laws themselves.
"""
