"""A planner that imports what stood in rooms of the library on 2026-11-28, and has moved since."""

from ooctrain.sched.planners.dtr.dtr_runtime import Runtime
from ooctrain.sched.planners.window.window_walk import Walk


class Mine:
    """Evicts as DTR does."""

    runtime, walk = Runtime, Walk
