"""Solutions of the assignments, written as their handouts ask, on top of the stubs.

A solution is the stub's text followed by one of these, so it is what a student hands in.
"""

from pathlib import Path

ASSIGNMENTS = Path(__file__).parents[2] / "tutorials" / "assignments"
#: Whole variables by `ListWriter`, as the handout suggests.
SOLUTION = '''
class Solved(Lru):
    """Evicts."""

    def plan(self, trace, budget_bytes, machine, *, granule=BYTES, **rest):
        least = self.write(trace, 0, granule)
        if least.peak_bytes > budget_bytes:
            raise infeasible(self.name, budget_bytes, least.peak_bytes, least.peak_call)
        return super().plan(trace, budget_bytes, machine, granule=granule, **rest)

    def write(self, trace, budget_bytes, granule):
        writer, recent = writer_with_resident_parameters(trace, granule), {}

        def make_room(size_bytes, call):
            for victim in [v for v in recent if v not in call.touched()]:
                if writer.ledger_bytes + size_bytes > budget_bytes:
                    writer.swap_out(victim)
                    writer.free(victim)
                    del recent[victim]

        for call in trace.calls:
            for variable in dict.fromkeys(call.ins):
                if variable not in writer.resident:
                    make_room(writer.granted(variable), call)
                    writer.swap_in(variable)
            make_room(writer.claim_bytes(call.id), call)
            writer.run(call.id)
            for variable in call.touched():
                recent.pop(variable, None)
                if not trace.variables[variable].persistent:
                    recent[variable] = None
            writer.free_dead(call.id)
            recent = {v: None for v in recent if v in writer.resident}
        return writer
'''
#: Holes by place; the free end is never among them.
FITTING = '''
class Solved(Fit):
    """Fills holes."""

    def place(self, size_bytes):
        fitting = [(end - lo, lo, end) for lo, end in self.holes if end - lo >= size_bytes]
        if not fitting:
            return super().place(size_bytes)
        _, lo, end = min(fitting)
        self.holes.remove((lo, end))
        if end - lo > size_bytes:
            self.holes = sorted([*self.holes, (lo + size_bytes, end)])
        return lo

    def give_back(self, offset, end):
        for hole in [hole for hole in self.holes if hole[1] == offset or hole[0] == end]:
            self.holes.remove(hole)
            offset, end = min(offset, hole[0]), max(end, hole[1])
        if end == self.top:
            self.top = offset
        else:
            self.holes = sorted([*self.holes, (offset, end)])

    def largest_bytes(self):
        return max([self.budget_bytes - self.top, *(end - lo for lo, end in self.holes)])
'''
LRU_STUB = (ASSIGNMENTS / "lru_planner" / "lru.py").read_text(encoding="utf-8")
FIT_STUB = (ASSIGNMENTS / "best_fit" / "fit.py").read_text(encoding="utf-8")
#: Frontiers, and the rows that are read again.
IN_BANDS = '''
class Solved(Bands):
    """Keeps halos."""

    def frontier(self, layer, rows, height, outputs):
        kernel, stride, padding = layer
        if rows == height:
            return outputs
        return max(0, min(outputs, (rows + padding - kernel) // stride + 1)) if rows else 0

    def keep(self, layer, done):
        kernel, stride, padding = layer
        return max(0, done * stride - padding)
'''
ROWS_STUB = (ASSIGNMENTS / "tiling" / "rows.py").read_text(encoding="utf-8")
