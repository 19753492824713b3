"""How a kernel is compiled, started and spread over threads; no kernel is here.

A Python range kernel becomes machine code that the pool's threads run. Compiled code starts a
kernel, without a Python frame in between: a small kernel starts in about 1 us instead of 12, one
split over two threads in 13 instead of 70. Read next: `kernel_jit.py`, `pool.py`, then `call.py`
and `fork_join.py` for the mechanism.
"""
