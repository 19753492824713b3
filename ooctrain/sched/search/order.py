"""Two textbook algorithms, compiled: a counting sort by run, and a heap of numbers.

Runs are numbers below a known bound, so sorting by them takes no comparisons. The heap gives the
largest number so far. Source: Knuth, The Art of Computer Programming, volume 3. Read next:
`evict.py`, which needs both.
"""

from __future__ import annotations

import numpy as np

from ooctrain.sched.search.jit import inner


@inner
def by_run(position, runs):
    """An order in which `position`, numbers in [-1, runs), ascends; equals keep theirs."""
    begins = np.zeros(runs + 2, np.int64)
    for place in range(position.size):
        begins[position[place] + 2] += 1
    for run in range(1, runs + 2):
        begins[run] += begins[run - 1]
    order = np.empty(position.size, np.int64)
    for place in range(position.size):
        run = position[place] + 1
        order[begins[run]] = place
        begins[run] += 1
    return order


@inner
def push(heap, size, number):
    """Puts a number on a heap of `size` numbers, the largest first."""
    place = size
    while place and heap[(place - 1) // 2] < number:
        heap[place] = heap[(place - 1) // 2]
        place = (place - 1) // 2
    heap[place] = number


@inner
def pop(heap, size):
    """Takes the largest number from a heap of `size` numbers."""
    number = heap[size - 1]
    place = 0
    while 2 * place + 1 < size - 1:
        child = 2 * place + 1
        if child + 1 < size - 1 and heap[child + 1] > heap[child]:
            child += 1
        if heap[child] <= number:
            break
        heap[place] = heap[child]
        place = child
    heap[place] = number
