"""Requests recorded and asked again: the log, its replay over any allocator, where it was fullest.

In: an allocation log. Out: what each allocator would have reserved; no bytes are touched. Read
next: `log.py`, then `replay.py`.
"""
