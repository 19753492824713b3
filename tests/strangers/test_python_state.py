"""What Python holds and a trace reads: seen when it changes, refused where it differs each time.

A table of places that a weight may be annealed in, and of ways to draw; each entry is a stranger's
code. Annealed: the next step is that of a trainer that began with the new value. Drawn: one typed
error with the line, before anything is trained.
"""

import collections
import contextvars
import functools
import gc
import os
import random
import secrets
import sys
import threading
import time
import types
import warnings
import weakref
from dataclasses import dataclass, field

import numpy as np
import pytest

import ooctrain as oc
from ooctrain import functional as F
from ooctrain import nn
from ooctrain.errors import NotRepeatable

HERE = os.path.abspath(__file__)
WEIGHT = 0.5


def batch(rows=4):
    rng = np.random.default_rng(0)
    return rng.standard_normal((rows, 6)).astype(np.float32), np.arange(rows) % 3


class Net(nn.Module):
    """A classifier whose logits are multiplied by what `factor` gives."""

    def __init__(self, **held):
        super().__init__()
        self.fc = nn.Linear(6, 3)
        for name, value in held.items():
            setattr(self, name, value)

    def factor(self):
        return 1.0

    def forward(self, x):
        return self.fc(x) * float(self.factor())


def net(factor, **held):
    """A network with a `factor` of one's own."""
    oc.manual_seed(0)
    return type("Own", (Net,), {"factor": factor, "__module__": __name__})(**held)


def trainer(model, loss="cross_entropy", **options):
    sgd = oc.optim.SGD(model.parameters(), lr=0.1)
    return oc.Trainer(model, loss, sgd, threads=1, **options)


class Plain:
    def __init__(self, weight=WEIGHT):
        self.weight, self.history = weight, []

    def __call__(self, output, target):
        return F.cross_entropy(output, target) * self.weight

    def loss(self, output, target):
        return self(output, target)


class Slotted:
    __slots__ = ("weight",)

    def __init__(self):
        self.weight = WEIGHT


class OneSlot:
    __slots__ = "weight"

    def __init__(self):
        self.weight = WEIGHT


class PrivateSlot:
    """Its slot is called `_PrivateSlot__weight`."""

    __slots__ = ("__weight",)

    def __init__(self):
        self.change(WEIGHT)

    def change(self, weight):
        self.__weight = weight

    def read(self):
        return self.__weight


class Property:
    def __init__(self):
        self.epoch = 1

    @property
    def weight(self):
        return 0.5**self.epoch


class OfTheClass:
    weight = WEIGHT


class Meta(type):
    weight = WEIGHT


def of_a_metaclass():
    """A class whose attribute is that of its own class."""
    return type("OwnMeta", (Meta,), {"__module__": __name__})("Made", (), {})


@dataclass
class Data:
    weight: float = WEIGHT
    table: dict = field(default_factory=lambda: {"a": [WEIGHT]})


class Cyclic:
    def __init__(self):
        self.me, self.weight = self, WEIGHT


def nested():
    outer = Plain()
    for _ in range(20):
        outer = types.SimpleNamespace(inner=outer)
    return outer


def innermost(one):
    while hasattr(one, "inner"):
        one = one.inner
    return one


SHARED = {"a": WEIGHT}


def shared():
    SHARED.update(a=WEIGHT)
    return types.MappingProxyType(SHARED)


def remembering():
    """A function that reads what `set` has set."""
    weight = WEIGHT

    def read(factor=1.0):
        return weight * factor

    def set_to(new):
        nonlocal weight
        weight = new

    read.set = set_to
    return read


def cached():
    read = remembering()
    found = functools.lru_cache(read)
    found.set = read.set
    return found


def vectorized():
    return np.vectorize(remembering())


class OfAPartMethod(Plain):
    def times(self, factor):
        return self.weight * factor

    read = functools.partialmethod(times, 1.0)


def set_weight(one):
    one.weight = 2.0


