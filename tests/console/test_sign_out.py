"""Signing out and changing the password."""

from typing import Any

import pytest
from django.contrib.auth.forms import PasswordChangeForm
from django.contrib.auth.models import User
from django.test import Client

from agentops import guesses
from runs.models import AuditEvent
from tests.console.conftest import PASSWORD

NEW = "another-lamp-with-a-plug"


def test_signing_out_ends_the_session(signed_in: Client) -> None:
    assert signed_in.post("/sign-out/")["Location"] == "/sign-in/"
    assert signed_in.get("/password/").status_code == 302


def test_a_link_cannot_sign_anybody_out(signed_in: Client) -> None:
    assert signed_in.get("/sign-out/").status_code == 405
    assert signed_in.get("/password/").status_code == 200


def test_a_new_password_keeps_this_browser_and_ends_the_others(mara: User, signed_in: Client) -> None:
    other = Client()
    other.force_login(mara)
    data = {"old_password": PASSWORD, "new_password1": NEW, "new_password2": NEW}
    response = signed_in.post("/password/", data)
    assert (response.status_code, response["Location"]) == (302, "/password/done/")
    assert signed_in.get("/password/done/").status_code == 200
    assert other.get("/password/done/").status_code == 302


def test_a_weak_or_wrong_password_changes_nothing(mara: User, signed_in: Client) -> None:
    data = {"old_password": "wrong", "new_password1": "short", "new_password2": "short"}
    html = signed_in.post("/password/", data).content.decode()
    assert html.count('class="errors"') == 2
    mara.refresh_from_db()
    assert mara.check_password(PASSWORD)


@pytest.mark.parametrize("meanwhile", [{"is_active": False}, {"password": "!void"}])
def test_whoever_is_switched_off_in_this_moment_does_not_come_back_with_a_new_password(
    mara: User, signed_in: Client, monkeypatch: pytest.MonkeyPatch, meanwhile: dict[str, Any]
) -> None:
    right = PasswordChangeForm.clean_old_password

    def after_it_was_read(form: Any) -> str:
        given: str = right(form)
        User.objects.filter(pk=mara.pk).update(**meanwhile)
        return given

    monkeypatch.setattr(PasswordChangeForm, "clean_old_password", after_it_was_read)
    data = {"old_password": PASSWORD, "new_password1": NEW, "new_password2": NEW}
    response = signed_in.post("/password/", data)
    assert "changed in this moment" in response.content.decode()
    found = User.objects.get(pk=mara.pk)
    assert {name: getattr(found, name) for name in meanwhile} == meanwhile
    assert not found.check_password(NEW)
    assert not AuditEvent.objects.filter(kind="password_changed").exists()


def test_the_password_until_now_is_guessed_no_faster_than_at_the_sign_in(
    mara: User, signed_in: Client
) -> None:
    def sent(old: str) -> str:
        data = {"old_password": old, "new_password1": NEW, "new_password2": NEW}
        return signed_in.post("/password/", data).content.decode()

    for _ in range(guesses.PER_ACCOUNT):
        assert "Too many attempts" not in sent("wrong")
    assert "Too many attempts" in sent("wrong")
    assert "Too many attempts" in sent(PASSWORD)
    mara.refresh_from_db()
    assert mara.check_password(PASSWORD)
