"""CUDA kernels on a CPU, in two ways: from their source, and from the compiled text.

A kernel is written as for a GPU, and runs with its barriers, races and bounds checked. Read next:
`emulator.py`, which translates the source, then `check_cuda.py`; `ptx_machine.py`, which runs the
compiled text; `ptx.py`, which only reads it.
"""
