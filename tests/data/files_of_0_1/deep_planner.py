"""A planner that imports what stood in rooms of the library on 2026-11-28, and has moved since."""

from ooctrain.sched.planners.dtr import Runtime
from ooctrain.sched.planners.window import walk  # noqa: F401


class Mine:
    """Evicts as DTR does."""

    runtime = Runtime
