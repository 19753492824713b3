"""One file for each method, and the table of their names; a new planner goes here.

Each planner turns a `Question` into a `Plan`. `portfolio.py` runs several of them on one question,
for `auto.py` and `combined.py`; all others know no planner but their own, except where a method
composes some. Read next: `keep_all.py`, the smallest; `naive.py`, `belady.py`; `registry.py` names
them all.
"""
