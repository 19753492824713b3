"""The cage: what runs in the process of a submission, and what both sides of its pipes share.

In: questions as data, through a pipe. Out: answers as data. The one idea: a submission is asked,
never called; whatever it does to its own process, all that leaves it is JSON of a limited size, and
the process that asks believes none of it. These files are copied into a folder of their own, with
the library's interfaces and without its planners and allocators (`../interfaces.py`); that copy is
what the process imports. Read next: `supervise.py`, which begins there, then `serve.py`;
`../interview.py` is the other side.
"""
