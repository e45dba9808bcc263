"""A failed run beside a good one."""

from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from runs.diagnosis import comparison
from runs.models import Attempt, Grant, Run
from runs.models.operation import Kind, OpStatus
from runs.states import Outcome, Status
from tests import factories

pytestmark = pytest.mark.django_db


def visit(
    run: Run, number: int, step: str, outcome: str = Outcome.SUCCEEDED, tries: int = 1, **fields: Any
) -> None:
    for one in range(1, tries + 1):
        Attempt.objects.create(
            run_id=run.pk,
            step_seq=number,
            attempt_no=one,
            epoch=1,
            step=step,
            outcome=outcome,
            started_at=run.created_at,
            ended_at=run.created_at,
            **fields,
        )


def did(run: Run, number: int, name: str, position: str = "1", kind: Kind = Kind.QUERY, **fields: Any) -> Any:
    return factories.operation(
        run, kind, step_seq=number, name=name, position=position, ordinal=int(position), **fields
    )


@pytest.fixture
def good() -> Run:
    run = factories.run(Status.COMPLETED)
    for number, step in enumerate(("plan", "look", "charge"), 1):
        visit(run, number, step)
    did(run, 2, "get_order", result={"id": "1041"})
    did(run, 3, "pay", kind=Kind.EFFECT, result={"receipt": "r-1"})
    return run


@pytest.fixture
def bad() -> Run:
    run = factories.run(Status.FAILED, step_seq=3)
    visit(run, 1, "plan")
    visit(run, 2, "look", tries=2)
    did(run, 2, "get_order", result={"id": "1042"})
    return run


def sentence(bad: Run, good: Run) -> str:
    return comparison.compare(bad, good).sentence


def test_an_operation_with_another_answer_is_where_they_part(good, bad):
    visit(bad, 3, "charge", Outcome.FAILED, error_type="ToolFailed", error="card refused")
    did(
        bad,
        3,
        "pay",
        kind=Kind.EFFECT,
        status=OpStatus.FAILED,
        error_type="Refused",
        error="card 4711 refused",
    )
    made = comparison.compare(bad, good)
    assert made.sentence == (
        "Same until visit 3, step charge: there the good run got an answer from effect pay;"
        " this one got Refused from effect pay."
    )
    assert made.parted is not None and made.parted.error == "card 4711 refused"
    assert "4711" not in made.sentence


def test_values_that_differ_are_counted_and_part_nothing(good, bad):
    visit(bad, 3, "charge", Outcome.FAILED, error_type="KeyError")
    did(bad, 3, "pay", kind=Kind.EFFECT, result={"receipt": "r-2"})
    made = comparison.compare(bad, good)
    assert [(other.visit, other.name, other.asked) for other in made.others] == [
        (2, "query get_order", False),
        (3, "effect pay", False),
    ]
    assert made.sentence.endswith(
        "there the good run ended it as succeeded; this one ended it as failed with KeyError."
    )


def test_a_step_that_the_other_did_not_take(good, bad):
    visit(bad, 3, "refund")
    assert sentence(bad, good).endswith(
        "step refund: there the good run went to step charge; this one to step refund."
    )


def test_an_operation_that_one_of_them_did_not_begin(good, bad):
    visit(bad, 3, "charge", Outcome.CRASHED, tries=3, error_type="Crashed")
    assert sentence(bad, good).endswith(
        "there the good run went on with effect pay; this one ended it as crashed at try 3 with Crashed."
    )
    did(bad, 3, "look_up")
    assert sentence(bad, good).endswith("there the good run began effect pay; this one began query look_up.")


def test_a_run_that_went_on_longer_or_not_so_far(good, bad):
    assert sentence(bad, good).endswith(
        "there the good run went on with step charge; this one stands failed."
    )
    assert sentence(good, bad).endswith("there the good run had failed; this one went on with step charge.")


def test_they_part_at_once():
    one, other = factories.run(Status.FAILED), factories.run(Status.COMPLETED)
    visit(one, 1, "pack", Outcome.FAILED, error_type="KeyError")
    visit(other, 1, "pack")
    assert sentence(one, other).startswith(
        "Different from visit 1 on, step pack: there the good run ended it as succeeded;"
    )


def test_two_that_did_the_same(good):
    other = factories.run(Status.COMPLETED)
    for number, step in enumerate(("plan", "look", "charge"), 1):
        visit(other, number, step)
    did(other, 2, "get_order")
    did(other, 3, "pay", kind=Kind.EFFECT)
    assert sentence(other, good) == "Both did the same in all 3 visits."


def test_what_was_tried_again_or_forgotten_does_not_count(good, bad):
    did(bad, 2, "get_weather", position="9", forgotten=True)
    assert comparison.compare(bad, good).same == 2


def test_long_runs_are_read_in_windows_and_up_to_a_limit(monkeypatch):
    monkeypatch.setattr(comparison, "WINDOW", 5)
    monkeypatch.setattr(comparison, "MOST", 15)
    one, other = factories.run(Status.FAILED), factories.run(Status.COMPLETED)
    for run in (one, other):
        for number in range(1, 21):
            visit(run, number, "pack")
    with CaptureQueriesContext(connection) as asked:
        made = comparison.compare(one, other)
    assert made.sentence == "The same in the first 15 visits, which is as far as they are compared."
    assert len(asked) == 2 * 3
    assert len(made.rows) == comparison.BEFORE + 1


def test_the_last_good_run_is_of_the_same_version_if_there_is_one():
    bad = factories.failed(version=2)
    person = factories.user("", "support")
    assert comparison.last_good(person, bad) is None
    older = factories.run(Status.COMPLETED, version=2)
    newer = factories.run(Status.COMPLETED, version=3)
    factories.run(Status.COMPLETED, workflow="letter", version=2)
    assert comparison.last_good(person, bad) == older
    older.delete()
    assert comparison.last_good(person, bad) == newer


def test_a_run_that_somebody_may_not_see_is_not_compared_with():
    bad, person = factories.failed(subject="refund 1"), factories.user()
    Grant.objects.create(user=person, capability="view", scope="subject", name="refund ", granted_by="x")
    factories.run(Status.COMPLETED, subject="order 1")
    assert comparison.last_good(person, bad) is None
    theirs = factories.run(Status.COMPLETED, subject="refund 2")
    assert comparison.last_good(person, bad) == theirs
