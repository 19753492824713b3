"""Paper 004: its results, ours, and how both are shown. Read next: `hmms_speeds.py`."""
