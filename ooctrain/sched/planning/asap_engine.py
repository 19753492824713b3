"""The as-soon-as-possible engine: plays a step in time and writes each instruction as it starts.

A call starts when its inputs are there and its memory is free. Swap-outs go in order of production,
as soon as the value exists. Swap-ins go in order of next use, but only if the bytes fit now and in
every call up to that use, so that no prefetch can ever block a call. A swap-out that has not begun
when its value is due back is cancelled, where the bytes can stay. On a shared link swap-outs go
first, unless the next call waits for data. The clock goes from one end of something to the next:
of a call, of a copy out, of a copy in. Read next: `lower.py`, which asks; `sched/search/play.py`,
the compiled twin, which finds the makespan alone.
"""

from __future__ import annotations

from collections import defaultdict, deque

import numpy as np

from ooctrain.sched.planning.decisions import BEFORE_THE_STEP
from ooctrain.sched.planning.host_room import HostRoom
from ooctrain.sched.planning.pieces import GapPiece, Table
from ooctrain.sched.schedule import End, Free, Instruction, Range, SwapIn, SwapOut
from ooctrain.step.machine import Machine

NEVER = 1 << 62
#: A budget beyond it limits nothing; numbers up to it can be counted in 64 bits.
AMPLE_BYTES = 1 << 62


