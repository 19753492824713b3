"""What planners stand on: from a choice of what leaves the device to the list; no planner is here.

In: a trace, a budget, and decisions of what to move, drop or compute again. Out: the list. Read
next: `planner.py` for what a planner is and `question.py` for what it is asked, `decisions.py` and
`lower.py` for the way to the list, `residency.py` for what is on the device when.
"""
