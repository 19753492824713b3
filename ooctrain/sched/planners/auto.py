"""auto: in-core where it fits, else the best of the quick planners, else a search.

Planning costs milliseconds and a step costs seconds, so `auto` runs several planners and returns
the plan with the smallest simulated makespan. Where that is far from the lower bound for any list,
recomputation may pay. `dtr` and `superneurons` recompute by their own rules. `combined` searches,
up to a number of evaluations, and also over other forms of the step if the caller offers some
(`execution/compose.py` does; planners know no rewrites). No single window is best everywhere: over
ResNet-18, ResNet-50 and VGG-11, two links and five budgets, the default loses up to 10 % against
the best of twelve windows (six sizes, two places for parameters), a window of size 1 up to 15 %;
those tried here lose nothing. Where the best is still far from the bound, the other planners run
too, so that none of them is faster by more than 3 %. Where it is near, those that take less than a
second run all the same. Read next: `poll.py`, which runs them; `registry.py`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

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
from ooctrain.sched.planners.poll import NEAR, Others, Poll, in_chunks
from ooctrain.sched.planners.prefix import Prefix
from ooctrain.sched.planners.revolve import Revolve
from ooctrain.sched.planners.rotor import Rotor
from ooctrain.sched.planners.superneurons import SuperNeurons
from ooctrain.sched.planners.tflms_hybrid import TflmsHybrid
from ooctrain.sched.planners.vdnn import Vdnn
from ooctrain.sched.planners.window import SlidingWindow, WindowCyclic
from ooctrain.sched.planning.effort import check_evaluations
from ooctrain.sched.planning.forms import StepForm, by_promise, forms_of
from ooctrain.sched.planning.host_gaps import without_host
from ooctrain.sched.planning.planner import Planner
from ooctrain.sched.planning.question import Question
from ooctrain.sched.schedule import BYTES, Granule, Plan
from ooctrain.step.machine import Machine
from ooctrain.step.trace import Trace

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


def other_windows() -> tuple[Planner, ...]:
    """What the window's size and the place of parameters can still gain over its default."""
    return (
        SlidingWindow(size=2, persistent="device"),
        SlidingWindow(size=1, persistent="host"),
        SlidingWindow(size=0.75, persistent="host"),
    )


def occasionally_best() -> tuple[Planner, ...]:
    """Planners that win on some networks."""
    return (Rotor(), Pofo(), BnRecompute(), TflmsHybrid(), Capuchin(), LmsGrid())


def best_on_short_steps() -> tuple[Planner, ...]:
    """Planners that win only on steps of few calls."""
    return (
        Lru(), ChenSqrt(), Revolve(), DynProg(), Vdnn(), Hmms(), Prefix(), WindowCyclic(),
        CheckmateLp(), Checkmate(),
    )  # fmt: skip


def makespan_us(plan: Plan) -> float:
    """How long a step takes by the plan's own claim."""
    return plan.makespan_us


def no_other_planners(question: Question, best: Plan | None) -> Sequence[Planner]:
    """Default: no planners that rewrite the step."""
    return ()


