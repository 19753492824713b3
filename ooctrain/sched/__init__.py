"""The list of instructions, what checks and times it, and the planners that write it.

In: a trace, a budget, a machine. Out: a `Plan`: a list that keeps the step within the budget. The
one idea: a training step is a straight-line list; correctness and memory are decided by the order
of the list alone, speed by the streams it runs on. Read next: `schedule.py` for the list and
`ledger.py` for what it means; `base.py` for what a planner is and `keep_all.py` for the smallest;
`registry.py` names them all.
"""
