"""Paper 003, figure 8: its results, ours, and how both are shown. Read next: `sft_images.py`."""
