# %% [markdown]
# # 13 Write your own planner
#
# **Goal:** write a planner in thirty lines; let the laws find what is wrong with it; put it beside
# the published ones.
# **Prerequisites:** 09, 10. **Minutes:** 30.
# **Paper:** 000, section 3 (a planner that writes the list itself); 002, section 4 (one that only
# decides).
#
# A planner is anything with a `name` and a function `plan`. It gets one question and returns a
# plan, or raises `Infeasible` with the least budget that it needs. The question has a `trace`, a
# `budget_bytes` and a `machine`. It also says how the allocator rounds sizes (`granule`), how many
# bytes the host has (`host_budget_bytes`), and, for planners that search, a `seed` and how much
# `effort` a search may take. And it has what nearly every planner computes first, as we will see.

# %%
from bisect import bisect_right

from lesson import Lesson

import ooctrain as oc
from ooctrain.testing.describe import describe_trace

pictures, planning = oc.pictures, oc.planning
lesson = Lesson("13 write your own planner")

# %% [markdown]
# ## First attempt: write the list
#
# `ListWriter` keeps the books: which values are on the device, which host copies are valid, how
# many bytes are claimed. We only say what happens: before a call, fetch what it reads; where there
# is no room, the value that is needed last leaves.
#
# How do we know the least budget? By writing the list for a budget of 0: then everything leaves
# that may, and the peak of that list is the least we can do.


# %%
class Farthest:
    """The value that is needed last leaves, when another one needs the room."""

    name = "farthest"

    def plan(self, question):
        trace, budget_bytes, granule = question.trace, question.budget_bytes, question.granule
        least = self.write(trace, 0, granule)
        if least.peak_bytes > budget_bytes:
            raise planning.infeasible(self.name, budget_bytes, least.peak_bytes, least.peak_call)
        writer = self.write(trace, budget_bytes, granule)
        plan = planning.make_plan(writer.finish(), trace, question.machine)
        planning.check_host(self.name, plan, question.host_budget_bytes)
        return plan

    def write(self, trace, budget_bytes, granule):
        """The list, call by call."""
        writer = planning.writer_with_resident_parameters(trace, granule)
        for call in trace.calls:
            for variable in dict.fromkeys(call.ins):
                if variable not in writer.resident:
                    self.make_room(writer, call, writer.granted(variable), budget_bytes)
                    writer.swap_in(variable)
            self.make_room(writer, call, writer.claim_bytes(call.id), budget_bytes)
            writer.run(call.id)
            writer.free_dead(call.id)
        return writer

    def make_room(self, writer, call, size_bytes, budget_bytes):
        """Sends values away until this many bytes are free."""
        while writer.ledger_bytes + size_bytes > budget_bytes:
            movable = [v for v in writer.resident if self.may_leave(writer.trace, v, call)]
            if not movable:
                return
            victim = max(movable, key=lambda v: (next_use(writer.trace, v, call.id), v))
            writer.swap_out(victim)
            writer.free(victim)

    def may_leave(self, trace, variable, call):
        """Whether a value may be sent away before a call: parameters and states stay."""
        return not trace.variables[variable].persistent


def next_use(trace, variable, call_id):
    """The first call from this one on that touches a variable."""
    uses = trace.uses[variable]
    place = bisect_right(uses, call_id - 1)
    return uses[place] if place < len(uses) else len(trace.calls)


# %% [markdown]
# It looks right. `check_planner` tries it on random traces of a few bytes, with forks, joins, reuse
# and updates, and holds it to the laws. If it fails, the trace is made as small as possible. **How
# many calls has the smallest trace on which it goes wrong?**

# %%
lesson.cell("the laws find the mistake")
lesson.predict("calls of the smallest failing trace")

# %%
try:
    oc.testing.check_planner(Farthest(), time_limit_s=10)
    failure = None
except oc.testing.PlannerFailure as error:
    failure = error
    print(f"    law broken: {error.law}")
    print("   ", "\n    ".join(describe_trace(error.trace)))
lesson.reveal("calls of the smallest failing trace", len(failure.trace.calls))

# %% [markdown]
# A call that reads one value and writes another: making room for what it writes sends away what it
# reads, as no other value is there. What a call touches must stay until it has run. One line.


# %%
class FarthestRepaired(Farthest):
    """The same, but a call's own values stay."""

    def may_leave(self, trace, variable, call):
        return variable not in call.touched() and super().may_leave(trace, variable, call)


lesson.cell("repaired")
tried = oc.testing.check_planner(FarthestRepaired(), examples=20, time_limit_s=10)
print(f"    {tried} random cases, no law broken")

