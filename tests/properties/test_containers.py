"""Lists of modules change as Python's lists do, and dictionaries as Python's: the same members in
the same order, named by their places, after any changes one after another.

The judge is a plain list or dictionary that takes the same changes.
"""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from support.strategies import SEEDS

from ooctrain import nn


def module(number: int) -> nn.Linear:
    return nn.Linear(1, number + 1)


@pytest.mark.parametrize("kind", [nn.ModuleList, nn.Sequential])
@given(seed=SEEDS)
def test_a_list_of_modules_is_a_list(kind, seed):
    drawn, held, wanted = random.Random(seed), kind(), list[nn.Module]()
    for number in range(12):
        new, place = module(number), drawn.randint(-len(wanted), max(0, len(wanted) - 1))
        others = ("set", "delete", "pop") if wanted else ()
        what = drawn.choice(("append", "extend", "insert", *others))
        if what == "append":
            assert held.append(new) is held
            wanted.append(new)
        elif what == "extend":
            assert held.extend([new, new]) is held
            wanted.extend([new, new])
        elif what == "insert":
            assert held.insert(place, new) is held
            wanted.insert(place, new)
        elif what == "set":
            held[place] = wanted[place] = new
        elif what == "pop":
            assert held.pop(place) is wanted.pop(place)
        else:
            cut = drawn.choice((place, slice(place, None), slice(None, None, 2)))
            del held[cut], wanted[cut]
        assert list(held) == wanted
        assert len(held) == len(wanted)
        assert list(held.state_dict()) == keys_of(wanted)
        assert [held[i] for i in range(-len(wanted), len(wanted))] == wanted + wanted
        assert list(held[1:]) == wanted[1:]
        assert list(held[::2]) == wanted[::2]


def keys_of(wanted: list[nn.Module]) -> list[str]:
    return [f"{place}.{name}" for place in range(len(wanted)) for name in ("weight", "bias")]


@given(seed=SEEDS)
def test_a_dictionary_of_modules_is_a_dictionary(seed):
    drawn, wanted = random.Random(seed), {"x": module(0), "y": module(1)}
    held = nn.ModuleDict(wanted)
    for number in range(12):
        new, name = module(number), drawn.choice("abxy")
        others = ("delete", "pop") if name in wanted else ()
        what = drawn.choice(("set", "update", "pairs", "clear", *others))
        if what == "set":
            held[name] = wanted[name] = new
        elif what == "update":
            held.update({name: new, "z": new})
            wanted.update({name: new, "z": new})
        elif what == "pairs":
            held.update([(name, new)])
            wanted.update([(name, new)])
        elif what == "clear":
            held.clear()
            wanted.clear()
        elif what == "pop":
            assert held.pop(name) is wanted.pop(name)
        else:
            del held[name], wanted[name]
        assert list(held) == list(held.keys()) == list(wanted)
        assert list(held.values()) == list(wanted.values())
        assert list(held.items()) == list(wanted.items())
        assert len(held) == len(wanted)
        assert [known in held for known in "abxyz"] == [known in wanted for known in "abxyz"]
        assert all(held[known] is wanted[known] for known in wanted)
