"""What a CUDA kernel is here, and how it is started; the one place that knows Numba's CUDA target.

Read next: `shim.py` (the target), `launcher.py` (starting a kernel, running a call),
 `intrinsics.py` with `twins.py` (instructions, and what they do on a CPU).
"""
