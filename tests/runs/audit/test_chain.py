"""The check of the chain: whatever somebody changes behind the application is found, with the first entry that is not good."""

from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.urls import reverse

from runs import lifecycle
from runs.errors import NotAllowed
from runs.models import AuditEvent, AuditLink, ChainCheck, Run
from runs.services import chain
from tests import factories
from tests.runs.audit.people import auditor, browser, passes, text
from tests.runs.views.people import client

pytestmark = pytest.mark.django_db


@pytest.fixture
def console() -> Client:
    return client("admins")


def administered(count: int = 5) -> list[AuditEvent]:
    made = [
        AuditEvent.objects.create(kind="limits_changed", target="tool charge", actor="ada", old={"n": n})
        for n in range(count)
    ]
    with connection.cursor() as cursor:
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
        cursor.execute("SET CONSTRAINTS ALL DEFERRED")
    return made


def behind(sql: str, *parameters: Any) -> None:
    """Change history as the owner of the tables can, with the guards switched off."""
    tables = ("runs_audit_event", "runs_audit_link", "runs_event")
    with connection.cursor() as cursor:
        for table in tables:
            cursor.execute(f"ALTER TABLE {table} DISABLE TRIGGER USER")
        cursor.execute(sql, parameters)
        assert cursor.rowcount
        for table in tables:
            cursor.execute(f"ALTER TABLE {table} ENABLE TRIGGER USER")


def checked(**options: Any) -> ChainCheck:
    return chain.check_chain(factories.admin(), **options)


# --- the chain of the audit ----------------------------------------------------------------------------------------------


def test_a_chain_that_nobody_touched_is_sound_to_its_end():
    administered()
    found = checked()
    assert (found.state, found.seq, found.said) == ("sound", 5, "")
    assert found.head == AuditLink.objects.get(seq=5).head


def test_an_empty_one_is_sound_as_well():
    assert checked().state == "sound"


TAMPERED: dict[str, tuple[str, int | None]] = {
    "UPDATE runs_audit_event SET reason = 'another' WHERE id = %(third)s": ("is not what it was", 3),
    "UPDATE runs_audit_event SET old = '{\"n\": 7}' WHERE id = %(third)s": ("is not what it was", 3),
    "UPDATE runs_audit_event SET actor = 'eve' WHERE id = %(third)s": ("is not what it was", 3),
    "DELETE FROM runs_audit_event WHERE id = %(third)s": ("is gone", 3),
    "DELETE FROM runs_audit_link WHERE seq = 3": ("is missing before no.", 4),
    "UPDATE runs_audit_link SET head = '\\x00' WHERE seq = 3": ("is not what it was", 3),
    "DELETE FROM runs_audit_link WHERE seq = 5": ("ends with link 4, and should end with 5", 4),
}


@pytest.mark.parametrize("sql", TAMPERED)
def test_a_row_that_was_changed_directly_in_sql_is_found_with_its_number(sql: str, console: Client):
    events = administered()
    said, first_bad = TAMPERED[sql]
    behind(sql.replace("%(third)s", f"'{events[2].pk}'"))
    found = checked()
    assert found.state == "broken" and said in found.said
    assert found.bad_seq == first_bad
    shown = text(console.get(reverse("audit:chain")))
    assert "The chain is broken" in shown and said in shown and "What to do" in shown
    assert "The chain is broken" in text(console.get(reverse("audit:list")))


def test_an_event_that_was_put_in_beside_the_chain_is_found():
    administered()
    behind(
        "INSERT INTO runs_audit_event (id, at, kind, target, actor, reason) SELECT gen_random_uuid(), at, kind, target, 'eve', ''"
        " FROM runs_audit_event LIMIT 1"
    )
    found = checked()
    assert "it was put in" in found.said
    assert found.bad_event == AuditEvent.objects.get(actor="eve").pk


def test_a_chain_that_was_made_anew_as_a_whole_is_found_by_what_an_earlier_check_saw():
    events = administered()
    assert checked().state == "sound"
    behind("UPDATE runs_audit_event SET actor = 'eve' WHERE id = %s", events[1].pk)
    with connection.cursor() as cursor:
        for table in ("runs_audit_link",):
            cursor.execute(f"ALTER TABLE {table} DISABLE TRIGGER USER")
        head = b""
        for link in AuditLink.objects.order_by("seq"):
            cursor.execute(
                "UPDATE runs_audit_link l SET head = agentops_event_head(%s, agentops_audit_text(l.seq, e))"
                " FROM runs_audit_event e WHERE e.id = l.event_id AND l.seq = %s RETURNING l.head",
                [head, link.seq],
            )
            head = bytes(cursor.fetchone()[0])
        cursor.execute("UPDATE runs_audit_head SET head = %s", [head])
    found = checked()
    assert (found.state, found.bad_seq) == ("broken", 5)
    assert "made anew" in found.said


def test_a_chain_that_was_cut_off_with_its_head_is_found_by_what_an_earlier_check_saw():
    events = administered()
    checked()
    behind("DELETE FROM runs_audit_link WHERE seq = 5")
    behind("DELETE FROM runs_audit_event WHERE id = %s", events[4].pk)
    behind("UPDATE runs_audit_head SET seq = 4, head = l.head FROM runs_audit_link l WHERE l.seq = 4")
    assert "went up to link 5; the last is 4 now" in checked().said


