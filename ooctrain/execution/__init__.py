"""Executing a plan on a device: prepare it, run it in one loop, read it back, save it.

A trace with settings, or a plan, and values go in; losses, gradients and a measured timeline come
out. Read next: `executor.py`, the loop; `program.py` (the list as its steps) and `placement.py`
(blocks by variable); `fit.py`, which makes a step ready; `residence.py` and `checkpoint.py`
between steps.
"""
