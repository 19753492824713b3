"""The window of paper 000: the planner, its walk, and its cyclic form."""
