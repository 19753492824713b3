"""A training step as data: calls over variables, and the machine that they are timed on; no arrays.

To plan, verify or time a step takes shapes, sizes and the order of the calls, never a value. So a
`Trace` is made from what the operations say of themselves, and each of its calls has a cost.
Read next: `trace.py`, then `op.py` (what an operation is) and `machine.py` (what a call takes).
"""
