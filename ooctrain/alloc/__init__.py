"""Alloc."""
