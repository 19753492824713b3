"""Paper 000: what is printed, computed and shown. Read next: `table1_shown.py`."""
