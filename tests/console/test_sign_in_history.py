"""What the audit tells of sign-ins: who came, who went, and that somebody failed; never what was typed, and never without end."""

import re

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from agentops import guesses, sign_in_history
from runs.models import AuditEvent
from tests import factories
from tests.console.conftest import PASSWORD
from tests.runs.audit.people import browser, entries

NEW = "another-lamp-with-a-plug"


def told() -> list[tuple[str, str, str]]:
    return list(AuditEvent.objects.order_by("id").values_list("kind", "target", "actor"))


def attempt(username: str, password: str = "wrong", address: str = "192.0.2.1") -> int:
    answer = Client().post("/sign-in/", {"username": username, "password": password}, REMOTE_ADDR=address)
    return answer.status_code


def test_a_sign_in_and_a_sign_out_are_entered_with_who_it_was(mara: User) -> None:
    client = Client()
    client.post("/sign-in/", {"username": mara.username, "password": PASSWORD})
    client.post("/sign-out/")
    of = f"sign-in of {mara.username}"
    assert told() == [("signed_in", of, mara.username), ("signed_out", of, mara.username)]


def test_a_failed_sign_in_tells_whose_name_it_was(mara: User) -> None:
    assert attempt(mara.username) == 422
    event = AuditEvent.objects.get()
    assert (event.kind, event.target) == ("sign_in_failed", f"sign-in of {mara.username}")
    assert (event.actor, event.actor_user, event.new) == ("a visitor", None, {"tries": 1})


def test_a_password_that_was_typed_as_a_name_is_stored_nowhere(mara: User) -> None:
    assert attempt(PASSWORD, mara.username) == 422
    assert told() == [("sign_in_failed", "sign-in", "a visitor")]
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM runs_audit_event e WHERE e::text LIKE %s", [f"%{PASSWORD}%"])
        assert cursor.fetchone()[0] == 0


@pytest.mark.parametrize("known", [True, False])
def test_a_flood_of_failures_makes_few_entries_and_each_says_how_many(mara: User, known: bool) -> None:
    for number in range(12):
        attempt(mara.username if known else f"nobody.{number}", address=f"198.51.100.{number}")
    assert list(AuditEvent.objects.order_by("id").values_list("new__tries", flat=True)) == [1, 10]
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO runs_clock (id, shift) VALUES (1, '301 seconds')")
    attempt(mara.username if known else "nobody.13")
    assert list(AuditEvent.objects.order_by("id").values_list("new__tries", flat=True)) == [1, 10, 1]


def test_a_try_that_is_refused_as_one_too_many_counts_as_well(mara: User) -> None:
    answers = [attempt(mara.username) for _ in range(10)]
    assert answers[guesses.PER_ACCOUNT :] == [429] * (10 - guesses.PER_ACCOUNT)
    assert list(AuditEvent.objects.order_by("id").values_list("new__tries", flat=True)) == [1, 10]


def test_a_try_costs_the_same_whether_or_not_somebody_has_the_name(mara: User) -> None:
    attempt("nobody.at.all")

    def statements(name: str) -> list[str]:
        with CaptureQueriesContext(connection) as asked:
            sign_in_history.failed(name)
        told = [re.sub(r"'[^']*'|\bNULL\b|\b\d+\b|\"\w*s\d+\w*\"", "?", one["sql"]) for one in asked]
        return [re.sub(r"^(ROLLBACK TO|RELEASE) ", "END ", one) for one in told]

    known, unknown = statements(mara.username), statements("nobody.else")
    assert known == unknown and len(known) > 4
    assert [target for _, target, _ in told()] == ["sign-in", f"sign-in of {mara.username}"]


def test_a_changed_password_and_a_wrong_one_before_are_entered(mara: User, signed_in: Client) -> None:
    for old in ("wrong", PASSWORD):
        data = {"old_password": old, "new_password1": NEW, "new_password2": NEW}
        signed_in.post("/password/", data)
    assert told() == [
        ("sign_in_failed", f"sign-in of {mara.username}", mara.username),
        ("password_changed", f"person {mara.username}", mara.username),
    ]


def test_a_password_given_again_is_entered(mara: User, signed_in: Client) -> None:
    signed_in.post("/sign-in/again/", {"password": "wrong"})
    signed_in.post("/sign-in/again/", {"password": PASSWORD})
    of = f"sign-in of {mara.username}"
    assert told() == [("sign_in_failed", of, mara.username), ("signed_in_again", of, mara.username)]


def test_the_audit_finds_them_and_tells_them_as_sentences(mara: User) -> None:
    attempt(mara.username)
    attempt("nobody.at.all")
    AuditEvent.objects.create(kind="limits_changed", target="tool charge", actor="ada")
    console = browser(factories.user("ada", "admins"))
    said = entries(console, what="sign_ins")
    assert f"failed to sign in as {mara.username}" in said
    assert "failed to sign in as somebody who is not known here" in said
    assert "nobody.at.all" not in said and "changed the limits" not in said
    said = entries(console, target=f"sign-in of {mara.username}")
    assert mara.username in said and "somebody who is not known" not in said
