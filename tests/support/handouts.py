"""Solutions of the assignments, written as their handouts ask, on top of the stubs.

A solution is the stub's text followed by one of these, so it is what a student hands in.
"""

from pathlib import Path

ASSIGNMENTS = Path(__file__).parents[2] / "tutorials" / "assignments"
#: Whole variables by `ListWriter`, as the handout suggests.
SOLUTION = '''
class Solved(Lru):
    """Evicts."""

    def plan(self, question):
        least, budget_bytes = self.write(question.trace, 0, question.granule), question.budget_bytes
        if least.peak_bytes > budget_bytes:
            raise infeasible(self.name, budget_bytes, least.peak_bytes, least.peak_call)
        return super().plan(question)

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
#: A window of the whole budget.
AHEAD = '''
class Solved(Window):
    """Looks ahead by the budget; what the window does not need leaves at once."""

    def write(self, trace, budget_bytes, granule):
        writer = writer_with_resident_parameters(trace, granule)
        persistent = [variable.persistent for variable in trace.variables]

        def next_use(variable, call):
            return next((use for use in trace.uses[variable] if use > call.id), len(trace.calls))

        def make_room(size_bytes, call):
            movable = [v for v in writer.resident if not persistent[v] and v not in call.touched()]
            while movable and writer.ledger_bytes + size_bytes > budget_bytes:
                last = max(movable, key=lambda v: (next_use(v, call), v))
                movable.remove(last)
                writer.swap_out(last)
                writer.free(last)

        def soon(call):
            """What later calls read, the next first, as far as the window goes."""
            window_bytes, found = budget_bytes, {}
            for later in trace.calls[call.id + 1 :]:
                for variable in later.touched():
                    if variable not in found and not persistent[variable]:
                        window_bytes -= writer.granted(variable)
                        found[variable] = None
                if window_bytes < 0:
                    break
            return found

        for call in trace.calls:
            for variable in dict.fromkeys(call.ins):
                if variable not in writer.resident:
                    make_room(writer.granted(variable), call)
                    writer.swap_in(variable)
            make_room(writer.claim_bytes(call.id), call)
            window = soon(call)
            for variable in window:
                away = variable in writer.hosted and variable not in writer.resident
                needed = writer.granted(variable) + writer.claim_bytes(call.id)
                if away and writer.ledger_bytes + needed <= budget_bytes:
                    writer.swap_in(variable)
            writer.run(call.id)
            writer.free_dead(call.id)
            for variable in call.touched():
                leaves = variable in writer.resident and variable not in window
                if leaves and not persistent[variable]:
                    writer.swap_out(variable)
        return writer
'''
AHEAD_STUB = (ASSIGNMENTS / "window_planner" / "window.py").read_text(encoding="utf-8")
#: Segments of all numbers, computed again as they are needed.
AGAIN = '''
class Solved(Recompute):
    """Keeps the first call of each segment, for all numbers of segments."""

    def choices(self, trace):
        forward = [call.id for call in trace.calls if call.phase == "forward"]
        for segments in range(1, len(forward) + 1):
            borders = {round(place * len(forward) / segments) for place in range(segments + 1)}
            yield {call for place, call in enumerate(forward) if place + 1 in borders}

    def write(self, trace, granule, kept):
        writer = writer_with_resident_parameters(trace, granule)
        forward = [call.phase == "forward" for call in trace.calls]

        early = [call for call in trace.calls if call.phase != "backward"]
        taken = {variable for call in early for variable in call.reuse.values()}
        updated = {v for v in taken if trace.variables[v].kind == "state"}

        def can_run_again(call):
            # What is updated in place is not there any more afterwards.
            whole = not updated.intersection(call.ins)
            return forward[call.id] and call.pure and call.id not in kept and whole

        def again(variable):
            call = trace.calls[trace.producer[variable]]
            for needed in call.ins:
                if needed in trace.initial:  # a call may have taken its storage over
                    writer.swap_in(needed)
                elif needed not in writer.resident:
                    again(needed)
            writer.run(call.id)

        for call in trace.calls:
            for variable in call.ins:
                if variable in trace.initial:
                    writer.swap_in(variable)
                elif variable not in writer.resident:
                    again(variable)
            writer.run(call.id)
            writer.free_dead(call.id)
            for variable in call.touched() if forward[call.id] else ():
                made = trace.producer[variable]
                used_up = not any(forward[use] for use in trace.uses[variable] if use > call.id)
                whole = made is not None and all(
                    not any(forward[use] for use in trace.uses[out] if use > call.id)
                    for out in trace.calls[made].outs
                )
                if used_up and whole and variable in writer.resident:
                    if can_run_again(trace.calls[made]):
                        for out in trace.calls[made].outs:
                            if out in writer.resident:
                                writer.free(out)
        return writer
'''
AGAIN_STUB = (ASSIGNMENTS / "recompute_chain" / "recompute.py").read_text(encoding="utf-8")
#: Books of its own: who lies where, and the gaps between them.
BOOKS = '''
class Solved(Law):
    """Books of its own: who lies where, and the largest gap between them."""

    def check(self, arena, rng):
        for _ in range(25):
            blocks = {}
            largest = rng.randint(1, arena.size)
            for _ in range(30):
                if blocks and rng.random() < 0.5:
                    offset = rng.choice(sorted(blocks))
                    del blocks[offset]
                    arena.free(offset)
                else:
                    self.ask(arena, rng, blocks, largest)
            for offset in sorted(blocks, key=lambda _: rng.random()):
                arena.free(offset)
            assert arena.allocate(arena.size) == 0, "an empty arena does not take its own size"
            arena.free(0)

    def ask(self, arena, rng, blocks, largest):
        gaps = self.gaps(arena, blocks)
        exact = gaps and rng.random() < 0.4
        size = rng.choice(gaps) + rng.randint(0, 1) if exact else rng.randint(1, largest)
        offset = arena.allocate(size)
        if offset is None:
            assert size > max(gaps, default=0), f"{size} bytes are refused, and there is a hole"
            return
        assert 0 <= offset <= arena.size - size, f"a block of {size} at {offset} sticks out"
        for other, length in blocks.items():
            apart = other + length <= offset or offset + size <= other
            assert apart, f"two live blocks overlap at {max(other, offset)}"
        blocks[offset] = size

    def gaps(self, arena, blocks):
        ends, at = [], 0
        for offset in [*sorted(blocks), arena.size]:
            ends.append(offset - at)
            at = offset + blocks.get(offset, 0)
        return [gap for gap in ends if gap > 0]
'''
BOOKS_STUB = (ASSIGNMENTS / "allocator_law" / "law.py").read_text(encoding="utf-8")
