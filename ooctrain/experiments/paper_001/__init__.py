"""Paper 001: its results, ours, and how both are shown. Read next: `hybrid.py`."""
