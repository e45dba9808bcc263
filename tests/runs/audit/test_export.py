"""The audit as a file: what the filter finds and the person may see, in bounded memory, harmless in a spreadsheet."""

import csv
import io
import json

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from runs import lifecycle, services
from runs.errors import Invalid, NotAllowed
from runs.models import AuditEvent, Grant, Run
from runs.pages.audit_search import Chosen
from runs.services import audit_export
from tests import factories
from tests.runs.audit.people import auditor, browser, passes, text
from tests.runs.views.people import client

pytestmark = pytest.mark.django_db


@pytest.fixture
def console() -> Client:
    return client("admins")


def acted(run: Run, kind: str = "retried", reason: str = "", name: str = "sam", **data: object) -> None:
    lifecycle.append_event(run, kind, lifecycle.Actor(name, factories.user()), reason, **data)


def exported(console: Client, form: str = "jsonl", **query: str) -> bytes:
    address = reverse("audit:export", query=query)
    response = console.post(address, {"format": form, "reason": "the auditors asked"})
    assert response.status_code == 200, response.content
    assert response.headers["Content-Disposition"].startswith('attachment; filename="audit-')
    return b"".join(response)


def lines(console: Client, **query: str) -> list[dict[str, object]]:
    """Entries of an export, without the line about itself."""
    read = [json.loads(line) for line in exported(console, **query).splitlines()]
    return [one for one in read if one["kind"] != "audit_exported"]


def rows(console: Client, **query: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(exported(console, "csv", **query).decode())))


def test_each_line_tells_who_what_on_what_why_and_what_became_of_what(console):
    services.set_limits(factories.admin("ada"), "tool", "book_courier", max_attempts=8, reason="slow, again")
    (line,) = lines(console)
    assert line["sentence"] == "ada changed the limits of book_courier"
    assert (line["who"], line["on"], line["reason"]) == ("ada", "tool book_courier", "slow, again")
    assert line["changed"] == {"retry limit": "the default to 8 attempts"}
    assert line["before"]["max_attempts"] is None and line["after"]["max_attempts"] == 8  # type: ignore[index]
    (row,) = rows(console, person="ada")
    assert row["sentence"] == line["sentence"] and json.loads(row["after"])["max_attempts"] == 8


def test_it_has_what_the_filter_finds_and_nothing_else(console):
    mine, other = factories.run(subject="order 1"), factories.run(subject="order 2")
    acted(mine, "retried", "yes")
    acted(other, "retried", "no")
    found = lines(console, subject="order 1")
    assert [one["reason"] for one in found] == ["yes"]
    assert found[0]["run"] == str(mine.pk) and found[0]["address"] == f"/audit/runs/{mine.pk}/2/"


def test_it_is_itself_in_the_audit(console):
    exported(console, person="ada", since="2026-01-01")
    event = AuditEvent.objects.get(kind="audit_exported")
    assert event.reason == "the auditors asked" and event.actor_user_id is not None
    assert event.new is not None
    assert event.new["format"] == "jsonl" and event.new["filter"]["person"] == "ada"
    assert "exported the audit as JSON Lines" in text(console.get(reverse("audit:list")))


def test_looking_at_its_page_exports_nothing_and_says_how_much_it_would_be(console):
    acted(factories.run())
    response = console.get(reverse("audit:export"), {"person": "sam"})
    assert "1 entry" in text(response)
    assert not AuditEvent.objects.exists()
    refused = console.post(reverse("audit:export"), {"format": "xls"})
    assert refused.status_code == 422 and not AuditEvent.objects.exists()
    assert console.post(reverse("audit:export", query={"run": "x"}), {"format": "csv"}).status_code == 422


DANGEROUS = [
    '=HYPERLINK("http://evil.example")',
    "+1+1",
    "-1+1",
    "@SUM(A1)",
    "\t=1+1",
    "  =1+1",
    "\n=1+1",
    "＝1+1",
]


@pytest.mark.parametrize("text", DANGEROUS)
def test_no_cell_of_a_table_begins_as_a_formula(text, console):
    run = factories.run(subject=text, workflow=text)
    acted(run, "retried", text, text)
    (row,) = [one for one in rows(console) if one["kind"] == "retried"]
    for name in ("who", "reason", "workflow", "subject", "sentence"):
        assert row[name].startswith("'") or row[name].lstrip()[0] not in "=+-@＝", name
    assert row["reason"] == f"'{text}"
    assert lines(console, verb="retried")[0]["reason"] == text


