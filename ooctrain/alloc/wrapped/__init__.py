"""Wrappers around an allocator: limits, logs, counters, poison, checks, locks.

Each takes an allocator and is an allocator that does one thing more. Read next: `wrappers.py`.
"""
