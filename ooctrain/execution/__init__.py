"""A plan on a device: made ready, run by one loop, read back, saved.

In: a trace and settings, or a plan; values. Out: losses, gradients, a measured timeline. Read next:
`executor.py`, the loop; `program.py` (the list as its steps) and `placement.py` (blocks by
variable); `prepare.py`, which makes a step ready; `residence.py` and `checkpoint.py` between steps.
"""
