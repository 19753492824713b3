"""Paper 002's proofs of hardness as families of instances: planning that well is partitioning.

The sets of integers are random, some with a partition by construction, some without by brute force.
A chain is made of the integers, so that some step time can be reached
exactly where there is a partition; what finds the best step time knows nothing of partitions, and
the other way round. Sources: paper 002, theorems 1 and 3, figures 2 (corrected: docs/errata.md,
002-three-partition-*) and 3. Read next: `test_planning_theorems.py`.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest
from support.quick import quick

import ooctrain as oc
from ooctrain.errors import ScheduleError
from ooctrain.sched.bounds.exact import exact_makespan_us
from ooctrain.sched.planners.dynprog import in_slots, solve
from ooctrain.sched.planning.chain_view import chain_view
from ooctrain.sched.planning.list_writer import writer_with_resident_parameters
from ooctrain.sched.schedule import Schedule
from ooctrain.sched.simulate import simulate
from ooctrain.sched.verify import verify
from ooctrain.step.chain import chain
from ooctrain.step.trace import Trace
from ooctrain.units import Granule

#: One byte per us, one transfer at a time.
SHARED = oc.Machine("tiny", 1, 1, link_bytes_per_us=1, link="shared")
#: Whole values only.
WHOLE = Granule(1, ranges=False)
#: Some V for which six values between V / 4 and V / 2 need not have a partition.
TRIPLE_SUMS = (13, 17, 19)


def partition_chain(values: tuple[int, ...]):
    """Paper 002, figure 3: F_n and B_n take 1, x_{n+2} has half the sum, all else is nothing."""
    count = len(values)
    x = [*values, 0, 0, sum(values) // 2, 0, 0]
    stages = len(x) - 1
    once = [1 if i == count else 0 for i in range(stages)]
    return chain(x, [0] * len(x), once, once, [0] * stages, [0] * stages)


def test_the_2_partition_family_takes_2_exactly_where_there_is_a_partition():
    """Theorem 3, on random sets of integers with an even sum."""
    rng = random.Random(31)
    verdicts = set()
    for _ in range(40):
        values = [rng.randint(1, 9) for _ in range(rng.randint(2, 6))]
        if sum(values) % 2:
            values[0] += 1
        half = sum(values) // 2
        partition = any(
            sum(chosen) == half
            for count in range(len(values) + 1)
            for chosen in itertools.combinations(values, count)
        )
        machine = replace(SHARED, link_bytes_per_us=half)
        view = chain_view(partition_chain(tuple(values)), machine)
        found = solve(in_slots(view, 2 * half, machine, 1))
        takes_2 = found is not None and found.idle_us + 2 <= 2 + 1e-9
        assert takes_2 == partition, values
        verdicts.add(partition)
    assert verdicts == {True, False}


@dataclass(frozen=True)
class ThreePartition:
    """Paper 002, figure 2, corrected (docs/errata.md): 3 m values whose sum is m V.

    A stage without bytes comes first, so that x_0 is nothing; then x_1 .. x_3m are the values. A
    unit of time is V us. While F_{3m+2k+1} runs, a unit, V bytes must leave for what comes next;
    B_{3m+1} takes m units, in which all return.
    """

    values: tuple[int, ...]
    triple_sum: int

    @property
    def triples(self) -> int:
        return len(self.values) // 3

    @property
    def budget_bytes(self) -> int:
        return self.triples * self.triple_sum

    @property
    def claimed_us(self) -> int:
        """2 m units, and so all of the compute time: exactly where there is a partition."""
        return 2 * self.triples * self.triple_sum

    def trace(self) -> Trace:
        count = len(self.values)
        x = [0, *self.values] + [0, 0] * self.triples + [0]
        forward, backward = [0] * (len(x) - 1), [0] * (len(x) - 1)
        backward[count + 1] = self.budget_bytes
        for k in range(self.triples):
            forward[count + 2 * k + 1] = x[count + 2 * k + 3] = self.triple_sum
        nothing = [0] * len(x)
        return chain(x, nothing, forward, backward, nothing[1:], nothing[1:])

    def partition(self) -> list[tuple[int, ...]] | None:
        """Places of the values, in triples of equal sums; by brute force."""
        return self._partition(tuple(range(len(self.values))))

    def _partition(self, places: tuple[int, ...]) -> list[tuple[int, ...]] | None:
        if not places:
            return []
        for pair in itertools.combinations(places[1:], 2):
            triple = (places[0], *pair)
            if sum(self.values[place] for place in triple) == self.triple_sum:
                rest = self._partition(tuple(p for p in places if p not in triple))
                if rest is not None:
                    return [triple, *rest]
        return None

    def schedule(self, groups: Sequence[Sequence[int]]) -> Schedule:
        """The list of the proof: group k leaves while F_{3m+2k+1} runs, all return in B_{3m+1}."""
        writer = writer_with_resident_parameters(self.trace(), WHOLE)
        calls = writer.trace.calls
        count, half = len(self.values), len(calls) // 2
        for call in range(count + 1):
            writer.run(call)
        for k, group in enumerate(groups):
            for place in group:
                writer.swap_out(place + 1)
            writer.run(count + 2 * k + 1)
            for place in group:
                writer.free(place + 1)
            writer.run(count + 2 * k + 2)
        for call in range(half, len(calls)):
            if calls[call].duration_ns:
                for place in reversed([place for group in groups for place in group]):
                    writer.swap_in(place + 1)
            writer.run(call)
            writer.free_dead(call)
        return writer.finish()


def random_triple(rng: random.Random, triple_sum: int) -> tuple[int, int, int]:
    """Three values between V / 4 and V / 2 with the sum V."""
    values = [v for v in range(triple_sum) if triple_sum < 4 * v < 2 * triple_sum]
    return rng.choice([t for t in itertools.product(values, repeat=3) if sum(t) == triple_sum])


def three_partition_with(rng: random.Random, triples: int, triple_sum: int) -> ThreePartition:
    """With a partition: triples, shuffled."""
    values = [v for _ in range(triples) for v in random_triple(rng, triple_sum)]
    rng.shuffle(values)
    return ThreePartition(tuple(values), triple_sum)


def three_partition_without(rng: random.Random, triples: int, triple_sum: int) -> ThreePartition:
    """Without one: units move from value to value until brute force finds none."""
    found = three_partition_with(rng, triples, triple_sum)
    while found.partition() is not None:
        values = list(found.values)
        taken, given = rng.sample(range(len(values)), 2)
        values[taken], values[given] = values[taken] - 1, values[given] + 1
        if triple_sum < 4 * values[taken] and 2 * values[given] < triple_sum:
            found = ThreePartition(tuple(values), triple_sum)
    return found


@pytest.mark.parametrize(
    ("triples", "triple_sum"),
    quick([*((2, total) for total in TRIPLE_SUMS), (3, 13)], 0, names=2),
)
@pytest.mark.parametrize("make", [three_partition_with, three_partition_without])
def test_the_3_partition_family_takes_2_m_exactly_where_there_is_a_partition(
    make, triples, triple_sum
):
    """Theorem 1: the search for the best list knows nothing of partitions."""
    instance = make(random.Random(triple_sum), triples, triple_sum)
    partition = instance.partition()
    assert (partition is not None) == (make is three_partition_with)
    trace = instance.trace()
    at_host = replace(trace.variables[0], kind="input")  # without bytes; the search takes no state
    exact = exact_makespan_us(
        Trace((at_host, *trace.variables[1:]), trace.calls), instance.budget_bytes,
        partial=False, most_states=3_000_000,
    )  # fmt: skip
    assert (exact == instance.claimed_us) == (partition is not None), instance


@pytest.mark.parametrize("triples", [1, 2, 3, 6, 9])
def test_the_list_of_the_3_partition_proof_takes_2_m_exactly_for_a_partition(triples):
    rng = random.Random(triples)
    for triple_sum in (13, 40, 97):
        instance = three_partition_with(rng, triples, triple_sum)
        groups = instance.partition()
        assert proof_takes_us(instance, groups) == instance.claimed_us
        if len(set(instance.values)) > 1 and triples > 1:
            wrong = wrongly_grouped(instance, groups)
            assert proof_takes_us(instance, wrong) != instance.claimed_us


def proof_takes_us(instance: ThreePartition, groups: Sequence[Sequence[int]]) -> float | None:
    """None where the list does not fit the budget."""
    trace, schedule = instance.trace(), instance.schedule(groups)
    try:
        verify(schedule, trace, instance.budget_bytes)
    except ScheduleError:
        return None
    return simulate(schedule, trace, SHARED).makespan_us


def wrongly_grouped(
    instance: ThreePartition, groups: Sequence[tuple[int, ...]]
) -> list[tuple[int, ...]]:
    """The groups after an exchange of two different values between two of them."""
    for (a, first), (b, second) in itertools.combinations(enumerate(groups), 2):
        for one, other in itertools.product(first, second):
            if instance.values[one] != instance.values[other]:
                exchanged = {one: other, other: one}
                return [
                    tuple(exchanged.get(p, p) for p in group) if k in (a, b) else group
                    for k, group in enumerate(groups)
                ]
    raise AssertionError("all values are equal")
