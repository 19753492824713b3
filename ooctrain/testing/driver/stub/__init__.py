"""CUDA's driver in C without a GPU: memory, copies, mapping, streams and events on the host.

Numba's real path links and loads it (`build.py`); launches are counted, kept with their arguments,
and may be handed to an interpreter (`stub.py`). Its rules are those of the fakes one folder up, as
numbers of errors. Read next: `build.py`, `stub.py`, `stub.h`; docs/gpu.md.
"""
