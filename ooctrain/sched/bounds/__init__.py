"""Lower bounds on the time of a step within a budget, true of every list.

Read next: `closed.py` (formulas), `lp_bound.py` (a linear program over all lists), `exact.py` (the
best list of a tiny step, by search).
"""
