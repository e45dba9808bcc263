"""A file that comes with an answer whether an effect happened."""

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile

from runs.models import Event, Evidence
from runs.models.evidence import LARGEST
from tests import factories

pytestmark = pytest.mark.django_db


@pytest.fixture
def doubt():
    return factories.doubt()


def send(browser, doubt, form, file, url=None):
    given = form(doubt.run, answer="yes", reference="bk_7", reason="seen", file=file)
    return browser.post(url or f"/runs/{doubt.run_id}/operations/{doubt.pk}/answer/", given)


def test_it_is_kept_and_only_ever_sent_as_a_download(operator, doubt, form):
    body = b"<script>alert(1)</script>"
    assert send(operator, doubt, form, SimpleUploadedFile("a.html", body, "text/html")).status_code == 302
    kept = Evidence.objects.get(operation=doubt)
    assert (
        Event.objects.get(run_id=doubt.run_id, kind="doubt_answered").data["evidence"]["sha256"]
        == kept.sha256
    )
    answer = operator.get(f"/runs/{doubt.run_id}/operations/{doubt.pk}/evidence/{kept.pk}/")
    assert answer.content == body
    assert answer.headers["Content-Type"] == "application/octet-stream"
    assert answer.headers["Content-Disposition"] == 'attachment; filename="a.html"'
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert "a.html" in operator.get(f"/runs/{doubt.run_id}/operations/{doubt.pk}/").content.decode()


def test_a_file_that_is_too_large_is_refused_before_it_is_read(operator, doubt, form):
    assert send(operator, doubt, form, SimpleUploadedFile("a", b"x" * (LARGEST + 1))).status_code == 400
    assert not Evidence.objects.exists()


def test_no_other_page_takes_files_and_nobody_else_may_give_one(operator, stranger, doubt, form):
    run = factories.run()
    elsewhere = send(operator, doubt, form, SimpleUploadedFile("a", b"x"), f"/runs/{run.pk}/cancel/")
    assert elsewhere.status_code in (400, 403)
    assert send(stranger, doubt, form, SimpleUploadedFile("a", b"x")).status_code in (400, 403)
    assert not Evidence.objects.exists()


def test_an_answer_needs_no_file(operator, doubt, form):
    given = form(doubt.run, answer="yes", reference="bk_7")
    assert operator.post(f"/runs/{doubt.run_id}/operations/{doubt.pk}/answer/", given).status_code == 302
