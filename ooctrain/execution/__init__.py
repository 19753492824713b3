"""How the one loop of `executor.py` is prepared: the list as steps, and blocks by variable."""
