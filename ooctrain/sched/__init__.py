"""Sched."""
