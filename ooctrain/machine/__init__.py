"""This machine as numbers: what it has, what it lacks, how fast it computes and copies.

In: nothing but the machine. Out: a saved calibration, and what `ooctrain doctor` says. The one
idea: nothing is ever measured unless somebody asks. Read next: `calibrate.py`, then `measured.py`.
"""
