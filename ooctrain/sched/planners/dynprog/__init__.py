"""DYNPROG of paper 002: the planner, and its dynamic program."""
