"""Planted bugs of the memory budget: the laws of its division and of the count kill each."""

from __future__ import annotations

from typing import Any

import pytest
from strangers import test_least_budget_does as refusal_laws
from support.quick import quick
from unit import test_division as division_laws
from unit import test_evaluate_in_parts as parts_laws
from unit import test_least_memory as least_laws
from unit import test_mapping as mapping_laws
from unit import test_moving_values as moving_laws
from unit import test_prepare as prepare_laws
from unit import test_process_memory as count_laws
from unit import test_promise as promise_laws
from zoo.planting import plant, plant_everywhere, with_bug

from ooctrain.devices.cpu.host_vm import why_no_virtual_memory
from ooctrain.devices.cpu.process_memory import MemoryWatch, ProcessMemory, held
from ooctrain.errors import DoesNotFit
from ooctrain.execution import evaluation, fit, planners, residence, saved_state, sessions
from ooctrain.execution.evaluation import InParts
from ooctrain.execution.executor import BetweenSteps
from ooctrain.execution.promise import Promise
from ooctrain.execution.seen import Seen
from ooctrain.execution.step_cache import StepCache
from ooctrain.sched.planning import planner

fills_at_most = division_laws.test_the_parts_of_a_promise_fill_the_memory_at_most
DIVISION_BUGS = {
    "the slab is not counted where all fits": (
        "in_memory",
        "self.in_core.size_bytes <= memory_bytes",
        "self.in_core.budget_bytes + self.parts.fixed_bytes <= memory_bytes",
    ),
    "an arena as if there were no slab": (
        "within",
        "if over_host <= 0 and over <= 0:",
        "if over_host <= 0 and over <= slab_bytes:",
    ),
}
PARTS_FORGOTTEN = {
    "batches are not counted": ("fixed_bytes", "self.batch_bytes + ", ""),
    "lists are not counted": ("fixed_bytes", "self.list_bytes + ", ""),
    "stacks are not counted": ("fixed_bytes", " + self.stacks_bytes", ""),
    "the slab is no part of the promise": ("promised_bytes", " + self.slab_bytes", ""),
}


def plant_property(
    patch: pytest.MonkeyPatch, owner: type, name: str, piece: str, wrong: str
) -> None:
    """As `plant`, of a function that is read as an attribute."""
    getter: Any = vars(owner)[name].fget
    bare = with_bug(getter, piece, wrong)
    patch.setattr(owner, name, bare if isinstance(bare, property) else property(bare))


@pytest.mark.parametrize("bug", quick([*DIVISION_BUGS], 0))
def test_a_division_that_exceeds_the_promise_is_seen(monkeypatch, bug):
    plant(monkeypatch, fit.Fit, *DIVISION_BUGS[bug])
    if "within" in DIVISION_BUGS[bug]:
        plant(monkeypatch, fit.Fit, "at", "Room(left - slab,", "Room(left,")
    with pytest.raises(AssertionError):
        fills_at_most()


one_search = least_laws.test_one_search_goes_up_or_down_and_says_only_what_was_tried
SEARCH_BUGS = {
    "what does is forgotten": (
        lambda: one_search(100, 0),
        (fit, "halved", "yes = found", "yes = size(yes)"),
    ),
    "it goes on from what does": (
        lambda: one_search(0, 100),
        (fit, "halved", "no = middle", "no = size(yes)"),
    ),
    "what a refusal names is not tried": (
        lambda: prepare_laws.test_a_least_budget_is_in_whole_pieces_and_does(4096),
        (fit.Fit, "_is_known_to_do", "return self.exact and", "return True or"),
    ),
}


@pytest.mark.parametrize("bug", SEARCH_BUGS)
def test_a_search_that_says_what_it_has_not_tried_is_seen(monkeypatch, bug):
    law, where = SEARCH_BUGS[bug]
    plant(monkeypatch, *where)
    with pytest.raises((AssertionError, DoesNotFit)):
        law()


