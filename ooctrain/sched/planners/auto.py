"""auto: in-core where it fits, else the best of the quick planners, else a search.

Planning costs milliseconds and a step costs seconds, so `auto` runs several planners, by the tables
`IN_CORE`, `QUICK` and `THOROUGH`, and returns the plan of the least cost. A plan is *near* while it
takes at most `NEAR` times what no list beats; with no plan, nothing is near. Each row of a table
says why its planners run, and when. Planners that move parts of variables plan in whole chunks, so
that the plan can be executed with the default allocator; one to the byte, which cannot always be,
is taken only if it is faster by more than `NEAR`. Read next: `portfolio.py`, which runs them;
`registry.py`; docs/planners.md for what each row gains.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

from ooctrain.errors import PartFailed, failing_as
from ooctrain.sched.bounds.closed import lower_bound
from ooctrain.sched.budget import trace_peak_bytes
from ooctrain.sched.planners.belady import Belady
from ooctrain.sched.planners.bn_recompute import BnRecompute
from ooctrain.sched.planners.capuchin import Capuchin
from ooctrain.sched.planners.checkmate import Checkmate, CheckmateLp
from ooctrain.sched.planners.chen import ChenSqrt
from ooctrain.sched.planners.combined import Combined
from ooctrain.sched.planners.dtr import Dtr
from ooctrain.sched.planners.dynprog import DynProg
from ooctrain.sched.planners.hmms import Hmms
from ooctrain.sched.planners.keep_all import KeepAll
from ooctrain.sched.planners.lms import LmsGrid
from ooctrain.sched.planners.lru import Lru
from ooctrain.sched.planners.naive import Naive
from ooctrain.sched.planners.pofo import Pofo
from ooctrain.sched.planners.portfolio import NEAR, Portfolio, Turn
from ooctrain.sched.planners.prefix import Prefix
from ooctrain.sched.planners.revolve import Revolve
from ooctrain.sched.planners.rotor import Rotor
from ooctrain.sched.planners.superneurons import SuperNeurons
from ooctrain.sched.planners.tflms_hybrid import TflmsHybrid
from ooctrain.sched.planners.vdnn import Vdnn
from ooctrain.sched.planners.window import SlidingWindow, WindowCyclic
from ooctrain.sched.planning.host_gaps import is_short_of_host, without_host
from ooctrain.sched.planning.planner import Planner, check_evaluations
from ooctrain.sched.planning.question import Question
from ooctrain.sched.schedule import Granule, Plan

#: Planners that move parts of variables plan in multiples of this, the chunk of
#: `alloc/virtual.py`, so that a plan made to the byte can be executed too.
CHUNK_BYTES = 64 << 10
#: Share of a time limit that the planners before the search leave to it.
SEARCH_SHARE = 0.25
#: Where chunks waste more than this share of the budget, planners that move parts of variables
#: also plan to the byte.
WASTE = 0.01
#: A list that is further than this from what no list beats is compared with those of a rewritten
#: step, also where a list of the step as it is might be as good.
FAR = 1.1
#: In shorter steps (calls) all planners run; in long ones only those that are often best.
SHORT_STEP, LONG_STEP = 30, 3000
#: In steps of at most these calls planners that take half a second run even near the bound.
MOST_CALLS_QUICK = 1000
#: Steps of more calls are searched once more as if the host had no room.
TWICE_SEARCHED = 100

#: Planners that rewrite the step first, which this floor does not know, given the best plan so far
#: (None: there is none, or no good one).
Others = Callable[[Question, Plan | None], Sequence[Planner]]


def no_other_planners(question: Question, best: Plan | None) -> Sequence[Planner]:
    """Default: no planners that rewrite the step."""
    return ()


class Auto:
    """The plan of the least cost of several planners, which run in stages.

    Cost: that of all these planners together.

    Args:
        others: planners that rewrite the step, handed in by `execution/planners.py`.
        evaluations: number that `combined` may use; None: the question's, or its own.
    """

    name = "auto"

    def __init__(self, others: Others = no_other_planners, evaluations: int | None = None) -> None:
        check_evaluations(self.name, evaluations)
        self._others, self.evaluations = others, evaluations

    def plan(self, question: Question) -> Plan:
        """See `Planner`. The minimum is the least of all that ran; a time limit ends it."""
        if self.evaluations is not None:
            effort = replace(question.effort, evaluations=self.evaluations)
            question = replace(question, effort=effort)
        race = Race(question, rewriters=self._others)
        if race.fits:
            race.run_stages(IN_CORE)
        elif question.effort.at_once:
            race.run_stages(AT_ONCE)
        else:
            race.deadline = question.effort.deadline.keeping(SEARCH_SHARE)
            race.run_stages(QUICK)
            race.deadline = question.effort.deadline
            race.run_stages(THOROUGH)
        found = race.outcome(self.name)
        return replace(found, notes={**found.notes, "chosen": race.chosen})


@dataclass
class Race(Portfolio):
    """A portfolio that runs in stages, and what their conditions look at.

    Attributes:
        rewriters: as `others` of `Auto`.
        fits: whether the step fits as it is, without moving anything.
        rewriting: planners of `rewriters` that were run for the best plan.
    """

    rewriters: Others = no_other_planners
    fits: bool = field(init=False)
    rewriting: Sequence[Planner] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        self.fits = self.run(Turn(KeepAll())) is not None

    def run_stages(self, stages: Iterable[AutoStage]) -> None:
        """Runs the turns of the stages whose conditions hold."""
        for stage in stages:
            for turn in stage.turns(self) if stage.when(self) else ():
                if stage.until_near and self.near:
                    break
                self.run(turn)

    @property
    def calls(self) -> int:
        """Number of calls of the step."""
        return len(self.question.trace.calls)

    @cached_property
    def near_us(self) -> float:
        """The cost up to which a plan is near."""
        question = self.question
        bound = lower_bound(question.trace, question.budget_bytes, question.machine)
        return NEAR * bound.makespan_us

    @property
    def found(self) -> bool:
        """Whether there is a plan."""
        return self.best is not None

    @property
    def near(self) -> bool:
        """Whether the best plan is near the bound."""
        return self.best_us <= self.near_us

    @property
    def worth_more(self) -> bool:
        """Whether it is not, and there is time."""
        return not self.near and not self.is_over()

    @property
    def far(self) -> bool:
        """Whether it is so far away that a rewritten step is worth its planning."""
        return self.best_us > FAR / NEAR * self.near_us

    @cached_property
    def chunks(self) -> Question | None:
        """The question in whole chunks; None where variables move as a whole anyway."""
        granule = self.question.granule
        return replace(self.question, granule=in_chunks(granule)) if granule.ranges else None

    @cached_property
    def forms(self) -> Sequence[str]:
        """Names of the forms to search, "" for the step as it is: where evaluations are counted,
        the one that promises most.
        """
        if self.question.effort.evaluations is None or not self.question.forms:
            return ("", *self.question.forms)
        try:
            with failing_as("planner 'combined'"):
                return [Combined().by_promise(self.question)[0].form]
        except PartFailed as failure:
            self.failures.append(failure)
            return ("",)

    @property
    def best_form(self) -> str:
        """The form of the best plan, if it is one of those that were searched."""
        found = () if self.best is None else self.best.rewrites
        return next((form for form in self.forms if found == (form,)), self.forms[0])

    def others(self, best: Plan | None) -> Sequence[Planner]:
        """Planners that rewrite the step; none where choosing them fails."""
        try:
            with failing_as("choosing other planners"):
                return self.rewriters(self.question, best)
        except PartFailed as failure:
            self.failures.append(failure)
            return ()


class AutoStage(NamedTuple):
    """A row of a table.

    Args:
        why: what its planners gain there.
        turns: what runs, in this order.
        when: condition, looked at before the first of them.
        until_near: whether the rest is left out once a plan is near.
    """

    why: str
    turns: Callable[[Race], Iterable[Turn]]
    when: Callable[[Race], bool] = lambda race: True
    until_near: bool = False


def _run(*planners: Planner) -> Callable[[Race], Iterator[Turn]]:
    """Planners on the step as it is."""

    def turns(race: Race) -> Iterator[Turn]:
        for planner in planners:
            moves_parts = isinstance(planner, Belady | Combined)
            yield Turn(planner, race.chunks if moves_parts else None)

    return turns


def _inputs_earlier(race: Race) -> Iterator[Turn]:
    yield Turn(Belady(), gain=NEAR)
    yield Turn(Prefix(), gain=NEAR)
    if race.calls <= SHORT_STEP:
        yield Turn(Combined(), gain=NEAR)


def _rewriting(race: Race) -> Iterator[Turn]:
    race.rewriting = race.others(race.best)
    yield from map(Turn, race.rewriting)


def _searches(race: Race) -> Iterator[Turn]:
    question, granule = race.question, race.question.granule
    granules = [in_chunks(granule) if granule.ranges else granule]
    if granule.ranges and race.best and race.best_us > race.best.makespan_us:
        # What a claim leaves out is the cost of moving parts of variables: mapping.
        granules.insert(0, replace(granule, ranges=False))
    for form in race.forms:
        for which in granules:
            effort = question.effort.share(1 / len(granules))
            asked = None if which == granule else replace(question, granule=which, effort=effort)
            yield Turn(Combined(), asked, form)


def _in_bytes(race: Race) -> Iterator[Turn]:
    question, form = race.question, race.best_form
    alone = without_host(question)
    if race.calls > TWICE_SEARCHED and alone != question:
        yield Turn(Combined(), alone, form, gain=NEAR)
    if wasted(question):
        yield Turn(Combined(), form=form, gain=NEAR)


def _rest(race: Race) -> Iterator[Turn]:
    planners: list[Planner] = []
    if race.calls < LONG_STEP:
        planners += [Rotor(), Pofo(), BnRecompute(), TflmsHybrid(), Capuchin(), LmsGrid()]
    if race.calls <= SHORT_STEP:
        planners += [
            Lru(), ChenSqrt(), Revolve(), DynProg(), Vdnn(), Hmms(), Prefix(), WindowCyclic(),
            CheckmateLp(), Checkmate(),
        ]  # fmt: skip
    return (Turn(planner, gain=NEAR) for planner in planners)


def _at_once(race: Race) -> Iterator[Turn]:
    again = (SuperNeurons(), Dtr(), Rotor())
    planners = again if is_short_of_host(race.question) else (SlidingWindow(), Naive())
    for form in ("", *race.question.forms):
        for planner in planners:
            yield Turn(planner, form=form)


def _other_forms(race: Race) -> Iterator[Turn]:
    for form in race.question.forms:
        if race.best is None:
            yield Turn(SlidingWindow(), form=form)


def _rewriting_all_the_same(race: Race) -> Iterator[Turn]:
    return (Turn(planner, gain=NEAR) for planner in race.others(None))


#: What `auto` is, after `keep-all`: where the step fits; where it does not, and any plan will do,
#: the first one; else what is quick, which leaves a share of the time; and the rest. Measured:
#: docs/planners.md; for windows over ResNet-18, ResNet-50 and VGG-11, two links and five budgets.
IN_CORE: tuple[AutoStage, ...] = (
    AutoStage(
        "what moves or is dropped leaves room for inputs, which then come in while calls run",
        _inputs_earlier, until_near=True,
    ),
)  # fmt: skip
AT_ONCE: tuple[AutoStage, ...] = (
    AutoStage(
        "need the least memory: where the host has room those that swap, else those that compute "
        "again", _at_once,
    ),
    AutoStage("bands may be all that fits", _rewriting, when=lambda race: not race.found),
)  # fmt: skip
QUICK: tuple[AutoStage, ...] = (
    AutoStage("gains most, and time may run out", _run(SlidingWindow())),
    AutoStage(
        "compute again, and need less host memory", _run(Dtr(), SuperNeurons()),
        when=lambda race: not race.near,
    ),
    AutoStage("moves the fewest bytes", _run(Belady())),
    AutoStage(
        "take less than a second, and gain up to 3 %", _run(Dtr(), Prefix()),
        when=lambda race: race.near and race.calls <= MOST_CALLS_QUICK,
    ),
    AutoStage(
        "bands, where what no list beats is longer than the calls", _rewriting,
        when=lambda race: race.found,
    ),
)  # fmt: skip
THOROUGH: tuple[AutoStage, ...] = (
    AutoStage(
        "offloading and recomputation together, over the step's forms", _searches,
        when=lambda race: not race.near, until_near=True,
    ),
    AutoStage(
        "the default window loses up to 10 % to the best of twelve; with these three, nothing",
        _run(
            SlidingWindow(size=2, persistent="device"), SlidingWindow(size=1, persistent="host"),
            SlidingWindow(size=0.75, persistent="host"), Naive(),
        ),
    ),
    AutoStage(
        "lists without copies; what chunks waste", _in_bytes,
        when=lambda race: race.worth_more, until_near=True,
    ),
    AutoStage(
        "win on some networks, or on short steps alone", _rest,
        when=lambda race: race.worth_more, until_near=True,
    ),
    AutoStage("another form may be all that fits", _other_forms, when=lambda race: not race.found),
    AutoStage(
        "bands, where all else is 10 % away", _rewriting_all_the_same,
        when=lambda race: not race.rewriting and race.far,
    ),
)  # fmt: skip


def in_chunks(granule: Granule) -> Granule:
    """A granule of whole chunks."""
    return replace(granule, size_bytes=granule.granted(CHUNK_BYTES))


def wasted(question: Question) -> bool:
    """Whether chunks, in place of the question's granule, take a good deal of the budget."""
    granule = question.granule
    if not granule.ranges:
        return False
    whole = trace_peak_bytes(question.trace, in_chunks(granule)) - question.peak_bytes
    return whole > WASTE * question.budget_bytes