class AsapEngine:
    """Plays the step in time and writes the list down.

    Attributes:
        now_ns: the clock.
        slowdown: how many times as long a call takes while a copy runs.
        position: the Run that is running, or next.
        run_left_ns: what is left of it, undisturbed; `NEVER` where none runs.
        unpaid_ns: issue of what has been listed since the last Run, which the next one begins with.
        held_bytes: the device ledger.
        room_bytes: for each Run, what is left of the budget beside all that must or will be there
            by then.
        ended: position of the latest Run that has ended.
        awaited: for each Run, how many pieces have yet to arrive (or stay) before it can start.
        returning: for each host copy, how many pieces have yet to arrive from it (or stay).
        opening: for each Run, the pieces whose gap begins when it ends.
        outgoing, incoming: pieces whose copy has not started, in the order in which they start.
        copies: {host copy: when it is done, in ns}, of those that have started.
        going, coming: the pieces that are being copied, out and in.
        host: room for copies on the host; None: enough for all.
    """

    def __init__(
        self, table: Table, budget_bytes: int, machine: Machine, host: HostRoom | None = None
    ):
        self.table, self.budget_bytes, self.host = table, budget_bytes, host
        self.shared_link, self.slowdown = machine.link == "shared", machine.slowdown
        self.issue_ns = round(machine.issue_us * 1000)
        self.copy_issue_ns = round(machine.copy_issue_us * 1000)
        self.unpaid_ns = 0
        self.now_ns = self.last_end_ns = self.position = 0
        self.held_bytes = table.start_bytes
        self.room_bytes = min(budget_bytes, AMPLE_BYTES) - np.array(table.resident_bytes, np.int64)
        self.ended = BEFORE_THE_STEP
        self.awaited = [0] * (len(table.runs) + 1)
        self.returning: dict[Range, int] = defaultdict(int)
        self.opening: dict[int, list[GapPiece]] = defaultdict(list)
        for piece in table.pieces:
            self._await(piece, piece.returns)
            self.opening[piece.after].append(piece)
        self.outgoing = deque(sorted(table.pieces, key=lambda piece: (piece.queued, piece.after)))
        self.incoming = deque(
            sorted((p for p in table.pieces if p.returns), key=lambda piece: piece.before)
        )
        self.copies = {p.copy: 0 for p in table.pieces if p.after == BEFORE_THE_STEP}  # done, in ns
        self.run_left_ns = self.out_ends_ns = self.in_ends_ns = NEVER
        self.going: GapPiece | None = None
        self.coming: GapPiece | None = None
        self.instructions: list[Instruction] = []
        self.start_ns: list[int] = []

    def play(self) -> None:
        """Until every Run has ended and every copy is done."""
        for piece in self.opening[BEFORE_THE_STEP]:
            piece.is_out = True
        self._free_dead(BEFORE_THE_STEP)
        while self._start_something() or self._clock_moves():
            pass

    def _start_something(self) -> bool:
        """Starts a call or a copy that can start now; False where none can."""
        if self._start_run():
            return True
        waits_for_data = self.run_left_ns == NEVER and self.awaited[self.position] > 0
        if self.shared_link and waits_for_data:
            return self._start_in() or self._start_out()
        return self._start_out() or self._start_in()

    def _start_run(self) -> bool:
        position, table = self.position, self.table
        if self.run_left_ns != NEVER or position == len(table.runs) or self.awaited[position]:
            return False
        if self.held_bytes + table.claim_bytes[position] > self.budget_bytes:
            return False
        self.held_bytes += table.claim_bytes[position]
        self._write(table.runs[position])
        self.run_left_ns, self.unpaid_ns = table.duration_ns[position] + self.unpaid_ns, 0
        return True

    def _start_out(self) -> bool:
        while self.outgoing and (self.outgoing[0].stays or self.outgoing[0].copy in self.copies):
            self.outgoing.popleft()
        if self.going or (self.shared_link and self.coming) or not self.outgoing:
            return False
        piece = self._next_out()
        if piece is None:
            return False
        self.outgoing.remove(piece)
        self.going, self.out_ends_ns = piece, self.now_ns + piece.out_ns
        self.copies[piece.copy] = self.out_ends_ns
        self._write(SwapOut(piece.var, piece.lo, piece.hi))
        return True

    def _next_out(self) -> GapPiece | None:
        """The first piece that may leave. Where the host has no room for it yet, another may go
        before: one whose gap has begun, and which the device may wait for.
        """
        for piece in self.outgoing:
            if piece.written > self.ended:
                return None
            waits = piece.slot != piece.copy and self.returning[piece.slot]
            if self.host is None:
                return None if waits else piece
            done = piece.stays or piece.copy in self.copies
            if not (waits or done) and self._host_takes(self.host, piece):
                return piece
        return None

    def _host_takes(self, host: HostRoom, piece: GapPiece) -> bool:
        """Whether the host has room until the gap begins; then its room is taken anyway."""
        size_bytes, slot = piece.hi - piece.lo, self.position + (self.run_left_ns != NEVER)
        if host.least(slot, piece.after) < size_bytes:
            return False
        host.take(slot, piece.after, size_bytes)
        return True

    def _start_in(self) -> bool:
        """Brings in the piece that is needed next, or lets it stay if it has not left."""
        if not self.incoming:
            return False
        piece = self.incoming[0]
        settled = self._bring_in(piece) if piece.is_out else self._let_stay(piece)
        if settled:
            self.incoming.popleft()
        return settled

    def _bring_in(self, piece: GapPiece) -> bool:
        """Starts a swap-in where the link is free and the bytes fit, now and up to their use."""
        if not self._may_copy_in() or self.held_bytes + piece.size_bytes > self.budget_bytes:
            return False
        if not self._reserve(piece):
            return False
        self.held_bytes += piece.size_bytes
        self.coming, self.in_ends_ns = piece, self.now_ns + piece.in_ns
        self._write(SwapIn(piece.var, piece.lo, piece.hi))
        return True

    def _let_stay(self, piece: GapPiece) -> bool:
        """Cancels a swap-out when its way back would start: the copy out has not, the bytes fit."""
        due = self.run_left_ns == NEVER and piece.before == self.position
        if not (due or self._may_copy_in()):
            return False
        if piece.after > self.ended or piece.copy in self.copies or not self._reserve(piece):
            return False
        piece.stays = True
        self._await(piece, -1)
        return True

    def _may_copy_in(self) -> bool:
        """Whether the link is free for a copy to the device."""
        return not self.coming and not (self.shared_link and self.going)

    def _reserve(self, piece: GapPiece) -> bool:
        """Whether the bytes fit in every call up to their use; if so, takes them from its room."""
        first = self.position + (self.run_left_ns != NEVER)
        room = self.room_bytes[first : piece.before]
        if room.size and room.min() < piece.size_bytes:
            return False
        room -= piece.size_bytes
        return True

    def _clock_moves(self) -> bool:
        """Goes to the next end of something; False if nothing is under way."""
        # While `pass_ns` go by, `work_ns` of a call's work are done.
        pass_ns, work_ns = self.slowdown.as_integer_ratio() if self.going or self.coming else (1, 1)
        run_ends_ns = NEVER
        if self.run_left_ns != NEVER:
            run_ends_ns = self.now_ns - (-self.run_left_ns * pass_ns // work_ns)
        next_ns = min(run_ends_ns, self.out_ends_ns, self.in_ends_ns)
        if next_ns == NEVER:
            return False
        if self.run_left_ns != NEVER:
            self.run_left_ns -= (next_ns - self.now_ns) * work_ns // pass_ns
        self.now_ns = self.last_end_ns = next_ns
        if self.out_ends_ns == next_ns:
            self._end_out()
        if self.in_ends_ns == next_ns:
            self._end_in()
        if run_ends_ns == next_ns:
            self._end_run()
        return True

    def _end_out(self) -> None:
        piece, self.going, self.out_ends_ns = self.going, None, NEVER
        if piece is not None and piece.after <= self.ended:
            self._release(piece)

    def _end_in(self) -> None:
        piece, self.coming, self.in_ends_ns = self.coming, None, NEVER
        if piece is not None:
            self._await(piece, -1)

    def _await(self, piece: GapPiece, change: int) -> None:
        self.awaited[piece.before] += change
        self.returning[piece.copy] += change

    def _end_run(self) -> None:
        self.ended, self.run_left_ns = self.position, NEVER
        self.position += 1
        self._write(End(self.table.runs[self.ended].call))
        self.held_bytes -= self.table.end_bytes[self.ended]
        self._free_dead(self.ended)
        for piece in self.opening[self.ended]:
            if self.copies.get(piece.copy, NEVER) <= self.now_ns:
                self._release(piece)

    def _free_dead(self, position: int) -> None:
        for variable, size_bytes, granted_bytes in self.table.dead[position]:
            self._write(Free(variable, 0, size_bytes))
            self.held_bytes -= granted_bytes

    def _release(self, piece: GapPiece) -> None:
        piece.is_out = True
        self._write(Free(piece.var, piece.lo, piece.hi))
        self.held_bytes -= piece.size_bytes

    def _write(self, instruction: Instruction) -> None:
        self.instructions.append(instruction)
        self.start_ns.append(self.now_ns)
        self.unpaid_ns += self.issue_ns
        if isinstance(instruction, SwapIn | SwapOut):
            self.unpaid_ns += self.copy_issue_ns