class Auto:
    """The fastest plan of several planners, which run in stages.

    A plan is *near* while it takes at most `NEAR` times the bound; with no plan, nothing is near.

    | stage | condition | planners |
    |---|---|---|
    | 1 | always | `keep-all` |
    | 2 | it fits, but is not near | `belady`; `prefix`, `combined` on short steps: inputs earlier |
    | 3 | it does not fit (so for all stages below) | `window` |
    | 4 | not near | `dtr`, `superneurons`, which need less host memory |
    | 5 | always | `belady` |
    | 6 | near, at most `MOST_CALLS_QUICK` calls | `dtr`, `prefix` |
    | 7 | a plan is found | planners that rewrite the step (`others`) |
    | 8 | not near | `combined`, over the step and the forms of it that are offered |
    | 9 | always | other windows, `naive` |
    | 10 | not near | `combined` without host memory; those that win on some networks |
    | 11 | no plan yet | `window` on the offered forms |
    | 12 | far from the bound, no plan of stage 7 | `others`, whatever the best plan |

    With a number of evaluations stage 8 searches only the form that promises most
    (`sched/planning/forms.py`). From stage 10 on a plan has to gain more than `NEAR` to be taken.
    Cost: that of all these planners together.

    Args:
        others: planners that rewrite the step, handed in by `execution/planners.py`.
        evaluations: number that `combined` may use; None: the question's, or its own.
    """

    name = "auto"

    def __init__(self, others: Others = no_other_planners, evaluations: int | None = None) -> None:
        check_evaluations(self.name, evaluations)
        self._others, self._evaluations = others, evaluations
        self._step_us: Callable[[Plan], float] = makespan_us
        self._offered: Mapping[str, Trace] = {}

    def weighing_by(self, step_us: Callable[[Plan], float]) -> Auto:
        """See `WeighingPlanner`. What claims leave out is the cost of moving parts of variables
        (mapping), so planners that move parts are then asked for whole variables too.
        """
        auto = copy.copy(self)
        auto._step_us = step_us
        return auto

    def with_evaluations(self, evaluations: int) -> Auto:
        """See `SearchingPlanner`."""
        auto = copy.copy(self)
        auto._evaluations = evaluations if self._evaluations is None else self._evaluations
        return auto

    def without_rewriting_planners(self) -> Auto:
        """The same without the planners of `others`: no plan rewrites the step."""
        auto = copy.copy(self)
        auto._others = no_other_planners
        return auto

    @property
    def has_rewriting_planners(self) -> bool:
        """Whether planners of `others` run too."""
        return self._others is not no_other_planners

    def offered(self, steps: Mapping[str, Trace]) -> Auto:
        """See `OfferedPlanner`."""
        auto = copy.copy(self)
        auto._offered = steps
        return auto

    def plan(
        self, trace: Trace, budget_bytes: int, machine: Machine, *, granule: Granule = BYTES,
        host_budget_bytes: int | None = None, seed: int = 0, time_limit_s: float | None = None,
    ) -> Plan:  # fmt: skip
        """See `Planner`. The minimum is the least of all that ran; a time limit ends it."""
        question = Question(
            trace, budget_bytes, machine, granule, host_budget_bytes, seed, time_limit_s,
            self._evaluations,
        )  # fmt: skip
        poll = Poll(question, self._step_us)
        poll.ask(KeepAll())
        near_us = NEAR * lower_bound(trace, budget_bytes, machine).makespan_us
        if poll.best is not None and poll.best_us > near_us:
            poll.ask_also(Belady())  # inputs may come in while calls run
            self._make_room_for_inputs(poll, near_us)
        if poll.best is None:
            # The planners that gain most come first, as time may run out.
            poll.ask(SlidingWindow())
            if poll.best_us > near_us:
                poll.ask(Dtr(), SuperNeurons())
            poll.ask(Belady())
            if poll.best_us <= near_us and len(trace.calls) <= MOST_CALLS_QUICK:
                poll.ask(Dtr(), Prefix())
            rewriting = poll.besides(self._others, poll.best) if poll.best is not None else ()
            poll.ask(*rewriting)
            poll.kept_s = 0.0
            as_it_is, *others = forms = forms_of(trace, self._offered)
            form = self._searched(poll, forms, near_us) if poll.best_us > near_us else as_it_is
            poll.ask(*other_windows(), Naive())
            self._ask_the_rest(poll, form, near_us)
            for other in others:
                if poll.best is None:
                    poll.ask(SlidingWindow(), form=other)
            if not rewriting and poll.best_us > FAR / NEAR * near_us and not poll.is_over():
                for planner in poll.besides(self._others, None):
                    poll.ask_also(planner)
        return poll.outcome()

    def _make_room_for_inputs(self, poll: Poll, near_us: float) -> None:
        """Planners that recompute run though all fits: dropped values leave memory for inputs,
        which then come in earlier.
        """
        short = len(poll.question.trace.calls) <= SHORT_STEP
        for planner in (Prefix(), *((Combined(),) if short else ())):
            if poll.best_us > near_us:
                poll.ask_also(planner)

    def _searched(self, poll: Poll, forms: Sequence[StepForm], near_us: float) -> StepForm:
        """Runs `combined` on the step and its other forms; returns the best form."""
        granule, asked = poll.question.granule, forms
        if self._evaluations is not None and len(forms) > 1:
            asked = [by_promise(forms, poll.promise)[0].form]
        for form in asked:
            if poll.best_us > near_us:
                if self._step_us is not makespan_us and granule.ranges:
                    poll.search(form, replace(granule, ranges=False), 0.5)
                    poll.search(form, granule, 0.5)
                else:
                    poll.search(form, granule)
        best = () if poll.best is None else poll.best.rewrites
        return next((form for form in asked if best == (form.rewrite,)), asked[0])

    def _ask_the_rest(self, poll: Poll, form: StepForm, near_us: float) -> None:
        """Runs the remaining planners in turn until a plan is near the bound. A plan at most `NEAR`
        behind stays: a plan in chunks can be executed anywhere."""
        if poll.is_over():
            return
        calls, rest = len(poll.question.trace.calls), list[Planner]()
        alone = without_host(poll.question)
        if calls > TWICE_SEARCHED and alone != poll.question and poll.best_us > near_us:
            poll.ask_also(Combined(), alone, form)
        if wasted(poll.question):
            rest += [Combined()]
        if calls < LONG_STEP:
            rest += occasionally_best()
        if calls <= SHORT_STEP:
            rest += best_on_short_steps()
        for planner in rest:
            if poll.best_us > near_us and not poll.is_over():
                poll.ask_also(planner, form=form if isinstance(planner, Combined) else None)


def wasted(question: Question) -> bool:
    """Whether chunks, in place of the question's granule, take a good deal of the budget."""
    granule, trace = question.granule, question.trace
    if not granule.ranges:
        return False
    whole = trace_peak_bytes(trace, in_chunks(granule)) - trace_peak_bytes(trace, granule)
    return whole > WASTE * question.budget_bytes
