"""The list of instructions: its form, its verification and its timing; planners are below.

A planner reads a trace, a budget and a machine, and returns a `Plan`: a list that keeps the step
within the budget. A training step is a straight-line list. The order of the list alone decides
correctness and memory; the streams it runs on decide speed. The files of this folder define the
list and its laws, and import no planner. Read next: `schedule.py` for the list and `ledger.py` for
its meaning; then `planning/planner.py` for the interface of a planner and `planners/keep_all.py`
for the smallest one.
"""
