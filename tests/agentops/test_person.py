"""`manage.py person`."""

import io

import pytest
from django.contrib.auth import authenticate
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command
from django.test import Client

from agentops.people.services import links, switch_off
from approvals.inbox import handling
from approvals.models import Item, ItemKind
from runs.lifecycle import Actor
from runs.models import AuditEvent
from tests import factories

pytestmark = pytest.mark.django_db


def person(*arguments: str) -> str:
    out = io.StringIO()
    call_command("person", *arguments, stdout=out)
    return out.getvalue()


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def typed(monkeypatch):
    def typed(line: str) -> None:
        monkeypatch.setattr("sys.stdin", io.StringIO(line + "\n"))

    return typed


def made(name: str = "olivia") -> User:
    return User.objects.get(username=name)


def test_a_new_person_gets_groups_and_a_password_that_is_printed_once():
    out = person("olivia", "--group", "operators", "--group", "support")
    first, second = out.splitlines()
    assert first == "olivia: operators, support"
    assert authenticate(username="olivia", password=second.removeprefix("password: ")) == made()
    assert not made().is_staff and not made().is_superuser
    assert made().has_perm("approvals.decide_approval")
    assert "password: " not in person("olivia")


def test_the_change_is_in_the_audit_without_the_password():
    out = person("olivia", "--group", "operators")
    person("olivia", "--group", "admins")
    first, second = AuditEvent.objects.order_by("id")
    assert (first.kind, first.target, first.actor) == ("person_changed", "person olivia", "command line")
    assert first.old is None
    assert first.new == {"groups": ["operators"], "active": True, "password": "new"}
    assert second.old == {"groups": ["operators"], "active": True}
    assert second.new == {"groups": ["admins"], "active": True, "password": "kept"}
    assert out.splitlines()[1].removeprefix("password: ") not in str(first.new)


def test_groups_given_are_the_groups_that_remain_and_the_password_stays():
    person("olivia", "--group", "operators")
    before = made().password
    assert person("olivia", "--group", "admins") == "olivia: admins\n"
    assert made().password == before


def test_a_new_password_replaces_the_old_one():
    person("olivia", "--group", "operators")
    before = made().password
    assert "password: " in person("olivia", "--new-password")
    assert made().password != before
    assert person("olivia") == "olivia: operators\n"


def test_somebody_who_is_switched_off_cannot_sign_in_until_switched_on_with_a_new_password(typed):
    typed("a-long-enough-secret")
    person("olivia", "--group", "operators", "--ask")
    assert person("olivia", "--off") == "olivia: operators; switched off\n"
    assert authenticate(username="olivia", password="a-long-enough-secret") is None
    assert AuditEvent.objects.filter(new__password="void").count() == 1
    new = person("olivia", "--on").splitlines()[1].removeprefix("password: ")
    assert authenticate(username="olivia", password="a-long-enough-secret") is None
    assert authenticate(username="olivia", password=new) == made()


def test_switched_off_and_on_again_revives_no_session_and_no_sign_in_link():
    person("olivia", "--group", "operators")
    browser = Client()
    browser.force_login(made())
    token = links.make_token(made())
    person("olivia", "--off")
    assert browser.get("/password/").status_code == 302
    person("olivia", "--on")
    assert browser.get("/password/").status_code == 302
    assert not links.check_token(made(), token)


def test_switching_on_whoever_is_not_off_leaves_their_password():
    person("olivia", "--group", "operators")
    before = made().password
    assert "password: " not in person("olivia", "--on")
    assert made().password == before


def test_nobody_is_switched_off_and_given_a_password_at_once():
    person("olivia", "--group", "operators")
    with pytest.raises(CommandError, match="give one with --on"):
        person("olivia", "--off", "--new-password")
    assert made().is_active


@pytest.fixture
def while_typing(monkeypatch):
    """Lets something happen between the moment at which the person is read and the one at which a password is there."""

    def while_typing(happens) -> None:
        def getpass(prompt: str) -> str:
            if "Again" in prompt:
                happens()
            return "a-long-enough-secret"

        monkeypatch.setattr("sys.stdin", Terminal())
        monkeypatch.setattr("getpass.getpass", getpass)

    return while_typing


def test_whoever_is_switched_off_while_a_password_is_typed_for_them_stays_off(while_typing):
    person("olivia", "--group", "operators")
    admin = Actor.of(factories.user("ada", "admins"))
    while_typing(lambda: switch_off(admin, made().pk, reason="has left"))
    with pytest.raises(CommandError, match="changed in this moment"):
        person("olivia", "--new-password", "--ask")
    assert not made().is_active and not made().has_usable_password()


def test_what_somebody_else_changes_meanwhile_is_kept(while_typing):
    person("olivia", "--group", "operators")
    while_typing(lambda: User.objects.update(first_name="Olivia", is_superuser=True))
    person("olivia", "--new-password", "--ask")
    assert (made().first_name, made().is_superuser) == ("Olivia", True)
    assert authenticate(username="olivia", password="a-long-enough-secret") == made()


def test_a_name_is_written_as_the_sign_in_reads_it():
    assert person("\N{FULLWIDTH LATIN SMALL LETTER O}livia", "--group", "operators").startswith("olivia: ")
    assert person("olivia") == "olivia: operators\n"


def test_a_typed_password_is_not_printed_and_has_to_be_strong(typed):
    typed("a-long-enough-secret")
    assert person("olivia", "--group", "operators", "--ask") == "olivia: operators\n"
    typed("short")
    with pytest.raises(CommandError, match="too short"):
        person("omar", "--group", "operators", "--ask")
    assert not User.objects.filter(username="omar").exists()


def test_passwords_typed_differently_are_refused(monkeypatch):
    answers = iter(["a-long-enough-secret", "a-long-enough-sekret"])
    monkeypatch.setattr("sys.stdin", Terminal())
    monkeypatch.setattr("getpass.getpass", lambda prompt: next(answers))
    with pytest.raises(CommandError, match="differ"):
        person("olivia", "--group", "operators", "--ask")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("olivia",), "no person 'olivia'.*--group operators"),
        (("olivia", "--group", "operatives"), "no group operatives; known: admins, operators, support"),
        (("no spaces", "--group", "operators"), "valid username"),
    ],
)
def test_what_cannot_be_done_is_one_sentence_and_nothing_is_written(arguments, says):
    with pytest.raises(CommandError, match=says):
        person(*arguments)
    assert not User.objects.exists() and not AuditEvent.objects.exists()


def test_nobody_gets_a_name_that_differs_by_case_alone():
    person("olivia", "--group", "operators")
    with pytest.raises(CommandError, match="there is olivia already"):
        person("Olivia", "--group", "admins")
    assert User.objects.count() == 1


def test_whoever_is_switched_off_keeps_no_claim():
    operator, approval = factories.operator("olivia"), factories.approval()
    handling.claim(operator, ItemKind.APPROVAL, approval.pk)
    person("olivia", "--off")
    assert Item.objects.get(item_id=approval.pk).claimed_by_name == ""
