"""Signing out and changing the password."""

from django.contrib.auth.models import User
from django.test import Client

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
