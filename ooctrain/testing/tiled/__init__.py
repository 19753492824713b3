"""Laws of tiles: a model in tiles beside the untiled one, and bands that somebody wrote by hand.

`check_tiled.py` compares every result of a step; `tiled_bounds.py` works out how far a sum in
another order may lie off; `check_bands.py` holds a student's bands to rows that are counted. Read
next: `check_tiled.py`.
"""
