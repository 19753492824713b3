"""Laws of tiles: a model in tiles compared with the untiled one, and bands written by hand.

`check_tiled.py` compares every result of a step; `bands_by_hand.py` compares a student's bands with
rows that are counted. Read next: `check_tiled.py`.
"""
