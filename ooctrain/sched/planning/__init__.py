"""The basis of the planners: from a choice of what leaves the device to the list.

A planner decides for a trace and a budget what to move, drop or compute again; the files of this
folder make the list of these decisions. No planner is here. Read next: `planner.py` for the
interface of a planner and `question.py` for its arguments, `decisions.py` and `lower.py` for the
way to the list, `residency.py` for the contents of the device at each run.
"""
