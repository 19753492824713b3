"""A training run of the command line: what it was asked for and found, and its checkpoints.

Read next: `run_record.py`, `run_files.py`, then `../training.py`.
"""
