"""An allocator of this library under Numba's own device arrays (its plug-in for memory managers).

Read next: `numba_plugin.py`, then `deferred_free.py`.
"""
