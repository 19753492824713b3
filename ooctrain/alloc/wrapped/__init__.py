"""What goes around an allocator: limits, logs, counters, poison, checks, locks.

In: an allocator. Out: an allocator that does one thing more. Read next: `wrappers.py`.
"""
