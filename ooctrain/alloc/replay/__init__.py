"""Requests recorded and asked again: the log, its replay over any allocator, where it was fullest.

An allocation log shows what each allocator would have reserved, without touching any bytes.
Read next: `log.py`, then `replay.py`.
"""
