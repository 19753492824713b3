"""Paper 003: its results, ours, and how both are shown. Read next: `sft_shown.py`."""
