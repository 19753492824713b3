"""A training run of the command line: its options, its results, its checkpoints.

Read next: `run_record.py`, `run_files.py`, then `../training.py`.
"""
