"""Nobody reaches a part of one run through another, sees payloads without permission, or writes what a form does not offer."""

import json
import uuid
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from approvals.models import Approval, ApprovalVersion
from runs import codec
from runs.models import Attempt, Operation, Run
from runs.states import Status
from tests import factories
from tests.security.world import PLACES, World, dump, rows, world

pytestmark = pytest.mark.django_db

CANARY = "canary-9f31"


# --- parts of one run through another ------------------------------------------------------------------------------------


def test_no_part_of_one_run_is_reached_through_the_address_of_another(
    console: Client, everything: World
) -> None:
    parts = {"operation_id", "visit", "number", "row_id", "attempt_id", "message_id", "signal_id", "seq"}
    of_runs = [
        name
        for name, place in PLACES.items()
        if "run_id" in place.parameters and parts & set(place.parameters)
    ]
    assert len(of_runs) >= 4
    # The only part that the other run does not have as well is the operation; so take the other run's attempts away.
    bare = factories.run()
    for name in of_runs:
        assert console.get(everything.url(name)).status_code == 200, name
        if name == "audit:event":
            continue  # each run has a first event
        for run_id in (bare.pk, uuid.uuid4()):
            assert console.get(everything.url(name, run_id=run_id)).status_code == 404, name
            assert console.post(everything.url(name, run_id=run_id), {}).status_code in (404, 405), name


def test_an_answer_for_an_operation_of_another_run_changes_nothing(
    console: Client, everything: World
) -> None:
    url = everything.url("runs:answer_doubt", run_id=everything.run.pk)
    form = {
        "answer": "yes",
        "reference": "R1",
        "reason": "seen",
        "seen_version": everything.doubt.run.event_seq,
    }
    before = rows("runs_operation")
    assert console.post(url, form).status_code == 404
    assert rows("runs_operation") == before


def test_a_version_of_an_approval_is_not_reached_through_another(console: Client, everything: World) -> None:
    other = factories.approval()
    ApprovalVersion.objects.create(
        approval=everything.approval, version=2, payload={"secret": CANARY}, digest="x", by="somebody"
    )
    assert CANARY in console.get(everything.url("approvals:version", number=2)).content.decode()
    assert console.get(everything.url("approvals:version", approval_id=other.pk, number=2)).status_code == 404


def test_a_digest_of_one_request_does_not_decide_on_another(console: Client) -> None:
    mine, other = factories.approval(), factories.approval(arguments={"order": "7", "amount": "9.00"})
    form = {"version": 1, "digest": other.digest, "verdict": "approve", "reason": ""}
    assert console.post(f"/approvals/{mine.pk}/decide/", form).status_code == 409
    mine.refresh_from_db()
    assert mine.state == Approval.State.OPEN


# --- what a form does not offer ------------------------------------------------------------------------------------------


def columns() -> set[str]:
    """Names of all columns that somebody might hope to write through a form."""
    models = (Run, Attempt, Operation, Approval, User)
    return {field.attname for model in models for field in model._meta.concrete_fields} | {
        "is_superuser",
        "is_staff",
        "groups",
        "user_permissions",
        "actor",
        "source",
        "run",
        "input-subject",
        "input-tenant",
        "approval",
        "voter_id",
        "happened",
        "result",
    }


def with_extras(form: dict[str, Any], extra: str) -> dict[str, Any]:
    return dict.fromkeys(columns(), extra) | {"input-extra": extra, "payload-extra": extra} | form


@pytest.mark.parametrize("extra", [CANARY, "31337"])
def test_fields_that_a_form_does_not_offer_are_written_nowhere(
    extra: str, console: Client, mara: User
) -> None:
    made = world()
    reason = {"reason": "because"}

    def seen(run: Run) -> dict[str, Any]:
        run.refresh_from_db()
        return {"seen_version": run.seen_version, **reason}

    mine = factories.approval()
    forms: list[tuple[str, dict[str, Any]]] = [
        (
            "/runs/start/parcel/",
            {"input-order": "7", "input-amount": "3.00", "subject": "s", "start_key": "k"},
        ),
        (made.url("runs:retry"), seen(made.failed)),
        (
            made.url("runs:signal"),
            {"name": "paid", "payload": "{}", "external_id": "e1", **seen(made.waiting)},
        ),
        (made.url("runs:force_resume"), seen(made.waiting)),
        (made.url("runs:cancel"), seen(made.waiting)),
        (
            made.url("runs:answer_doubt"),
            {"answer": "no", "looked": "on", "reference": "", **seen(made.doubt.run)},
        ),
        (made.url("runs:declare_gone"), reason),
        (made.url("runs:set_limit"), {"limit": "max_attempts", "value": "4", "seen_revision": 1, **reason}),
        (
            f"/approvals/{mine.pk}/decide/",
            {"version": 1, "digest": mine.digest, "verdict": "approve", "reason": "fine"},
        ),
        (
            "/password/",
            {"old_password": "x", "new_password1": "y", "new_password2": "y"},
        ),
    ]
    accepted = []
    for url, form in forms:
        response = console.post(url, with_extras(form, extra))
        assert response.status_code in (200, 302, 409, 422), url
        accepted += [url] if response.status_code == 302 else []
    assert len(accepted) >= 6, accepted
    assert extra not in dump().replace(str(mara.password), "")
    mara.refresh_from_db()
    assert mara.username == "mara.okafor"


def test_hidden_fields_are_proof_of_nothing(console: Client) -> None:
    """What a page carries along is compared with the database, which alone says what is true."""
    approval = factories.approval()
    form = {"version": 1, "digest": approval.digest, "verdict": "approve", "reason": ""}
    for tampered in ({"version": 2}, {"digest": "0" * 64}, {"digest": "ü" * 64}):
        assert console.post(f"/approvals/{approval.pk}/decide/", form | tampered).status_code == 409
    approval.refresh_from_db()
    assert approval.state == Approval.State.OPEN


# --- data stays data -----------------------------------------------------------------------------------------------------


def test_a_tag_of_the_codec_in_what_a_person_types_stays_data(console: Client) -> None:
    run = factories.run(Status.WAITING)
    forged = {codec.TAG: "datetime", "v": "2026-01-01T00:00:00+00:00"}
    form = {
        "seen_version": run.seen_version,
        "reason": "because",
        "name": "paid",
        "payload": json.dumps(forged),
        "external_id": "e1",
    }
    assert console.post(f"/runs/{run.pk}/signal/", form).status_code == 302
    [signal] = rows("runs_signal")
    assert codec.decode(signal["payload"]) == forged


# --- search --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["%", "_", "order%2", "order_2", "\\", "order\\_2"])
def test_a_wildcard_in_a_search_is_a_character(text: str, console: Client) -> None:
    factories.run(subject="order 2")
    assert "No run matches" in console.get("/runs/", {"q": text}).content.decode()


def test_a_search_finds_a_wildcard_that_is_there(console: Client) -> None:
    run = factories.run(subject="100% of_it")
    assert str(run.pk) in console.get("/runs/", {"q": "100% of_it"}).content.decode()
