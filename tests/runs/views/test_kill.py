"""Kill a run, from its page."""

import pytest

from runs.states import Status
from tests import factories

pytestmark = pytest.mark.django_db


def test_the_page_lists_what_stays_unknown_and_it_works(admin, form):
    doubt = factories.doubt()
    html = admin.get(f"/runs/{doubt.run_id}/kill/").content.decode()
    assert "Stays unknown" in html and str(doubt.provider_key)[:13] in html
    response = admin.post(f"/runs/{doubt.run_id}/kill/", form(doubt.run, reason="runaway"), follow=True)
    doubt.run.refresh_from_db()
    assert doubt.run.status == Status.CANCELLED
    assert "The run is killed." in response.content.decode()


def test_a_reason_is_asked_for(admin, form):
    run = factories.run()
    assert admin.post(f"/runs/{run.pk}/kill/", form(run, reason="")).status_code == 422


def test_a_finished_run_has_no_form(admin):
    html = admin.get(f"/runs/{factories.run(Status.COMPLETED).pk}/kill/").content.decode()
    assert "nothing left to kill" in html and "seen_version" not in html


@pytest.mark.parametrize("role", ["support", "operator"])
def test_a_wrong_role_is_refused(role, request, form):
    run, browser = factories.run(), request.getfixturevalue(role)
    assert browser.get(f"/runs/{run.pk}/kill/").status_code == 403
    assert browser.post(f"/runs/{run.pk}/kill/", form(run)).status_code == 403
    assert f"/runs/{run.pk}/kill/" not in browser.get(f"/runs/{run.pk}/").content.decode()
