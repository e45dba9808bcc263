"""Asking a worker to drain, to recycle, or to take runs again."""

import uuid

import pytest

from runs.errors import Invalid, NotAllowed, NotFound, StateMismatch
from runs.models import AuditEvent, Worker
from runs.services import ask_worker, preview_ask_worker
from runs.states import Status
from tests import factories

pytestmark = pytest.mark.django_db


def ask(worker: Worker, what: str, by: object = None, reason: str = "new release") -> str:
    said = ask_worker(by or factories.admin(), worker.pk, what, reason=reason)  # type: ignore[arg-type]
    worker.refresh_from_db()
    return said


def test_an_admin_drains_a_worker_lets_it_work_again_and_the_audit_tells():
    worker = factories.worker()
    assert "takes no new runs" in ask(worker, "drain", factories.admin("ada"))
    assert (worker.asked, worker.asked_by) == ("drain", "ada")
    ask(worker, "resume")
    assert worker.asked == ""
    kinds = (
        AuditEvent.objects.filter(target=f"worker {worker.pk}")
        .order_by("id")
        .values_list("kind", "old", "new")
    )
    assert list(kinds) == [
        ("worker_drain", {"asked": ""}, {"asked": "drain"}),
        ("worker_resume", {"asked": "drain"}, {"asked": ""}),
    ]


def test_asked_twice_it_changes_nothing():
    worker = factories.worker()
    ask(worker, "drain")
    assert "had been asked already" in ask(worker, "drain")
    assert AuditEvent.objects.filter(target=f"worker {worker.pk}").count() == 1


def test_a_recycled_worker_cannot_be_called_back():
    worker = factories.worker()
    ask(worker, "recycle", factories.admin("ada"))
    with pytest.raises(StateMismatch, match="as ada asked; that cannot be taken back"):
        ask(worker, "resume")


@pytest.mark.parametrize(
    ("what", "reason", "error"),
    [("drain", " ", Invalid), ("stop", "why not", Invalid), ("resume", "go", StateMismatch)],
)
def test_what_makes_no_sense_is_refused(what: str, reason: str, error: type[Exception]):
    with pytest.raises(error):
        ask(factories.worker(), what, reason=reason)


def test_one_that_has_ended_or_never_was_is_not_asked():
    with pytest.raises(StateMismatch, match="has ended"):
        ask(factories.worker(reaped=True, beats=False), "drain")
    with pytest.raises(NotFound):
        ask_worker(factories.admin(), uuid.uuid4(), "drain", reason="x")


def test_only_admins_may():
    worker = factories.worker()
    for by in (factories.operator(), factories.support(), factories.stranger()):
        with pytest.raises(NotAllowed):
            ask(worker, "drain", by)


def test_the_preview_says_what_it_holds():
    worker = factories.worker()
    factories.run(Status.RUNNING, worker_id=worker.pk)
    assert "It has 1 run now" in preview_ask_worker(worker, "drain").sentence
    with pytest.raises(StateMismatch):
        preview_ask_worker(worker, "resume")
