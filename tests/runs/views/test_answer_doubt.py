"""Say whether an effect happened, from its page."""

from datetime import timedelta

import pytest

from runs import clock, services
from runs.models import Event
from runs.models.operation import OpStatus
from runs.states import Status
from tests import factories
from tests.runs.views.people import client_with

pytestmark = pytest.mark.django_db


def url(operation):
    return f"/runs/{operation.run_id}/operations/{operation.pk}/answer/"


def ended(**fields):
    """An effect in doubt whose sender ended long ago."""
    past = clock.now() - timedelta(hours=1)
    worker = factories.worker(reaped=True)
    worker.reaped_at = worker.closed_at = past
    worker.save()
    return factories.doubt(intent_worker_id=worker.pk, call_ended_at=past, **fields)


def test_the_page_shows_what_was_asked_for_and_both_answers(operator):
    html = operator.get(url(ended(request={"order": "1042"}))).content.decode()
    assert "Did book_courier happen?" in html
    assert "1042" in html
    assert "Record as happened" in html and "Send it again" in html
    assert "Provider reference" in html


@pytest.mark.parametrize(("name", "keyed"), [("unknown_here", True), ("print_label", False)])
def test_it_says_to_look_for_a_key_only_where_the_tool_tells_the_provider_one(operator, name, keyed):
    doubt = ended(name=name)
    for page in (url(doubt), f"/runs/{doubt.run_id}/"):
        html = operator.get(page).content.decode()
        assert ("Look at the provider for key" in html) == keyed
        assert ("this tool tells it no key" in html) != keyed
    html = operator.get(f"/runs/{doubt.run_id}/operations/{doubt.pk}/").content.decode()
    assert ("what the provider knows it by" in html) == keyed


def test_it_happened_with_a_bare_reference_where_the_tool_makes_a_result_of_it(operator, form):
    doubt = ended()
    sent = form(doubt.run, answer="yes", reference="bk-9", reason="seen in the ledger")
    response = operator.post(url(doubt), sent, follow=True)
    assert "Recorded: it happened." in response.content.decode()
    doubt.refresh_from_db()
    assert (doubt.status, doubt.provider_ref, doubt.result["id"]) == (OpStatus.DONE, "bk-9", "bk-9")
    doubt.run.refresh_from_db()
    assert doubt.run.status == Status.QUEUED


def test_it_happened_with_the_result_that_the_tool_would_have_returned(operator, form):
    doubt = ended(name="print_label")
    missing = operator.post(url(doubt), form(doubt.run, answer="yes"))
    assert missing.status_code == 422
    operator.post(url(doubt), form(doubt.run, answer="yes", **{"result-value": "label 7"}))
    doubt.refresh_from_db()
    assert (doubt.status, doubt.result) == (OpStatus.DONE, "label 7")


def test_it_did_not_happen(operator, form):
    doubt = ended()
    sent = form(doubt.run, answer="no", looked="on", reason="nothing there")
    assert operator.post(url(doubt), sent).status_code == 302
    doubt.refresh_from_db()
    assert (doubt.status, doubt.generation) == (OpStatus.RETRY, 1)


def test_it_did_not_is_not_taken_without_having_looked(operator, form):
    doubt = ended()
    assert operator.post(url(doubt), form(doubt.run, answer="no")).status_code == 422
    doubt.refresh_from_db()
    assert doubt.status == OpStatus.PENDING


def test_while_the_worker_may_still_act_the_form_says_why_not(support, form):
    doubt = factories.doubt()
    html = support.get(url(doubt)).content.decode()
    assert "Not accepted yet." in html
    assert "was not seen to end and may still act" in html
    assert f"/workers/{doubt.intent_worker_id}/gone/" in html
    assert "Send it again" not in html
    refused = support.post(url(doubt), form(doubt.run, answer="no", looked="on"))
    assert refused.status_code == 409
    assert "is not accepted yet" in refused.content.decode()


def test_within_the_settle_time_the_form_says_from_when(support):
    doubt = factories.doubt(intent_worker_id=factories.worker(reaped=True).pk)
    html = support.get(url(doubt)).content.decode()
    assert "its request may still land until" in html.lower()
    assert "This answer is accepted from" in html


def test_only_get_and_post(operator):
    assert operator.put(url(ended())).status_code == 405


def test_a_wrong_role_is_refused_by_direct_post_and_sees_no_button(stranger, form):
    doubt = ended()
    assert stranger.post(url(doubt), form(doubt.run, answer="yes", reference="x")).status_code == 403
    html = client_with("view_run", "view_payload").get(f"/runs/{doubt.run_id}/").content.decode()
    assert "nobody knows whether book_courier happened" in html
    assert url(doubt) not in html


def test_a_stale_page_is_answered_with_the_fresh_view(operator, form):
    doubt = ended()
    sent = form(doubt.run, answer="yes", reference="bk-9")
    services.cancel(factories.support("sam"), doubt.run_id, reason="meanwhile")
    response = operator.post(url(doubt), sent)
    html = response.content.decode()
    assert response.status_code == 409
    assert "Nothing was recorded" in html and 'value="bk-9"' in html
    doubt.refresh_from_db()
    assert doubt.status == OpStatus.PENDING


def test_an_answer_that_somebody_gave_already_is_shown(operator, form):
    doubt = ended()
    sent = form(doubt.run, answer="no", looked="on")
    services.answer_doubt(factories.support("sam"), doubt.pk, happened=True, reference="bk-9", reason="seen")
    response = operator.post(url(doubt), sent)
    html = response.content.decode()
    assert response.status_code == 409
    assert "Record as happened" not in html
    assert Event.objects.filter(run_id=doubt.run_id, kind="doubt_answered").count() == 1


def test_payloads_are_hidden_from_whoever_may_not_see_them():
    html = (
        client_with("view_run", "resolve_doubt")
        .get(url(ended(request={"order": "secret-1042"})))
        .content.decode()
    )
    assert "you may not see what is in this run" in html
    assert "secret-1042" not in html


def test_an_operation_of_another_run_is_not_found(operator):
    doubt = ended()
    other = factories.run()
    assert operator.get(f"/runs/{other.pk}/operations/{doubt.pk}/answer/").status_code == 404