# %% [markdown]
# ## Second attempt: only decide
#
# When values move is the same question for every planner, and the shared engine answers it: as soon
# as possible. So a planner may decide no more than *in which gaps between two uses* a value is on
# the host, and let `swap_plan` write the list. Our own rule, which is in no paper: go through the
# gaps in the order of their area, bytes times calls, the largest first; take a gap only if at some
# call in it the budget is still exceeded. The question knows the gaps (`swap_gaps`), and the bytes
# on the device during each call if nothing leaves (`resident_bytes`).


# %%
class Largest:
    """The gap with the largest area (bytes x calls) first."""

    name = "largest"

    def plan(self, question):
        planning.check_budget(self.name, question, question.swap_gaps)
        needed, chosen = list(question.resident_bytes), []
        for gap in sorted(question.swap_gaps, key=area, reverse=True):
            inside = range(gap.after + 1, gap.before)
            if any(needed[k] > question.budget_bytes for k in inside):
                chosen.append(gap)
                for k in inside:
                    needed[k] -= question.granule.granted(gap.hi)
        return planning.swap_plan(self.name, question, chosen)


def area(gap):
    """Bytes times calls: what a gap relieves."""
    return gap.hi * (gap.before - gap.after)


lesson.cell("deciding only")
tried = oc.testing.check_planner(Largest(), examples=20, time_limit_s=10)
print(f"    {tried} random cases, no law broken")

# %% [markdown]
# ## Beside the published ones
#
# ResNet-18 at batch 256 over PCIe. All of them move whole activations here. **What is the makespan
# of `largest` over that of `farthest` at half the memory?**

# %%
lesson.cell("a comparison")
model = oc.models.build("resnet18", num_classes=1000, stem="imagenet")
trace = oc.trace(model, (256, 3, 224, 224), threads=1)
whole = oc.Granule(1, ranges=False)
in_core = oc.plan(trace, 1 << 40, "keep-all", "v100-pcie").makespan_us

# %%
lesson.predict("largest / farthest at 50 %")

# %%
shares, slowdown = (10, 25, 50, 75), {}
for planner in (FarthestRepaired(), Largest(), "lru", "belady"):
    name = planner if isinstance(planner, str) else planner.name
    slowdown[name] = [
        oc.plan(trace, f"{share}%", planner, "v100-pcie", whole).makespan_us / in_core
        for share in shares
    ]
    print(f"      {name:<9}", *(f"{value:5.2f}" for value in slowdown[name]))
half = shares.index(50)
lesson.reveal("largest / farthest at 50 %", slowdown["largest"][half] / slowdown["farthest"][half])
lesson.picture(
    "13_own_planners.svg",
    pictures.curves_svg(
        "ResNet-18, batch 256, PCIe, whole activations",
        [
            pictures.Curve(name, list(zip(shares, row, strict=True)))
            for name, row in slowdown.items()
        ],
        axes=("budget, % between the least and the peak", "makespan / in-core"),
    ),
)

# %% [markdown]
# ## Where to go from here
#
# Put your class into a file of its own. Everything takes it by `FILE.py:CLASS`:
#
# ```
# ooctrain plan resnet18 --batch 256 --machine v100-pcie --planner my.py:Mine --budget 25%
# ooctrain compare resnet18 --batch 256 --machine v100-pcie --planner my.py:Mine,belady --budget 25%
# pytest --pyargs ooctrain.laws --planner my.py:Mine
# ```
#
# `compare` divides each makespan by a bound that no plan beats (tutorial 10); 1 is the best.
#
# A planner that is to join the library is one file in `ooctrain/sched/planners/` and one line in
# `ooctrain/sched/planners/registry.py`, the table of names.
#
# ## Exercises
#
# `python 13_write_your_own_planner.py --check 1 ANSWER` checks your answer to the first one.
#
# 1. Which law did the first attempt break? (its name, as printed)
# 2. A trace has one call, which reads 3 and 4 bytes and writes 5. What does `FarthestRepaired` name
#    as its least budget?
# 3. `FarthestRepaired` fetches what a call reads just before it. Is its list therefore without
#    overlap? ("yes", "no"; simulate it and look at the lanes)

# %%
lesson.cell("exercises")
lesson.exercise("1. the law", lambda a: a == failure.law, None)
lesson.exercise("2. the least budget", lambda a: a == 12, None)
lesson.exercise("3. no overlap", lambda a: a == "no", None)

# %%
assert failure is not None
assert 1 <= len(failure.trace.calls) <= 4
assert tried >= 5
assert all(value >= 1 for row in slowdown.values() for value in row)
assert slowdown["farthest"] == sorted(slowdown["farthest"], reverse=True)
far = oc.plan(trace, "50%", FarthestRepaired(), "v100-pcie", whole)
busy_us = sum(e.end_us - e.start_us for e in oc.simulate(far, far.trace, "v100-pcie").events)
assert busy_us > 1.1 * far.makespan_us, "copies and calls run at the same time"
assert slowdown["belady"][half] <= slowdown["lru"][half]
print("\nall asserts passed")