#: {name: (what the network holds as `held`, how it is read, how it changes)}
HELD = {
    "an object": (Plain, lambda self: self.held.weight, set_weight),
    "slots": (Slotted, lambda self: self.held.weight, set_weight),
    "a slot alone": (OneSlot, lambda self: self.held.weight, set_weight),
    "a private slot": (
        PrivateSlot, lambda self: self.held.read(), lambda one: one.change(2.0)),
    "a property": (
        Property, lambda self: self.held.weight, lambda one: setattr(one, "epoch", 3)),
    "an attribute of the class": (
        OfTheClass, lambda self: self.held.weight, set_weight),
    "an attribute of the metaclass": (
        of_a_metaclass, lambda self: self.held.weight, lambda one: set_weight(type(one))),
    "a dataclass": (Data, lambda self: self.held.weight, set_weight),
    "a list within a dictionary": (
        Data, lambda self: self.held.table["a"][0], lambda one: one.table["a"].__setitem__(0, 2.0)),
    "a deque": (
        lambda: collections.deque([WEIGHT]), lambda self: self.held[0],
        lambda one: one.__setitem__(0, 2.0)),
    "a list of a class": (
        lambda: collections.UserList([WEIGHT]), lambda self: self.held[0],
        lambda one: one.__setitem__(0, 2.0)),
    "bytes": (lambda: bytearray([1]), lambda self: self.held[0] / 4,
              lambda one: one.__setitem__(0, 8)),
    "a variable of a context": (
        lambda: contextvars.ContextVar("weight", default=WEIGHT), lambda self: self.held.get(),
        lambda one: one.set(2.0)),
    "a set": (lambda: {WEIGHT}, lambda self: sum(self.held), lambda one: one.add(2.0)),
    "a cycle": (Cyclic, lambda self: self.held.me.me.weight, set_weight),
    "twenty levels": (nested, lambda self: innermost(self.held).weight,
                      lambda one: set_weight(innermost(one))),
    "an array": (
        lambda: types.SimpleNamespace(a=np.full(2, WEIGHT)), lambda self: self.held.a.sum(),
        lambda one: one.a.__setitem__(0, 2.0)),
    "an array in an object": (
        lambda: Plain(np.full(2, WEIGHT)), lambda self: self.held.weight.sum(),
        lambda one: one.weight.__setitem__(0, 2.0)),
    "by getattr": (Plain, lambda self: getattr(self.held, "wei" + "ght"), set_weight),
    "a new attribute by getattr": (
        Plain, lambda self: getattr(self.held, "more", 1.0), lambda one: setattr(one, "more", 3.0)),
    "a function with a cache": (
        cached, lambda self: self.held(), lambda one: (one.set(2.0), one.cache_clear())),
    "a partial method": (
        OfAPartMethod, lambda self: self.held.read(), set_weight),
    "a function for arrays": (
        vectorized, lambda self: float(self.held(1.0)), lambda one: one.pyfunc.set(2.0)),
    "a user dictionary": (
        lambda: collections.UserDict(a=WEIGHT), lambda self: self.held["a"],
        lambda one: one.__setitem__("a", 2.0)),
    "a chain of dictionaries": (
        lambda: collections.ChainMap({}, {"a": WEIGHT}), lambda self: self.held["a"],
        lambda one: one.__setitem__("a", 2.0)),
    "a view of a dictionary": (
        shared, lambda self: self.held["a"],
        lambda one: SHARED.update(a=2.0)),
    "another object": (
        lambda: types.SimpleNamespace(at=Plain()), lambda self: self.held.at.weight,
        lambda one: setattr(one, "at", Plain(2.0))),
}  # fmt: skip


@pytest.mark.parametrize("name", HELD)
def test_what_a_model_holds_and_reads_is_seen(name):
    make, read, change = HELD[name]

    def losses(*, early):
        one = make()
        if early:
            change(one)
        with trainer(net(read, held=one)) as t:
            first = t.step(*batch())
            state = t.model.state_dict()
            if not early:
                change(one)
            return first, t.step(*batch()), state

    changed, before = losses(early=True), losses(early=False)
    assert before[0] != changed[0]
    # The second step of the one and the first of the other differ in the weights alone.
    one = make()
    change(one)
    model = net(read, held=one)
    model.load_state_dict(before[2])
    with trainer(model) as t:
        assert t.step(*batch()) == before[1]


