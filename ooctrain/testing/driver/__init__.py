"""Drivers that replace a GPU's: the strict fake, one that fails on demand, one over host memory.

Read next: `fake_driver.py`, then `fake_cuda.py`, which runs the cuda device over it.
"""
