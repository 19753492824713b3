"""One file for each method, and the table of their names; a new planner goes here.

Each planner turns a question (`sched/planning/question.py`) into a `Plan`. `portfolio.py` runs
several of them on one question, for `auto.py` and `combined.py`. Read next: `keep_all.py`, the
smallest; `naive.py`, `belady.py`; `registry.py` names them all.
"""