def test_a_weak_reference_is_followed():
    one = Plain()
    model = net(lambda self: self.held().weight, held=weakref.ref(one))
    with trainer(model) as t:
        first = t.evaluate([batch()]).loss
        one.weight = 2.0
        assert t.evaluate([batch()]).loss != first


SCALE = 1.0
TABLE = {"scale": [1.0]}


class Config:
    alpha = 1.0


def helper():
    return SCALE


def annealed_losses():
    """(name, loss, what changes its value)."""
    one, held = Plain(), [WEIGHT]
    yield "an object", one, lambda: set_weight(one)
    two = Plain()
    yield "a bound method", two.loss, lambda: set_weight(two)
    keywords = functools.partial(weighted, weight=held)
    yield "a partial", keywords, lambda: held.__setitem__(0, 2.0)
    again = functools.partial(functools.partial(weighted), weight=[WEIGHT])
    yield "a partial's keywords", again, lambda: again.keywords.update(weight=[2.0])
    weight = WEIGHT

    def closure(output, target):
        return F.cross_entropy(output, target) * weight

    def anneal():
        nonlocal weight
        weight = 2.0

    yield "a closure", closure, anneal
    three = Plain()
    yield "a lambda", lambda o, t: F.cross_entropy(o, t) * three.weight, lambda: set_weight(three)
    yield "a default", default, lambda: default.__kwdefaults__.update(weight=2.0)
    yield "its own attribute", of_itself, lambda: setattr(of_itself, "weight", 2.0)
    yield "a global number", of_a_global, lambda: globals().update(SCALE=2.0)
    yield "a global of a helper", of_a_helper, lambda: globals().update(SCALE=3.0)
    yield "a global table", of_a_table, lambda: TABLE["scale"].__setitem__(0, 2.0)
    yield "a class", of_a_class, lambda: setattr(Config, "alpha", 2.0)


def weighted(output, target, weight):
    return F.cross_entropy(output, target) * weight[0]


def default(output, target, *, weight=WEIGHT):
    return F.cross_entropy(output, target) * weight


def of_itself(output, target):
    return F.cross_entropy(output, target) * of_itself.weight


of_itself.weight = WEIGHT


def of_a_global(output, target):
    return F.cross_entropy(output, target) * SCALE


def of_a_helper(output, target):
    return F.cross_entropy(output, target) * helper()


def of_a_table(output, target):
    return F.cross_entropy(output, target) * TABLE["scale"][0]


def of_a_class(output, target):
    return F.cross_entropy(output, target) * Config.alpha


@pytest.mark.parametrize("name", [name for name, *_ in annealed_losses()])
def test_what_a_loss_reads_is_seen(name):
    loss, change = {key: rest for key, *rest in annealed_losses()}[name]
    with trainer(net(lambda self: 1.0), loss) as t:
        first = t.evaluate([batch()]).loss
        change()
        second = t.evaluate([batch()]).loss
    with trainer(net(lambda self: 1.0), loss) as t:
        assert t.evaluate([batch()]).loss == second != first


def test_the_number_of_steps_is_seen():
    """A loss that asks the trainer, or the optimizer, how far it is."""
    held = []

    def loss(output, target):
        return F.cross_entropy(output, target) * (1.0 + held[0].steps_done)

    with trainer(net(lambda self: 1.0), loss) as t:
        held.append(t.optimizer)
        losses = [t.step(*batch()) for _ in range(3)]
    assert losses[1] > 1.5 * losses[0]
    assert losses[2] > losses[1]


def test_the_trainer_s_own_count_is_seen():
    held = []

    def loss(output, target):
        return F.cross_entropy(output, target) * (1.0 + held[0].steps_done)

    with trainer(net(lambda self: 1.0), loss) as t:
        held.append(t)
        losses = [t.step(*batch()) for _ in range(3)]
    assert losses[1] > 1.5 * losses[0]
    assert losses[2] > losses[1]


def imported(self):
    import strangers_settings

    return strangers_settings.ALPHA


