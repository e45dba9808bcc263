"""Sessions begin with a new key, end when they should, and travel in a cookie that nobody else reads or plants."""

import ast
import re
from datetime import timedelta

import pytest
from django.conf import settings as project
from django.contrib.auth.models import User
from django.contrib.sessions.models import Session
from django.test import Client
from django.utils import timezone

from tests.harness.processes import ROOT
from tests.security.conftest import PASSWORD
from tests.security.production import settings_of

pytestmark = pytest.mark.django_db

NEW = "another-lamp-with-a-plug"
COOKIE = project.SESSION_COOKIE_NAME


def sign_in(client: Client, password: str = PASSWORD) -> str:
    """Sign in through the form; return the key of the session."""
    assert client.post("/sign-in/", {"username": "mara.okafor", "password": password}).status_code == 302
    return client.cookies[COOKIE].value


def with_cookie(key: str) -> Client:
    client = Client()
    client.cookies[COOKIE] = key
    return client


def is_in(client: Client) -> bool:
    return client.get("/password/").status_code == 200


def test_a_key_that_somebody_planted_is_not_the_one_of_the_session(mara: User) -> None:
    planted = "plantedplantedplantedplantedplan"
    client = with_cookie(planted)
    assert sign_in(client) != planted
    assert not is_in(with_cookie(planted))


def test_the_key_of_an_anonymous_session_is_replaced_at_sign_in(mara: User) -> None:
    client = Client()
    client.session.save()
    session = client.session
    session["seen"] = True
    session.save()
    before = client.cookies[COOKIE].value
    assert sign_in(client) != before
    assert not is_in(with_cookie(before))


def test_signing_out_makes_the_key_worthless(mara: User) -> None:
    client = Client()
    key = sign_in(client)
    assert is_in(with_cookie(key))
    client.post("/sign-out/")
    assert not is_in(with_cookie(key))
    assert not Session.objects.exists()


def test_a_new_password_makes_every_earlier_key_worthless_also_this_browsers(mara: User) -> None:
    client, other = Client(), Client()
    key, elsewhere = sign_in(client), sign_in(other)
    data = {"old_password": PASSWORD, "new_password1": NEW, "new_password2": NEW}
    assert client.post("/password/", data).status_code == 302
    assert is_in(client)
    assert not is_in(with_cookie(key)) and not is_in(with_cookie(elsewhere))


def test_a_person_who_is_switched_off_is_out_at_once(mara: User) -> None:
    client = Client()
    sign_in(client)
    User.objects.update(is_active=False)
    assert not is_in(client)


def test_a_permission_that_is_taken_away_is_gone_with_the_next_click(mara: User) -> None:
    client = Client()
    sign_in(client)
    assert client.get("/runs/").status_code == 200
    User.objects.update(is_superuser=False)
    mara.groups.clear()
    assert client.get("/runs/").status_code == 403


def test_a_session_ends_twelve_hours_after_the_sign_in_and_polling_does_not_prolong_it(mara: User) -> None:
    client = Client()
    sign_in(client)
    [session] = Session.objects.all()
    ends = session.expire_date
    assert abs(ends - timezone.now() - timedelta(hours=12)) < timedelta(minutes=1)
    client.get("/runs/", headers={"HX-Request": "true"})
    [session] = Session.objects.all()
    assert session.expire_date == ends
    Session.objects.update(expire_date=timezone.now() - timedelta(seconds=1))
    assert not is_in(client)


def test_no_script_reads_the_cookies_and_no_other_site_sends_them(mara: User) -> None:
    client = Client()
    sign_in(client)
    for name in (COOKIE, project.CSRF_COOKIE_NAME, project.AGENTOPS_KNOWN_COOKIE):
        assert client.cookies[name]["httponly"] and client.cookies[name]["samesite"] == "Lax", name


def test_in_production_cookies_travel_over_https_and_no_neighbour_in_the_domain_plants_one() -> None:
    found = settings_of(
        "SESSION_COOKIE_NAME",
        "CSRF_COOKIE_NAME",
        "AGENTOPS_KNOWN_COOKIE",
        "SESSION_COOKIE_SECURE",
        "CSRF_COOKIE_SECURE",
        "SESSION_COOKIE_DOMAIN",
        "SESSION_COOKIE_PATH",
        "DEBUG",
    )
    names = [found.pop(name) for name in ("SESSION_COOKIE_NAME", "CSRF_COOKIE_NAME", "AGENTOPS_KNOWN_COOKIE")]
    assert all(name.startswith("__Host-") for name in names)
    assert found == {
        "SESSION_COOKIE_SECURE": True,
        "CSRF_COOKIE_SECURE": True,
        "SESSION_COOKIE_DOMAIN": None,
        "SESSION_COOKIE_PATH": "/",
        "DEBUG": False,
    }


def test_no_code_compares_a_secret_with_an_ordinary_comparison() -> None:
    """`==` answers sooner the sooner two texts differ. Digests without a key are no secrets."""
    secret = re.compile(r"secret|(^|_)token|signature|hmac|password|keyed")
    found = []
    for path in [one for app in ("agentops", "approvals", "runs") for one in (ROOT / app).rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Compare) or not isinstance(node.ops[0], ast.Eq | ast.NotEq):
                continue
            names = [
                side.attr if isinstance(side, ast.Attribute) else side.id
                for side in (node.left, *node.comparators)
                if isinstance(side, ast.Attribute | ast.Name)
            ]
            if any(secret.search(name) for name in names):
                found.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    # A new password that is typed twice is compared with itself.
    assert [place for place in found if "commands/person.py" not in place] == []
