"""CUDA's driver in C without a GPU: memory, copies, mapping, streams and events on the host.

Numba's real path links and loads it (`build.py`). Launches are counted, kept with their arguments,
and may be handed to an interpreter (`stub.py`). It enforces the rules of the fakes in the folder
above, and reports a violation as an error number. Read next: `build.py`, `stub.py`, `stub.h`;
docs/gpu.md.
"""
