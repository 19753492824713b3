"""CUDA kernels on a CPU, twice: from their source, and from what the compiler made of it.

In: a kernel as it is written for a GPU. Out: its results, with barriers, races and bounds checked.
Read next: `emulator.py`, which translates the source, then `check_cuda.py`; `ptx_machine.py`, which
runs the compiled text; `ptx.py`, which only reads it.
"""
