"""Tile."""
