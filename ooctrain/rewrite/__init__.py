"""Rewrite."""