def from_the_environment(self):
    return os.environ["STRANGER_ALPHA"]


def test_rooms_that_are_imported_inside_are_seen(monkeypatch):
    room = types.ModuleType("strangers_settings")
    room.ALPHA = WEIGHT
    monkeypatch.setitem(sys.modules, "strangers_settings", room)
    monkeypatch.setenv("STRANGER_ALPHA", "0.5")
    for factor, change in (
        (imported, lambda: setattr(room, "ALPHA", 2.0)),
        (from_the_environment, lambda: monkeypatch.setenv("STRANGER_ALPHA", "2.0")),
    ):
        with trainer(net(factor)) as t:
            first = t.evaluate([batch()]).loss
            change()
            assert t.evaluate([batch()]).loss != first


class Teacher(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = Net(rng=np.random.default_rng(0))

    def forward(self, x):
        return self.inner.rng.random()


class LossWithNoise(nn.Module):
    def __init__(self):
        super().__init__()
        self.rng = np.random.default_rng(0)

    def forward(self, output, target):
        return F.cross_entropy(output, target) + 0.0 * self.rng.random()  # the line


def test_modules_that_are_losses_and_teachers_may_not_draw():
    teacher = Teacher()

    def taught(output, target):
        return F.cross_entropy(output, target) + 0.0 * teacher(output)

    for loss in (LossWithNoise(), taught):
        with trainer(net(lambda self: 1.0), loss) as t, pytest.raises(NotRepeatable) as caught:
            t.step(*batch())
        assert caught.value.where.startswith(HERE)


def test_a_weight_that_changes_in_each_step_is_named():
    schedule = Plain()

    def loss(output, target):
        return F.cross_entropy(output, target) * schedule.weight

    with trainer(net(lambda self: 1.0), loss) as t:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for _ in range(8):
                t.step(*batch())
        with pytest.warns(UserWarning, match="weight changes from step to step"):
            annealed(t, schedule)


def annealed(t, schedule):
    for number in range(8):
        schedule.weight = 1.0 / (1 + number)
        t.step(*batch())


class Buffered(Net):
    def __init__(self):
        super().__init__()
        self.register_buffer("weight", np.float32(1.0))

    def forward(self, x):
        return self.fc(x) * self.weight


def test_a_buffer_is_a_value_that_needs_no_plan():
    oc.manual_seed(0)
    model = Buffered()
    sgd = oc.optim.SGD(model.parameters(), lr=0.0)
    with oc.Trainer(model, optimizer=sgd, threads=1) as t:
        first, prepared = t.step(*batch()), t.prepared
        model.weight.copy_(4.0)
        assert t.step(*batch()) != first
        assert t.prepared is prepared


def test_what_no_function_reads_costs_nothing():
    """A logger that a model keeps may grow without another trace."""
    log = Plain()
    with trainer(net(lambda self: 1.0, log=log)) as t:
        t.step(*batch())
        seen = t.model.calls if hasattr(t.model, "calls") else None
        log.history.append(3)
        log.more = 5
        prepared = t.prepared
        t.step(*batch())
        assert t.prepared is prepared
        assert seen is None


def counted(self):
    self.calls += 1
    return 1.0


def test_a_counter_that_changes_nothing_is_left_alone():
    model = net(counted, calls=0)
    with trainer(model) as t:
        for _ in range(4):
            t.step(*batch())
        calls = model.calls
        for _ in range(4):
            t.step(*batch())
        assert model.calls == calls


def of_its_counter(self):
    self.calls += 1  # the line
    return self.calls


def test_a_counter_that_changes_the_step_is_refused_with_its_line():
    with trainer(net(of_its_counter, calls=0)) as t, pytest.raises(NotRepeatable) as caught:
        t.step(*batch())
    assert caught.value.code == "OOC-340"
    line = of_its_counter.__code__.co_firstlineno + 1
    assert caught.value.where == f"{HERE}:{line}"


#: {name: what a forward pass does with its count of calls}; no two traces in a row differ.
RARELY = {
    "a warm-up": lambda self: 1.0 if self.calls <= 5 else 0.5,
    "a long warm-up": lambda self: 0.1 if self.calls < 1000 else 1.0,
    "each third": lambda self: 0.0 if self.calls % 3 == 0 else 1.0,
    "each hundredth": lambda self: 2.0 if self.calls % 100 == 0 else 1.0,
}


@pytest.mark.parametrize("name", RARELY)
def test_a_counter_that_changes_the_step_now_and_then_is_refused(name):
    def scale(self):
        self.calls += 1
        return RARELY[name](self)

    with trainer(net(scale, calls=0)) as t, pytest.raises(NotRepeatable) as caught:
        t.step(*batch())
    assert caught.value.code == "OOC-340"


def test_a_counter_that_may_not_get_further_is_left_alone():
    def scale(self):
        self.calls += 1
        return [1.0, 1.0, 1.0][self.calls]

    model = net(scale, calls=0)
    with trainer(model) as t:
        t.step(*batch())
        assert model.calls == 2


def remembers(self):
    self.seen.append(1)
    return 1.0


def test_a_list_that_grows_with_each_trace_is_left_alone():
    with trainer(net(remembers, seen=[])) as t:
        t.step(*batch())
        before = len(t.model.seen)
        t.step(*batch())
        assert len(t.model.seen) == before


class KeepsShape(Net):
    def forward(self, x):
        self.last = x.shape
        self.traces = getattr(self, "traces", 0) + 1
        return self.fc(x)


def test_what_a_forward_pass_notes_of_its_input_does_not_make_batches_thrash():
    with trainer(KeepsShape()) as t:
        for rows in (4, 3, 4, 3):
            t.step(*batch(rows))
        before = t.model.traces
        for rows in (4, 3, 4, 3, 3, 4):
            t.step(*batch(rows))
        assert t.model.traces == before


GLOBAL_RNG = np.random.default_rng(1)
PYTHON_RNG = random.Random(2)
imported_random, imported_rand = random.random, np.random.rand


#: {name: a factor that is drawn}; each in one line, which must be named
DRAWN = {
    "random.random": lambda self: random.random(),
    "random.choice": lambda self: random.choice([0.0, 1.0]),
    "random.gauss": lambda self: random.gauss(0, 1),
    "random.shuffle": lambda self: random.shuffle([1, 2, 3]) or 1.0,
    "an imported function": lambda self: imported_random(),
    "rarely": lambda self: float(random.random() < 1e-9),
    "numpy.random.rand": lambda self: np.random.rand(),  # noqa: NPY002
    "numpy.random.choice": lambda self: np.random.choice([1.0, 1.0]),  # noqa: NPY002
    "an imported function of NumPy": lambda self: imported_rand(),
    "a global generator": lambda self: GLOBAL_RNG.random(),
    "a global random.Random": lambda self: PYTHON_RNG.random(),
    "a held generator": lambda self: self.held.normal(),
    "a held RandomState": lambda self: self.state.rand(),
    "a held random.Random": lambda self: self.python.uniform(0, 1),
    "a generator in an object": lambda self: self.object.weight.random() * 0,
    "secrets": lambda self: secrets.randbelow(2),
    "os.urandom": lambda self: os.urandom(1)[0],
    "SystemRandom": lambda self: self.system.random(),
    "the clock": lambda self: time.time(),
    "perf_counter": lambda self: time.perf_counter_ns(),
}  # fmt: skip


@pytest.fixture
def watched_collections():
    """Garbage is looked for all the time, and another library takes the time that it takes."""

    def watch(phase, info):
        time.perf_counter()

    before = gc.get_threshold()
    gc.callbacks.append(watch)
    gc.set_threshold(1)
    yield
    gc.set_threshold(*before)
    gc.callbacks.remove(watch)


def test_who_looks_at_the_clock_while_garbage_is_collected_is_not_the_model(watched_collections):
    with trainer(net(lambda self: 1.0)) as t:
        t.step(*batch())
    name = "perf_counter"
    with trainer(net(DRAWN[name])) as t, pytest.raises(NotRepeatable) as caught:
        t.step(*batch())
    assert caught.value.where == f"{HERE}:{DRAWN[name].__code__.co_firstlineno}"


@pytest.mark.parametrize("name", DRAWN)
def test_a_draw_is_refused_with_its_line(name):
    factor = DRAWN[name]
    model = net(
        factor, held=np.random.default_rng(0), state=np.random.RandomState(0),
        python=random.Random(0), object=Plain(np.random.default_rng(0)),
        system=random.SystemRandom(),
    )  # fmt: skip
    line = f"{HERE}:{factor.__code__.co_firstlineno}"
    with trainer(model) as t:
        for use in (lambda: t.step(*batch()), lambda: t.predict(batch()[0])):
            with pytest.raises(NotRepeatable) as caught:
                use()
            assert caught.value.code == "OOC-340"
            assert caught.value.where == line
        assert t.steps_done == 0
        assert "traced_every_step" in caught.value.fix


def test_a_loss_that_draws_is_refused():
    def loss(output, target):
        return F.cross_entropy(output, target) * random.random()

    with trainer(net(lambda self: 1.0), loss) as t, pytest.raises(NotRepeatable) as caught:
        t.step(*batch())
    assert caught.value.where == f"{HERE}:{loss.__code__.co_firstlineno + 1}"


def test_a_trace_of_its_own_is_refused_too():
    with pytest.raises(NotRepeatable):
        oc.trace(net(lambda self: random.random()), (4, 6), "cross_entropy", "sgd")


def test_an_iterator_is_refused():
    steps = iter(range(100))
    with trainer(net(lambda self: next(steps))) as t, pytest.raises(NotRepeatable):
        t.step(*batch())


def test_draws_of_other_threads_are_nobodys_business():
    """Augmentation draws while a step is traced, in a thread of its own."""
    ended = threading.Event()

    def augment():
        while not ended.is_set():
            np.random.rand()  # noqa: NPY002
            random.random()

    thread = threading.Thread(target=augment)
    thread.start()
    try:
        # It sleeps, so that the thread surely draws meanwhile.
        with trainer(net(lambda self: time.sleep(0.01) or 1.0)) as t:
            assert len(t.fit([batch(rows) for rows in (2, 3, 4)])) == 3
    finally:
        ended.set()
        thread.join()


class Times(oc.Op):
    """An operation of one's own that compares by identity; made anew in each forward pass."""

    def __init__(self, factor, by=None):
        self.factor, self.by = factor, by or (lambda x: x * factor)

    def shape(self, x):
        return x

    def forward(self, x):
        return self.by(x)

    def backward(self, dy):
        return dy * self.factor


class WithOwn(Net):
    def forward(self, x):
        return Times(self.factor())(self.fc(x))


def test_operations_of_ones_own_need_no_equality():
    with trainer(WithOwn()) as t:
        assert t.step(*batch()) != t.step(*batch())
        t.predict(batch()[0])


def test_operations_of_ones_own_that_differ_are_refused():
    model = WithOwn()
    steps = iter(range(100))
    model.factor = lambda: next(steps)
    with trainer(model) as t, pytest.raises(NotRepeatable):
        t.step(*batch())


def test_a_nan_is_the_same_twice():
    with trainer(net(lambda self: float("nan"))) as t:
        assert np.isnan(t.predict(batch()[0])).all()


@oc.traced_every_step
class Steps(Net):
    def factor(self):
        self.drawn.append(float(self.rng.integers(1, 4)))
        return self.drawn[-1]


@pytest.mark.parametrize("budget", [None, "100%"])
def test_traced_every_step_draws_anew_and_plans_each_trace_once(budget):
    model = Steps(drawn=[], rng=np.random.default_rng(3))
    plans = set()
    with trainer(model, budget=budget) as t:
        for number in range(12):
            t.step(*batch())
            assert len(model.drawn) == number + 1
            plans.add(id(t.plan))
        assert len(plans) == len(set(model.drawn)) == 3


def test_a_loss_may_be_traced_every_step():
    @oc.traced_every_step
    def loss(output, target):
        return F.cross_entropy(output, target) * random.random()

    with trainer(net(lambda self: 1.0), loss) as t:
        assert t.step(*batch()) != t.step(*batch())
