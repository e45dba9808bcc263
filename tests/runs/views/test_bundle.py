"""Exporting a run as a support bundle."""

import json

import pytest
from django.test import Client
from django.urls import reverse

from runs.models import AuditEvent, Event, Grant, Run
from runs.states import Status
from tests import factories
from tests.runs.engine.family import parked, silently_ended
from tests.runs.views.people import client, client_with

pytestmark = pytest.mark.django_db


def export(by: Client, run_id: object):
    return by.post(reverse("runs:bundle", args=[run_id]))


def test_support_gets_a_file_with_everything_that_is_recorded_and_the_audit_says_so():
    approval = factories.approval()
    run = approval.run
    response = export(client("support"), run.pk)
    assert response.headers["Content-Disposition"] == f'attachment; filename="agentops-run-{run.pk}.json"'
    told = json.loads(response.content)
    assert told["run"]["id"] == str(run.pk) and told["run"]["subject"] == run.subject
    assert [one["id"] for one in told["operations"]] == [str(approval.operation_id)]
    assert told["approvals"][0]["title"] == approval.title and told["approval_versions"][0]["version"] == 1
    said = AuditEvent.objects.get(kind="bundle_exported")
    assert said.target == f"run {run.pk}" and said.actor == response.wsgi_request.user.get_username()


def test_the_run_is_not_touched():
    run = factories.run(Status.FAILED)
    before = Event.objects.filter(run_id=run.pk).count()
    assert export(client("support"), run.pk).status_code == 200
    assert Event.objects.filter(run_id=run.pk).count() == before


def test_without_the_permission_to_see_what_is_in_runs_there_is_no_bundle():
    run = factories.run(Status.FAILED)
    assert export(client_with("view_run"), run.pk).status_code == 403
    assert not AuditEvent.objects.filter(kind="bundle_exported").exists()


def test_results_of_child_runs_that_somebody_may_not_see_are_left_out_and_the_bundle_says_so():
    run, wait, made = parked(2)
    for one, result in zip(made, ("mine", "not mine"), strict=True):
        silently_ended(one)
        Run.objects.filter(pk=one.pk).update(result=result, workflow="letter")
    Run.objects.filter(pk=made[0].pk).update(subject="theirs 1")
    person = factories.user()
    for scope, name in (("workflow", run.workflow), ("subject", "theirs")):
        Grant.objects.create(user=person, capability="payloads", scope=scope, name=name, granted_by="ada")
    browser = Client()
    browser.force_login(person)
    told = json.loads(export(browser, run.pk).content)
    first, second = told["children"]
    assert first["result"] == "mine" and first["id"] == str(made[0].pk)
    assert second == {
        "parent_operation_id": str(wait.pk),
        "child_index": 1,
        "left_out": True,
        "hidden": ["result"],
    }
    by = person.get_username()
    assert told["left_out"] == [f"The results of 1 child run, whose content {by} may not see, are left out"]
    whole = json.loads(export(client("support"), run.pk).content)
    assert [one["result"] for one in whole["children"]] == ["mine", "not mine"] and whole["left_out"] == []


def test_a_run_that_is_not_there_is_not_found_and_a_link_exports_nothing():
    support = client("support")
    assert export(support, "01a22ad3-dfa7-759a-a30e-2f22f1b34796").status_code == 404
    run = factories.run(Status.FAILED)
    assert support.get(reverse("runs:bundle", args=[run.pk])).status_code == 405


def test_a_large_bundle_is_streamed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("runs.bundles.bundle.IN_MEMORY", 100)
    response = export(client("support"), factories.run(Status.FAILED).pk)
    assert json.loads(b"".join(response.streaming_content))["about"]["format"] == "agentops bundle"
    response.close()
