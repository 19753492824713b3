"""Split-CNN: a network whose first layers see an image only in patches, each for itself.

A model is split to a chosen depth into a chosen number of patches; the result is another model,
with the same parameters under the same names. A window that would reach over the edge of a patch
sees zeros there, so patches are independent of each other until they are joined. This is another
network, not another schedule: training has another result, and every command says so. Source: paper
004, section 3. Read next: `boundaries.py` (equations 1 to 7 in one dimension), `cuts.py`,
`patches.py`, `model.py`.
"""
