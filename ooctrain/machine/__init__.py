"""This machine as numbers: what it has, what is missing, how fast it computes and copies.

A calibration is saved for later plans; `ooctrain doctor` reports on the installation. No
measurement is ever made unless the user requests it. Read next: `calibrate.py`, then `measured.py`.
"""