#: A question of which `refusal_laws` finds that the least is named.
LEAST_SEED = 16


def costs_where_nothing_can_be_placed() -> None:
    unet = mapping_laws.unet.__wrapped__()
    mapping_laws.test_the_cost_of_a_plan_counts_what_it_maps(unet, "best-fit", 1e-2, False)


ASKED_BUGS = {
    "bands though the bits must stay": (
        lambda: least_laws.test_bands_only_where_their_bits_will_do(True),
        plant, (planners, "tilings", "question.same_bits", "False"),
    ),
    "a planner that compares is not seen": (
        costs_where_nothing_can_be_placed,
        plant, (fit.LimitSearch, "best", "if self._compares:", "if False:"),
    ),
    "a refusal names a byte too many": (
        lambda: refusal_laws.check(LEAST_SEED, allocators=False),
        plant_everywhere,
        (planner, "infeasible", "minimum_bytes=minimum_bytes", "minimum_bytes=minimum_bytes + 1"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("bug", ASKED_BUGS)
def test_an_answer_to_another_question_is_seen(monkeypatch, bug):
    law, how, where = ASKED_BUGS[bug]
    law()
    how(monkeypatch, *where)
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        law()


@pytest.mark.parametrize("bug", quick([*PARTS_FORGOTTEN], 0))
def test_a_part_that_is_forgotten_is_seen(monkeypatch, bug):
    plant_property(monkeypatch, Promise, *PARTS_FORGOTTEN[bug])
    with pytest.raises(AssertionError):
        fills_at_most()


@pytest.mark.skipif(held() is None, reason="no smaps_rollup here")
def test_pages_of_files_taken_for_free_memory_are_seen(monkeypatch, tmp_path):
    plant_property(monkeypatch, ProcessMemory, "counted_bytes", " + self.files", "")
    with pytest.raises(AssertionError):
        count_laws.mapped_file_is_counted(tmp_path)


@pytest.mark.skipif(bool(why_no_virtual_memory()) or held() is None, reason="no memfd here")
def test_an_arena_that_is_counted_only_where_it_is_mapped_is_seen(monkeypatch):
    plant_property(
        monkeypatch, ProcessMemory, "counted_bytes", "max(self.shared, self.memfd)", "self.shared"
    )
    with pytest.raises(AssertionError):
        count_laws.arena_is_counted_once()


@pytest.mark.skipif(held() is None, reason="no smaps_rollup here")
def test_a_watch_that_forgets_is_seen(monkeypatch):
    plant(
        monkeypatch,
        MemoryWatch,
        "look",
        "max(self.most_bytes, found.counted_bytes)",
        "found.counted_bytes",
    )
    with pytest.raises(AssertionError):
        count_laws.most_is_remembered()


MOVED_TWICE = {
    "the arena takes all of its memory before values leave the host": (
        sessions,
        "open_session",
        "slab, values is not None,",
        "slab, True,",
    ),
    "what has come home is still in the arena": (
        BetweenSteps,
        "forget",
        "self.device.discard(address, hi - lo)",
        "pass",
    ),
}


@moving_laws.needs_memfd
@pytest.mark.parametrize("bug", MOVED_TWICE)
def test_values_that_are_there_twice_while_they_move_are_seen(monkeypatch, bug):
    owner, name, piece, wrong = MOVED_TWICE[bug]
    plant(monkeypatch, owner, name, piece, wrong)
    if owner is sessions:
        monkeypatch.setattr(residence, "open_session", sessions.open_session)
    with pytest.raises(AssertionError):
        moving_laws.promise_holds_whenever_a_value_moves(monkeypatch)


@pytest.mark.slow
@moving_laws.needs_memfd
def test_a_step_that_is_planned_beside_the_arena_is_seen(monkeypatch):
    plant(monkeypatch, StepCache, "_promised", "self._make_room()", "pass")
    with pytest.raises(AssertionError):
        moving_laws.plans_where_no_arena_is(monkeypatch)


left_is_promised = promise_laws.test_what_planning_leaves_is_in_the_promise_or_there_is_another_plan
known_later = promise_laws.test_a_step_whose_promise_knows_too_little_of_later_plans_is_new
bands_last = parts_laws.test_bands_are_tried_where_no_part_fits_without
LEFT_BEHIND = {
    "what planning has left is not measured": (
        left_is_promised,
        StepCache,
        "_measured",
        "self._left_bytes + held_here() - before",
        "0",
    ),
    "what persists is known from the first step": (
        promise_laws.test_slots_of_another_optimizer_are_counted,
        StepCache,
        "_promised",
        "values_bytes=persisting, ",
        "",
    ),
    "what persists is no part of the key": (
        promise_laws.test_slots_of_another_optimizer_are_counted,
        Seen,
        "key",
        "persisting = values_bytes(named_tensors(now.model, now.optimizer).values())",
        "pass",
    ),
    "the step is not planned again": (
        left_is_promised,
        StepCache,
        "_promised",
        "if self._is_kept(found):",
        "if True:",
    ),
    "a step is kept whose promise is too small by now": (
        known_later,
        StepCache,
        "_measured",
        "if self._is_kept(step)}",
        "}",
    ),
    "a refusal knows nothing of what looking for the least has left": (
        promise_laws.test_a_refusal_names_a_memory_with_room_for_what_planning_leaves,
        StepCache,
        "_promised",
        "if needed_bytes <= expected_lists_bytes(trace, own):",
        "if True:",
    ),
    "a refusal keeps the frames of planning": (
        promise_laws.test_a_plan_that_was_refused_leaves_memory_too,
        StepCache,
        "add",
        "copy.copy(refusal)",
        "refusal",
    ),
    "bands before parts": (
        lambda _: bands_last(True, parts_laws.BANDS_LAST),
        InParts,
        "of",
        "most, bands = ",
        "bands = True; most, _ = ",
    ),
}


ADDS_UP = parts_laws.test_a_loss_that_parts_do_not_add_up_to_is_refused
PARTS_BUGS = {
    "any loss that has a known term": (
        lambda: ADDS_UP("a product of terms"),
        evaluation,
        "summed_terms",
        "case Scale() | Reshape() | Sum():",
        "case Scale() | Reshape() | Sum() | Arithmetic():",
    ),
    "a constant counts once for each part": (
        lambda: ADDS_UP("a constant beside a sum"),
        evaluation,
        "summed_terms",
        "return None not in weights",
        "return True",
    ),
    "what goes into a term is not looked at": (
        lambda: ADDS_UP("a term that mixes samples"),
        InParts,
        "_apart",
        "*(v for term in terms for v in term.ins[:2])",
        "",
    ),
}


@pytest.mark.parametrize("bug", quick([*PARTS_BUGS], 0))
def test_parts_that_are_no_parts_of_the_whole_are_seen(monkeypatch, bug):
    law, *where = PARTS_BUGS[bug]
    (plant if where[0] is InParts else plant_everywhere)(monkeypatch, *where)
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        law()


@pytest.mark.parametrize("bug", quick([*LEFT_BEHIND], 2))
def test_memory_that_planning_leaves_and_nobody_counts_is_seen(monkeypatch, bug):
    law, *where = LEFT_BEHIND[bug]
    plant(monkeypatch, *where)
    with pytest.raises(AssertionError):
        law(monkeypatch)


def test_a_checkpoint_that_gathers_all_values_is_seen(monkeypatch, tmp_path):
    plant(monkeypatch, saved_state, "save", "_Value(each)", "np.array(each.storage.read())")
    with moving_laws.trainer_of() as trainer:
        trainer.step(moving_laws.X, moving_laws.Y)
        with pytest.raises(AssertionError):
            moving_laws.moves_one_by_one(trainer, trainer.save, str(tmp_path / "kept.safetensors"))
