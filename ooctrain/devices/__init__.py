"""Devices: memory, streams, copies and kernel launches, as the executor requests them.

A budget and a link give a `Device` on CPU cores or on a GPU; in tests other drivers replace the
GPU's. Read next: `interface.py`, which defines a device, then `cpu/device.py`.
"""
