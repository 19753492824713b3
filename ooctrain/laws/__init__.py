"""The laws as named tests: `pytest --pyargs ooctrain.laws --planner my.py:Mine`.

In: the name of a planner, an allocator, a rewrite or a split, one's own included. Out: a test for
each law, passed or failed; a failure prints the shrunken example, the list up to the offending
instruction, the law and the command that repeats it. The one idea: whoever writes a plug-in wants
to know at a glance which promises it keeps, not only the first one that it breaks. Read next:
`plugin.py` for the options and fixtures, `test_planner.py`, `test_allocator.py`; `../testing/` for
the laws themselves.
"""
