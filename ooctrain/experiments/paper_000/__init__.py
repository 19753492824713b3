"""Paper 000: what it prints, what is computed here, and how it is shown. Read next: `run.py`."""
