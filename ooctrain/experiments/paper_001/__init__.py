"""Paper 001: what is printed, computed and shown. Read next: `hybrid_shown.py`."""
