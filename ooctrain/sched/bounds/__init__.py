"""What no list beats: bounds on the time of a step within a budget.

Read next: `closed.py` (formulas), `lp.py` (a linear program over all lists), `exact.py` (the best
list of a tiny step, by search).
"""
