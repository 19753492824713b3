"""Paper 000: its results, ours, and how both are shown. Read next: `table1.py`."""
