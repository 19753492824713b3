"""The cage: what runs in the process of a submission, and what both sides of its pipes share.

A submission is asked, never called: questions go in through a pipe, answers come out, both as data.
Whatever the submission does to its own process, only JSON of a limited size leaves it, and the
process that asks trusts none of it. These files are copied into a folder of their own, with the
library's interfaces and without its planners and allocators (`../isolation.py`); the submission's
process imports that copy. Read next: `supervise.py`, which begins there, then `serve.py`;
`../interview.py` is the other side.
"""
