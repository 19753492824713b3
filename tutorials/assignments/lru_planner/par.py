"""Par: what the library's `lru` takes, computed when it is asked for.

In: a share of the memory. Out: the trace, the budget, and par in us. Run as a script it prints par
beside `belady`, which looks ahead, and the LP bound of swapping. Read next: `test_lru.py`.
"""

import ooctrain as oc
from ooctrain.rewrite import apply_rewrites
from ooctrain.sched.budget import resolve_budget
from ooctrain.sched.fluid import fluid_bound
from ooctrain.sched.registry import get_planner

MACHINE = "v100-pcie"
WHOLE = oc.Granule(1, ranges=False)
SHARES = (25, 50)


def step():
    """A training step of ResNet-18."""
    model = oc.models.build("resnet18", num_classes=1000, stem="imagenet")
    return apply_rewrites(oc.trace(model, (64, 3, 224, 224), threads=1), ("fuse", "share_storage"))


def par(share, planner="lru"):
    """(trace, budget in bytes, makespan in us) at a share of the memory."""
    trace = step()
    budget_bytes = resolve_budget(trace, f"{share}%", WHOLE)
    plan = get_planner(planner).plan(trace, budget_bytes, oc.machine(MACHINE), granule=WHOLE)
    return trace, budget_bytes, plan.makespan_us


def main():
    """Prints the table."""
    print("budget   par (lru)      belady       bound")
    for share in SHARES:
        trace, budget_bytes, par_us = par(share)
        ahead_us = par(share, "belady")[2]
        bound = fluid_bound(trace, budget_bytes, oc.machine(MACHINE), recompute=False)
        print(f"{share:4d} % {par_us:9.0f} us {ahead_us:8.0f} us {bound.makespan_us:8.0f} us")


if __name__ == "__main__":
    main()
