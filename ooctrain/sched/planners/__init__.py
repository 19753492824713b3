"""One file for each method, and the table of their names; a new planner goes here.

Each planner turns a trace, a budget and a machine into a `Plan`. A method of several files has a
folder. `poll.py` puts one question to several of them, for `auto.py`. Read next: `keep_all.py`, the
smallest; `naive.py`, `belady.py`; `registry.py` names them all.
"""
