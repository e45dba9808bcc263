"""What was done for a subject, by all of its runs together."""

import uuid

import pytest
from django.test import Client

from runs.models import Run
from runs.models.operation import Kind, OpStatus
from runs.states import Status
from tests import factories
from tests.runs.views.people import client_with

pytestmark = pytest.mark.django_db


def page(client: Client, subject: str = "order 1042") -> str:
    response = client.get("/runs/subjects/", {"subject": subject})
    assert response.status_code == 200
    return response.content.decode()


def viewer() -> Client:
    return client_with("view_run", "view_payload")


def test_an_effect_that_ran_once_is_proved_with_key_and_reference():
    run = factories.run(Status.COMPLETED)
    effect = factories.operation(run, name="charge", provider_ref="ch_12", request={"amount": "92.00"})
    html = page(viewer())
    assert f"charge ran once: key {effect.provider_key}, reference ch_12" in html
    assert "Nothing is in doubt." in html and "amount 92.00" in html
    assert f'href="/runs/{run.pk}/operations/{effect.pk}/"' in html


def test_two_keys_are_two_effects_and_said_to_be():
    for _ in range(2):
        factories.operation(factories.run(Status.COMPLETED), name="charge")
    assert "charge ran twice, each under a key of its own." in page(viewer())


def test_what_a_fork_took_over_counts_once():
    run = factories.run(Status.FAILED)
    effect = factories.operation(run, name="charge", provider_ref="ch_12")
    fork = factories.run(Status.COMPLETED, subject="other", forked_from=run.pk)
    factories.operation(fork, name="charge", provider_key=effect.provider_key, copied_from=effect.pk)
    html = page(viewer())
    assert "charge ran once" in html and "taken over by" in html


def test_what_a_child_did_counts_though_its_subject_is_another():
    run = factories.run(Status.COMPLETED)
    wait = factories.operation(run, Kind.CHILD, name="payer", children=1)
    child = factories.run(
        Status.COMPLETED, subject="", parent_id=run.pk, parent_operation_id=wait.pk, child_index=0
    )
    factories.operation(child, name="charge")
    assert "charge ran once" in page(viewer())


def test_doubt_comes_first_and_is_counted():
    doubt = factories.doubt(name="charge")
    factories.operation(factories.run(Status.COMPLETED), name="mail")
    html = page(viewer())
    assert f"Nobody knows whether charge ran: key {doubt.provider_key}" in html
    assert html.index("Nobody knows") < html.index("mail ran once")
    assert "1 effect is in doubt." in html


def test_what_was_refused_did_not_run():
    factories.operation(
        factories.run(Status.FAILED), status=OpStatus.FAILED, name="charge", error_type="CardDeclined"
    )
    assert "charge did not run: CardDeclined." in page(viewer())


def test_an_undone_effect_says_by_what():
    run = factories.run(Status.CANCELLED)
    effect = factories.operation(run, name="charge")
    factories.operation(run, name="give_back", compensates=effect.pk)
    assert "It was undone by give_back" in page(viewer())


def test_requests_are_hidden_from_those_who_may_not_see_payloads():
    factories.operation(factories.run(), name="charge", request={"amount": "secret-1"})
    html = page(client_with("view_run"))
    assert "charge ran once" in html and "secret-1" not in html


def test_a_subject_without_runs_and_no_subject_say_so():
    factories.run()
    assert "No run is about it" in page(viewer(), "order 7")
    assert "Ask for a subject" in page(viewer(), "")


def test_it_takes_the_same_queries_however_many_runs(django_assert_max_num_queries):
    for _ in range(30):
        factories.operation(factories.run(Status.COMPLETED), name="charge", provider_key=uuid.uuid4())
    client = viewer()
    with django_assert_max_num_queries(12):
        page(client)
    assert Run.objects.count() == 30
