"""The cuda device: streams, events and the virtual memory of the CUDA driver, called by ctypes.

Read next: `driver.py`, then `device.py` and `streams.py`; `open.py` finds the GPU.
"""
