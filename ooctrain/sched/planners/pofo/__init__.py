"""POFO: optimal offloading with recomputation on a chain: the planner, and its search."""
