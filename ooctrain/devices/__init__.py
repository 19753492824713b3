"""Devices: memory, streams, copies and kernel launches, as the executor asks for them.

In: a budget and a link. Out: a `Device` on CPU cores or on a GPU, and drivers that stand for a GPU
in tests. Read next: `base.py`, which says what a device is, then `cpu/device.py`.
"""
