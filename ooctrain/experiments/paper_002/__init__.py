"""Paper 002: its results, ours, and how both are shown. Read next: `offload_ratios.py`."""
