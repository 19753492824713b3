"""A training step as data: calls over variables, the machine that they are timed on; no arrays.

In: what an operation says of itself. Out: a `Trace`, and what each of its calls costs. The one
idea: whoever plans, proves or times a step needs shapes, sizes and the order of the calls, never a
value. Read next: `trace.py`, then `op.py` (what an operation is) and `machine.py` (what a call
takes).
"""
