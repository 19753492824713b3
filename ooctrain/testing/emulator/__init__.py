"""CUDA kernels on a CPU: threads, barriers, shared memory, warps; and a reader of PTX.

In: a kernel as it is written for a GPU. Out: the same kernel compiled for a CPU, with barriers and
bounds checked. Read next: `emulator.py`, then `check_cuda.py`; `ptx.py` reads what a compiler made.
"""
