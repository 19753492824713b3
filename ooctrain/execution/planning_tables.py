"""What planners keep from one question to the next, and how it is given back.

A planner is asked about one step again and again, so the durations of a step's calls and the steps
that were written in bands are kept by the functions that find them. For a process whose memory is
promised they are too much: written in bands, a step has thousands of calls, and a plan needs one
such step of all that were tried. Read next: `seen.py`, which forgets them after each plan.
"""

from __future__ import annotations

from ooctrain.devices.cpu.process_memory import give_back_unused
from ooctrain.rewrite.tile.offers import forget_tilings
from ooctrain.step.machine import forget_durations


def forget_planning() -> None:
    """Gives back what planning has left, the steps that were tried included. The next plan finds
    its tables anew."""
    forget_durations()
    forget_tilings()
    give_back_unused()
