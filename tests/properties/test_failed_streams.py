"""Law: what follows a failed piece of work is not done, and nobody waits for it for ever.

Pieces of work on three streams wait for each other, and one of them fails. Whatever comes after it
on its stream, or waits for it, directly or by others, must not be done: it would read what was
never written. Every counter comes to its end all the same, the failure is told, and the streams
stay failed, whether they are abandoned, restarted or closed.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.directed import always

from ooctrain.devices.thread_streams import COMPUTE, IN, OUT, Streams
from ooctrain.errors import OoctrainError, TransferError

STREAMS = 3
NOTHING = (0, 0, 0)


@dataclass(frozen=True)
class Piece:
    """A piece of work: its stream, and how many pieces of each stream it waits for."""

    stream: int
    waits: tuple[int, ...] = NOTHING


def random_pieces(rng: random.Random, count: int) -> list[Piece]:
    """Waits point backwards only, mostly to what was listed last."""
    listed, pieces = [0] * STREAMS, []
    for _ in range(count):
        waits = tuple(n if rng.random() < 0.4 else rng.randint(0, n) for n in listed)
        pieces.append(Piece(rng.randrange(STREAMS), waits))
        listed[pieces[-1].stream] += 1
    return pieces


def after(pieces: Sequence[Piece], failing: int) -> set[int]:
    """The pieces that come after one of them, on its stream or by waiting."""
    places, listed = [], [0] * STREAMS
    for piece in pieces:
        listed[piece.stream] += 1
        places.append(listed[piece.stream])
    found = {failing}
    for number, piece in enumerate(pieces[failing + 1 :], failing + 1):
        for other in found:
            behind = pieces[other].stream == piece.stream
            if behind or piece.waits[pieces[other].stream] >= places[other]:
                found = found | {number}
                break
    return found - {failing}


@dataclass
class Run:
    """Streams at work, and which pieces were done."""

    streams: Streams = field(default_factory=Streams)
    done: set[int] = field(default_factory=set)

    def submit(self, number: int, piece: Piece, error: BaseException | None = None) -> None:
        def work() -> None:
            if error is not None:
                raise error
            self.done.add(number)

        self.streams.submit(piece.stream, piece.waits, work, number)

    def let_copies_come(self) -> None:
        """Until the copy streams stand still: each is done, or waits for a piece that is not."""
        before, since = None, time.monotonic()
        while time.monotonic() - since < 0.002:
            streams = self.streams
            now = streams.done, len(streams._moved._waiters), list(map(len, streams._queues))
            if now != before:
                before, since = (list(now[0]), *now[1:]), time.monotonic()
            time.sleep(0.0005)


def check(pieces: Sequence[Piece], failing: int, error: BaseException) -> None:
    """Runs the list; the piece `failing` raises `error`."""
    run = Run()
    try:
        for number, piece in enumerate(pieces):
            run.submit(number, piece, error if number == failing else None)
        run.let_copies_come()
        told = expect_told(run.streams, error)
        assert not run.done & after(pieces, failing), "work was done after the failure"
        assert run.streams.done == run.streams.submitted
        # They stay failed: after a restart as well.
        run.streams.restart()
        for stream in range(STREAMS):
            run.submit(-1 - stream, Piece(stream))
        assert expect_told(run.streams, error) is told
        assert not run.done & {-1, -2, -3}, "failed streams go on"
    finally:
        run.streams.abandon(OoctrainError("the end"))
        run.streams.close()


def expect_told(streams: Streams, error: BaseException) -> BaseException:
    """The failure that the walker is told; it works the compute stream off."""
    if not isinstance(error, Exception):
        # It reaches the walker at once, who abandons the rest, as a trainer does.
        with pytest.raises(type(error)):
            streams.synchronize()
        streams.abandon(OoctrainError("given up"))
        assert streams.failure is error
        return error
    with pytest.raises((type(error), TransferError)) as caught:
        streams.synchronize()
    assert caught.value is error or caught.value.__cause__ is error
    return caught.value


@settings(max_examples=40)
@given(st.integers(0, 2**32 - 1), st.integers(1, 30), st.integers(0, 29), st.booleans())
def test_nothing_is_done_that_follows_a_failed_piece(seed, count, failing, interrupted):
    pieces = random_pieces(random.Random(seed), count)
    failing %= count
    kind = KeyboardInterrupt if interrupted and pieces[failing].stream == COMPUTE else ValueError
    check(pieces, failing, kind("it failed"))


#: A copy waits for a call that fails; a call for a copy; both copies for each other.
CHAINS = {
    "a copy waits for a call": [Piece(COMPUTE), Piece(OUT, (1, 0, 0)), Piece(IN, (1, 1, 0))],
    "a call waits for a copy": [Piece(OUT), Piece(COMPUTE, (0, 1, 0)), Piece(IN, (1, 0, 0))],
    "two copies wait": [Piece(COMPUTE), Piece(IN, (1, 0, 0)), Piece(OUT, (1, 0, 0)), Piece(OUT)],
    "a row of copies": [Piece(COMPUTE), *[Piece(OUT, (1, n, 0)) for n in range(3)]],
}


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
@pytest.mark.parametrize("chain", CHAINS)
def test_a_chain_ends_at_its_first_failure(chain, error):
    check_chain(CHAINS[chain], error)


def check_chain(chain, error):
    """Its first piece fails; an interrupt reaches calls alone."""
    if chain[0].stream == COMPUTE or error is not KeyboardInterrupt:
        check(chain, 0, error("it failed"))


#: Copies that are queued, and whether the streams are closed or abandoned.
GIVEN_UP = [([OUT, IN, OUT], True), ([OUT, IN, OUT], False)]


@settings(max_examples=15)
@given(st.lists(st.sampled_from([OUT, IN]), min_size=1, max_size=6), st.booleans())
@always(GIVEN_UP)
def test_what_is_queued_when_streams_are_abandoned_or_closed_is_not_done(queued, close):
    check_given_up(queued, close)


def check_given_up(queued, close):
    """Each copy stream is at work with a piece that ends when the streams are given up."""
    run, begun = Run(), []

    def at_work():
        begun.append(1)
        end = time.monotonic() + 0.2
        while run.streams.failure is None and time.monotonic() < end:
            time.sleep(0.0002)

    for stream in (OUT, IN):
        run.streams.submit(stream, NOTHING, at_work)
    while len(begun) < 2:
        time.sleep(0.0002)
    for number, stream in enumerate(queued):
        run.submit(number, Piece(stream))
    if not close:
        run.streams.abandon(OoctrainError("given up"))
    run.streams.close()
    assert not run.done