def test_a_long_chain_is_checked_a_part_at_a_time_and_goes_on_where_it_stood(monkeypatch, console):
    monkeypatch.setattr(chain, "BATCH", 2)
    administered()
    first = checked(seconds=0)
    assert (first.state, first.seq) == ("checking", 2)
    assert "A check is under way: good up to entry 2 of 5" in text(console.get(reverse("audit:chain")))
    again = checked(seconds=0)
    assert (again.pk, again.state, again.seq) == (first.pk, "checking", 4)
    administered(1)
    over = checked()
    assert (over.pk, over.state, over.seq) == (first.pk, "sound", 6)
    assert checked().pk != first.pk


def test_workers_check_it_once_a_day_and_go_on_with_what_somebody_began(monkeypatch):
    chain.tick()
    assert not ChainCheck.objects.exists()
    administered()
    chain.tick()
    chain.tick()
    assert ChainCheck.objects.values_list("begun_by", "state").get() == ("clock", "sound")
    passes(24 * 60 + 1)
    monkeypatch.setattr(chain, "BATCH", 2)
    chain.tick(seconds=0)
    assert ChainCheck.objects.filter(state="checking").count() == 1
    monkeypatch.setattr(chain, "BATCH", 100)
    chain.tick()
    assert ChainCheck.objects.filter(state="sound").count() == 2


def test_a_check_that_is_under_way_does_not_hide_that_the_last_one_found_it_broken(monkeypatch, console):
    events = administered()
    behind("UPDATE runs_audit_event SET actor = 'eve' WHERE id = %s", events[4].pk)
    assert checked().state == "broken"
    monkeypatch.setattr(chain, "BATCH", 2)
    assert checked(seconds=0).state == "checking"
    assert "The chain is broken" in text(console.get(reverse("audit:chain")))
    assert "The chain is broken" in text(console.get(reverse("audit:list")))


def test_the_button_checks_and_says_what_it_found(console):
    administered()
    assert not ChainCheck.objects.exists()
    console.get(reverse("audit:chain"))
    assert not ChainCheck.objects.exists()
    said = text(console.post(reverse("audit:chain"), follow=True))
    assert "The chain is sound up to entry 5." in said
    assert ChainCheck.objects.get().state == "sound"


def test_whoever_may_not_read_the_audit_checks_nothing():
    for role in ("operators", "support"):
        assert client(role).get(reverse("audit:chain")).status_code == 403
        assert client(role).post(reverse("audit:chain")).status_code == 403
    with pytest.raises(NotAllowed):
        chain.check_chain(factories.support())
    assert not ChainCheck.objects.exists()


# --- the chain of a run --------------------------------------------------------------------------------------------------


@pytest.fixture
def run() -> Run:
    made = factories.run()
    for number in range(4):
        lifecycle.append_event(made, "retried", factories.SYSTEM, str(number))
    return made


def test_a_run_that_nobody_touched_is_sound(run, console):
    found = chain.check_run(run.pk)
    assert found.sound and found.looked == 5
    assert "is sound" in text(console.get(reverse("audit:run_chain", args=[run.pk])))


OF_A_RUN: dict[str, tuple[str, int]] = {
    "UPDATE runs_event SET reason = 'x' WHERE run_id = %s AND seq = 3": ("is not what it was", 3),
    "DELETE FROM runs_event WHERE run_id = %s AND seq = 3": ("is missing before no.", 4),
    "DELETE FROM runs_event WHERE run_id = %s AND seq = 5": ("was cut off", 5),
    "UPDATE runs_run SET event_head = '\\x00' WHERE id = %s": ("another digest", 5),
    "UPDATE runs_run SET event_seq = 4 WHERE id = %s": ("ends with event 4", 5),
    "DELETE FROM runs_event WHERE run_id = %s": ("was cut off", 1),
}


@pytest.mark.parametrize("sql", OF_A_RUN)
@pytest.mark.parametrize("part", [2, 100])
def test_an_event_that_was_changed_directly_in_sql_is_found(sql: str, part: int, run, console, monkeypatch):
    monkeypatch.setattr(chain, "OF_A_RUN", part)
    said, first_bad = OF_A_RUN[sql]
    behind(sql, run.pk)
    found = chain.check_run(run.pk)
    while found.goes_on:
        found = chain.check_run(run.pk, after=found.looked)
    assert said in found.said and found.bad == first_bad
    if part == 100:
        shown = text(console.get(reverse("audit:run_chain", args=[run.pk])))
        assert "is broken" in shown and said in shown and "What to do" in shown


def test_a_long_history_is_looked_through_a_part_at_a_time(run, console, monkeypatch):
    monkeypatch.setattr(chain, "OF_A_RUN", 2)
    response = console.get(reverse("audit:run_chain", args=[run.pk]))
    assert "Good up to event 2 of 5" in text(response) and b'href="?after=2"' in response.content
    assert chain.check_run(run.pk, after=2).looked == 4
    assert chain.check_run(run.pk, after=4).sound
    assert console.get(reverse("audit:run_chain", args=[run.pk]), {"after": "9" * 30}).status_code == 200


def test_the_chain_of_a_run_that_is_not_theirs_is_not_there(run):
    elsewhere = browser(auditor(("view", "workflow", "letter")))
    assert elsewhere.get(reverse("audit:run_chain", args=[run.pk])).status_code == 404
    assert client("support").get(reverse("audit:run_chain", args=[run.pk])).status_code == 200
    assert client().get(reverse("audit:run_chain", args=[run.pk])).status_code == 403
