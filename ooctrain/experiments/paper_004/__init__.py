"""Paper 004: what is printed, computed and shown. Read next: `hmms_shown.py`."""
