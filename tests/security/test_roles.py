"""Every address × every role × look and do, against one table."""

import re
from pathlib import Path

import pytest
from django.conf import settings
from django.http.response import HttpResponseBase
from django.template.backends.django import Template
from django.test import Client

from tests.security.table import ROLES, TABLE, browser
from tests.security.world import PLACES, World, world

pytestmark = pytest.mark.django_db


def word(answer: HttpResponseBase) -> str:
    """The answer as the table writes it."""
    location = answer.headers.get("Location", "")
    return "in" if location.startswith("/sign-in/?next=") else str(answer.status_code)


def answers(role: str) -> dict[str, tuple[str, str]]:
    """What this role is answered, by address: everything is looked at before anything is sent."""
    made = world()
    user = ROLES[role]()
    client, urls = browser(user), made.pages()
    looked = {name: word(client.get(url)) for name, url in urls.items() if name != "logout"}

    def send(client: Client, url: str) -> str:
        answer = client.post(url, {})
        if user is not None and "_auth_user_id" not in client.session:
            client.force_login(user)  # it has signed itself out
        return word(answer)

    return {name: (looked.get(name, "405"), send(client, url)) for name, url in urls.items()}


def test_the_table_has_every_address_and_no_other() -> None:
    assert set(TABLE) - set(PLACES) == set()
    if missing := set(PLACES) - set(TABLE):
        found = [answers(role) for role in ROLES]
        rows = (
            f'    "{name}": Row("{" ".join(f[name][0] for f in found)}", "{" ".join(f[name][1] for f in found)}"),'
            for name in sorted(missing)
        )
        raise AssertionError("missing in tests/security/table.py; is this right?\n" + "\n".join(rows))
    columns = {len(text.split()) for row in TABLE.values() for text in (row.look, row.do)}
    assert columns == {len(ROLES)}


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages without their text, which takes most of the time: who is let in is decided before it is made."""
    monkeypatch.setattr(Template, "render", lambda *args, **kwargs: "")


@pytest.mark.usefixtures("bare")
@pytest.mark.parametrize("role", ROLES)
def test_each_role_is_answered_as_the_table_says(role: str) -> None:
    column = list(ROLES).index(role)
    wanted = {name: (row.look.split()[column], row.do.split()[column]) for name, row in TABLE.items()}
    found = answers(role)
    assert {name: given for name, given in found.items() if given != wanted.get(name)} == {}


def test_a_poll_of_somebody_who_has_signed_out_is_told_so(everything: World) -> None:
    """Not led to the sign-in page, which would be put into the middle of the page that polls."""
    for name in ("home", "runs:list", "runs:run", "approvals:list", "runs:workers"):
        polled = Client().get(everything.url(name), headers={"HX-Request": "true"})
        assert (polled.status_code, polled.content) == (401, b"You are signed out."), name


def test_one_mechanism_decides_who_may_do_what() -> None:
    """Grants would not count where Django's permissions are asked directly."""
    asked = re.compile(r"has_perm|permission_required|PermissionRequiredMixin|\bperms\.")
    files = [
        path
        for folder in ("runs", "approvals", "agentops", "templates")
        for path in (Path(settings.BASE_DIR) / folder).rglob("*")
        if path.suffix in (".py", ".html") and "migrations" not in path.parts
    ]
    assert len(files) > 200
    assert [path.name for path in files if asked.search(path.read_text())] == ["access.py"]
