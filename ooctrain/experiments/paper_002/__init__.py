"""Paper 002: what is printed, computed and shown. Read next: `offload_ratios_shown.py`."""
