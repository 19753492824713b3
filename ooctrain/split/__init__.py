"""Split-CNN: a network whose first layers see an image only in patches, each for itself.

In: a model, how deep to split and into how many patches. Out: another model, with the same
parameters under the same names. The one idea: a window that would look over the edge of a patch
sees zeros there, so patches need nothing of each other until they are joined. That is another
network, not another schedule: what is trained changes, and every command says so. Source: paper
004, section 3. Read next: `boundaries.py` (equations 1 to 7 in one dimension), `joints.py`,
`cuts.py`, `patches.py`, `model.py`.
"""
