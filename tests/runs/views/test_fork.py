"""Fork a run, from its page."""

import pytest

from runs import services
from runs.models import Attempt, Run
from runs.states import Status
from tests import factories

pytestmark = pytest.mark.django_db


@pytest.fixture
def failed():
    run = factories.run(Status.FAILED, step="ship", step_seq=2, attempt_no=1, state={"box": 1})
    for visit, step, outcome in ((1, "pack", "succeeded"), (2, "ship", "failed")):
        Attempt.objects.create(
            run_id=run.pk,
            step_seq=visit,
            attempt_no=1,
            epoch=1,
            step=step,
            outcome=outcome,
            started_at=run.created_at,
            ended_at=run.created_at,
            state_after={"box": 1} if visit == 1 else None,
        )
    return run


def url(run, query=""):
    return f"/runs/{run.pk}/fork/{query}"


def test_the_page_offers_the_visits_and_tells_each_effect_with_reference_and_key(support, failed):
    done = factories.operation(failed, provider_ref="bk_7")
    html = support.get(url(failed)).content.decode()
    assert "2 ship" in html and "1 pack" in html
    assert "bk_7" in html and str(done.provider_key)[:13] in html
    assert "Reused, unless you tick it" in html
    assert f'name="confirm" value="{done.pk}"' in html


def test_it_works_and_leads_to_the_new_run(support, failed, form):
    factories.operation(failed)
    seen = services.preview_fork(failed, 2).digest
    response = support.post(url(failed), form(failed, visit=2, seen_plan=seen, reason="anew"), follow=True)
    made = Run.objects.get(forked_from=failed.pk)
    assert response.redirect_chain == [(f"/runs/{made.pk}/", 302)]
    assert "begins at step ship" in response.content.decode()
    assert support.get(f"/runs/{failed.pk}/").status_code == 200


def test_another_state_is_edited_as_json_and_its_difference_shown_first(support, failed, form):
    page = support.get(url(failed, "?visit=2&edit=state")).content.decode()
    assert "&quot;box&quot;: 1" in page
    looked = support.post(
        url(failed, "?visit=2&edit=state"), form(failed, visit=2, state='{"box": 2}', look="yes", reason="")
    )
    assert looked.status_code == 200 and "What changes" in looked.content.decode()
    assert not Run.objects.filter(forked_from=failed.pk).exists()
    support.post(url(failed, "?visit=2&edit=state"), form(failed, visit=2, state='{"box": 2}'))
    assert Run.objects.get(forked_from=failed.pk).state == {"box": 2}


def test_an_input_that_cannot_be_edited_here_is_said_to_stay(support, failed):
    Run.objects.filter(pk=failed.pk).update(input={"text": "x" * 300_000})
    html = support.get(url(failed)).content.decode()
    assert "The input cannot be edited here: it is 300.0 KB of JSON" in html
    assert "edit=input" not in html and "edit=state" in html


def test_another_input_is_checked_by_its_type(support, failed, form):
    wrong = support.post(url(failed, "?visit=2&edit=input"), form(failed, visit=2, input="{}"))
    assert wrong.status_code == 422 and "order: Field required" in wrong.content.decode()


def test_a_plan_that_changed_is_answered_with_the_fresh_one(support, failed, form):
    sent = form(failed, visit=2, seen_plan=services.preview_fork(failed, 2).digest, reason="typed")
    done = factories.operation(failed)
    response = support.post(url(failed), sent)
    assert response.status_code == 409
    assert str(done.pk) in response.content.decode() and 'value="typed"' in response.content.decode()


def test_what_may_happen_twice_must_be_ticked(support, failed, form):
    doubt = factories.doubt()
    services.kill(factories.admin(), doubt.run_id, reason="stop")
    killed = doubt.run
    refused = support.post(f"/runs/{killed.pk}/fork/", form(killed, visit=1))
    assert refused.status_code == 422 and "confirm each of them" in refused.content.decode()
    assert (
        support.post(f"/runs/{killed.pk}/fork/", form(killed, visit=1, confirm=[str(doubt.pk)])).status_code
        == 302
    )


def test_a_wrong_role_is_refused(operator, failed, form):
    assert operator.get(url(failed)).status_code == 403
    assert operator.post(url(failed), form(failed, visit=2)).status_code == 403


def test_a_visit_that_there_is_not(support, failed):
    assert "no visit 99" in support.get(url(failed, "?visit=99")).content.decode()
