"""The list of instructions: what it is, what proves it, what times it; and the planners below.

In: a trace, a budget, a machine. Out: a `Plan`: a list that keeps the step within the budget. The
one idea: a training step is a straight-line list; correctness and memory are decided by the order
of the list alone, speed by the streams it runs on. The files of this room are the list and its
laws; they import no planner. Read next: `schedule.py` for the list and `ledger.py` for what it
means; then `planning/planner.py` for what a planner is and `planners/keep_all.py` for the smallest.
"""