def test_memory_is_bounded_by_reading_a_batch_at_a_time_with_no_transaction_open(monkeypatch):
    monkeypatch.setattr(audit_export, "BATCH", 10)
    run = factories.run()
    for number in range(45):
        acted(run, "retried", str(number))
    with CaptureQueriesContext(connection) as caught:
        pieces = audit_export.export_audit(factories.admin(), Chosen(), "jsonl")
        begun = len(caught)
        next(iter(pieces))
        first = len(caught)
        rest = list(pieces)
    assert first - begun == 2 + 2  # one of each table; the person, and what they may do
    assert len(rest) == 4
    statements = [one["sql"] for one in caught.captured_queries[begun:] if "auth_" not in one["sql"]]
    assert all("LIMIT" in sql and sql.startswith("WITH looked") for sql in statements)


def test_what_is_written_while_it_is_read_neither_shifts_nor_repeats_a_line(monkeypatch):
    monkeypatch.setattr(audit_export, "BATCH", 5)
    run = factories.run()
    for number in range(20):
        acted(run, "retried", f"old {number}")
        passes(0.1)
    read = []
    for number, piece in enumerate(audit_export.export_audit(factories.admin(), Chosen(), "jsonl")):
        read += [json.loads(line) for line in piece.splitlines()]
        acted(run, "retried", f"new {number}")
        AuditEvent.objects.create(kind="bulk_made", target="bulk x", actor="bea")
        passes(0.1)
    assert [one["reason"] for one in read[1:]] == [f"old {number}" for number in range(19, -1, -1)]
    assert read[0]["kind"] == "audit_exported"


def test_content_that_is_hidden_on_pages_is_not_in_the_file():
    run, other = factories.run(), factories.run(workflow="letter")
    acted(run, "asked_back", "is it the red one?", question=1)
    acted(other, "retried", "somebody else's")
    blind = browser(auditor(("view", "workflow", "parcel"), also=("export_audit",)))
    whole = exported(blind, "jsonl").decode() + exported(blind, "csv").decode()
    assert "asked about" in whole and "red one" not in whole and '"question"' not in whole
    assert "somebody else's" not in whole


@pytest.mark.parametrize(
    "change",
    [
        lambda user: user.groups.clear(),
        lambda user: User.objects.filter(pk=user.pk).update(is_active=False),
        lambda user: user.delete(),
    ],
)
def test_it_breaks_off_where_the_person_may_no_more(change, monkeypatch):
    monkeypatch.setattr(audit_export, "BATCH", 5)
    run, ada = factories.run(), factories.admin("ada")
    for number in range(12):
        acted(run, "retried", f"old {number}")
    pieces = audit_export.export_audit(ada, Chosen(), "jsonl")
    assert b"old 11" in next(iter(pieces))
    change(User.objects.get(username="ada"))
    with pytest.raises(NotAllowed):
        next(iter(pieces))


def test_what_somebody_may_no_more_see_is_hidden_in_the_rest_of_the_file(monkeypatch):
    monkeypatch.setattr(audit_export, "BATCH", 5)
    run = factories.run()
    for number in range(12):
        acted(run, "retried", f"old {number}")
    partly = auditor(("payloads", "everything", ""), also=("export_audit",))
    pieces = audit_export.export_audit(lifecycle.Actor.of(partly), Chosen(), "jsonl")
    assert b"old 11" in next(iter(pieces))
    Grant.objects.filter(user=partly).update(capability="view")
    rest = b"".join(pieces)
    assert b"retried" in rest and b"old" not in rest


def test_whoever_may_not_export_gets_no_file_and_no_link():
    reader = browser(auditor(("view", "everything", "")))
    assert reader.get(reverse("audit:list")).status_code == 200
    assert b"/audit/export/" not in reader.get(reverse("audit:list")).content
    assert reader.get(reverse("audit:export")).status_code == 403
    assert reader.post(reverse("audit:export"), {"format": "csv"}).status_code == 403
    with pytest.raises(NotAllowed):
        audit_export.export_audit(lifecycle.Actor.of(auditor()), Chosen(), "csv")
    with pytest.raises(Invalid):
        audit_export.export_audit(factories.admin(), Chosen(), "xls")
    assert not AuditEvent.objects.exists()
