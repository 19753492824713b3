"""Schedules of learning rates to try, each as a function of (library, optimizer): this one's and
torch's have the same names.

Read next: `../peers/test_torch_schedules.py`.
"""

from __future__ import annotations

import numpy as np

STEPS = 30
LOSSES = np.random.default_rng(3).random(STEPS) + np.linspace(1, 0, STEPS)

MAKERS = {
    "StepLR": lambda s, o: s.StepLR(o, 3, 0.5),
    "MultiStepLR": lambda s, o: s.MultiStepLR(o, [4, 9, 9, 20]),
    "ExponentialLR": lambda s, o: s.ExponentialLR(o, 0.9),
    "LinearLR": lambda s, o: s.LinearLR(o),
    "LinearLR down": lambda s, o: s.LinearLR(o, 1.0, 0.0, 7),
    "CosineAnnealingLR": lambda s, o: s.CosineAnnealingLR(o, 11, 0.01),
    "OneCycleLR": lambda s, o: s.OneCycleLR(o, [0.3, 0.2], STEPS),
    "OneCycleLR to the end": lambda s, o: s.OneCycleLR(o, 0.3, epochs=5, steps_per_epoch=6),
    "OneCycleLR linear": lambda s, o: s.OneCycleLR(
        o, 0.3, 40, pct_start=0.45, anneal_strategy="linear", base_momentum=0.8,
        max_momentum=[0.9, 0.99], div_factor=10.0, final_div_factor=100.0,
    ),
    "OneCycleLR three phases": lambda s, o: s.OneCycleLR(o, 0.3, STEPS, three_phase=True),
    "OneCycleLR alone": lambda s, o: s.OneCycleLR(o, 0.3, STEPS, cycle_momentum=False),
    "ReduceLROnPlateau": lambda s, o: s.ReduceLROnPlateau(o, patience=1),
    "ReduceLROnPlateau max": lambda s, o: s.ReduceLROnPlateau(
        o, "max", 0.3, 2, 0.05, "abs", 2, [0.01, 1e-3]
    ),
    "SequentialLR": lambda s, o: s.SequentialLR(
        o, [s.LinearLR(o, 0.1, 1.0, 5), s.CosineAnnealingLR(o, 20), s.ExponentialLR(o, 0.5)],
        [5, 22],
    ),
    "SequentialLR of a cycle": lambda s, o: s.SequentialLR(
        o, [s.StepLR(o, 2), s.OneCycleLR(o, 0.4, 25)], [4]
    ),
    "SequentialLR of a late cycle": lambda s, o: s.SequentialLR(
        o, [s.StepLR(o, 3, 0.5), s.OneCycleLR(o, 0.1, 21, base_momentum=0.5, max_momentum=0.99,
                                              anneal_strategy="linear")], [12]
    ),
    "SequentialLR of two cycles": lambda s, o: s.SequentialLR(
        o, [s.OneCycleLR(o, 0.4, 9), s.OneCycleLR(o, [0.2, 0.1], 25, base_momentum=0.5,
                                                  max_momentum=0.7, final_div_factor=7.0)], [8]
    ),
    "SequentialLR after a cycle": lambda s, o: s.SequentialLR(
        o, [s.OneCycleLR(o, 0.4, 9), s.StepLR(o, 2), s.ExponentialLR(o, 0.9)], [5, 11]
    ),
}  # fmt: skip
