"""Who gets what answer, for every address of the site.

A new address needs a row here and, where it takes a parameter that is new, a line in `World.url` (tests/security/world.py);
tests/security/test_roles.py prints the row that is missing, as the site answers now. Read it before you paste it.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

from django.contrib.auth.models import User
from django.test import Client

from runs.models import Grant
from tests import factories
from tests.harness.processes import ROOT


def _granted(workflow: str, *capabilities: str) -> User:
    person = factories.user()
    scope = "workflow" if workflow else "everything"
    for one in capabilities:
        Grant.objects.create(user=person, capability=one, scope=scope, name=workflow, granted_by="Ada")
    return person


def _blind() -> User:
    """Support that sees no content: in the group that docs/admins.md makes."""
    text = (ROOT / "docs/admins.md").read_text()
    (recipe,) = re.findall(r"```python\n([^`]*support-blind[^`]*)```", text)
    exec(recipe, {})  # noqa: S102 (of our own docs)
    return factories.user("", "support-blind")


#: In the order of the columns below; None: nobody is signed in.
ROLES: dict[str, Callable[[], User | None]] = {
    "nobody": lambda: None,
    "stranger": factories.user,
    "viewer": lambda: _granted("", "view"),
    "operator": lambda: factories.user("", "operators"),
    "support": lambda: factories.user("", "support"),
    "admin": lambda: factories.user("", "admins"),
    "blind": _blind,
    # Everything that can be granted for a part, for the workflow of the world, and for another one.
    "here": lambda: _granted("parcel", "operate", "approve", "administer"),
    "elsewhere": lambda: _granted("elsewhere", "operate", "approve", "administer"),
}


def browser(user: User | None) -> Client:
    made = Client(raise_request_exception=False)
    if user is not None:
        made.force_login(user)
    return made


@dataclass(frozen=True)
class Row:
    """Answers by role: to a look (GET), and to an empty form (POST). “in”: led to the sign-in page."""

    look: str
    do: str = "in 405 405 405 405 405 405 405 405"
    """As it is without a form."""


#: Columns: nobody, stranger, viewer, operator, support, admin, blind, here, elsewhere.
TABLE: dict[str, Row] = {
    "home": Row("in 200 200 200 200 200 200 200 200"),
    "login": Row("200 302 302 302 302 302 302 302 302", "422 302 302 302 302 302 302 302 302"),
    "sign_in_again": Row("in 200 200 200 200 200 200 200 200", "in 422 422 422 422 422 422 422 422"),
    "first_sign_in": Row("302 302 302 302 302 302 302 302 302", "302 302 302 302 302 302 302 302 302"),
    "logout": Row("405 405 405 405 405 405 405 405 405", "in 302 302 302 302 302 302 302 302"),
    "password_change": Row("in 200 200 200 200 200 200 200 200", "in 200 200 200 200 200 200 200 200"),
    "password_change_done": Row("in 200 200 200 200 200 200 200 200"),
    "views": Row("in 200 200 200 200 200 200 200 200"),
    "save_view": Row("in 405 405 405 405 405 405 405 405", "in 422 422 422 422 422 422 422 422"),
    "delete_view": Row("in 405 405 405 405 405 405 405 405", "in 404 404 404 404 404 404 404 404"),
    "theme": Row("405 405 405 405 405 405 405 405 405", "302 302 302 302 302 302 302 302 302"),
    "approvals:inbox": Row("in 403 200 200 200 200 200 200 200"),
    "approvals:list": Row("in 403 200 200 200 200 200 200 200"),
    "approvals:together": Row("in 403 200 200 200 200 200 200 200", "in 403 403 422 403 422 403 422 422"),
    "approvals:approval": Row("in 403 200 200 200 200 200 200 404"),
    "approvals:now": Row("in 403 200 200 200 200 200 200 404"),
    "approvals:version": Row("in 403 403 200 200 200 403 200 404"),
    "approvals:decide": Row("in 405 405 405 405 405 405 405 405", "in 403 403 409 403 409 403 403 404"),
    "approvals:ask": Row("in 405 405 405 405 405 405 405 405", "in 403 403 422 403 422 403 403 404"),
    "approvals:edit": Row("in 403 403 200 403 200 403 403 404", "in 403 403 409 403 409 403 403 404"),
    "approvals:shortcuts": Row("in 403 200 200 200 200 200 200 200"),
    "approvals:item": Row("in 403 200 200 200 200 200 200 404"),
    "approvals:item_now": Row("in 403 200 200 200 200 200 200 404"),
    "approvals:claim": Row("in 405 405 405 405 405 405 405 405", "in 403 403 422 422 422 422 422 404"),
    "approvals:release": Row("in 405 405 405 405 405 405 405 405", "in 403 403 422 422 422 422 422 404"),
    "approvals:assign": Row("in 403 403 200 200 200 200 200 404", "in 403 403 422 422 422 422 422 404"),
    "approvals:snooze": Row("in 405 405 405 405 405 405 405 405", "in 403 403 422 422 422 422 422 404"),
    "approvals:wake": Row("in 405 405 405 405 405 405 405 405", "in 403 403 422 422 422 422 422 404"),
    "approvals:comment": Row("in 405 405 405 405 405 405 405 405", "in 403 403 422 422 422 422 422 404"),
    "approvals:read_mark": Row("in 405 405 405 405 405 405 405 405", "in 403 302 302 302 302 302 302 404"),
    "policies:list": Row("in 403 200 200 200 200 200 200 200"),
    "policies:edit": Row("in 403 403 403 403 200 403 403 403", "in 403 403 403 403 422 403 403 403"),
    "policies:tried": Row("in 403 200 200 200 200 200 200 200"),
    "policies:clear": Row("in 403 403 403 403 200 403 403 403", "in 403 403 403 403 422 403 403 403"),
    "policies:reapply": Row("in 403 403 403 403 200 403 403 403", "in 403 403 403 403 422 403 403 403"),
    "policies:revert": Row("in 403 403 403 403 200 403 403 403", "in 403 403 403 403 422 403 403 403"),
    "policies:policy": Row("in 403 200 200 200 200 200 200 200"),
    "people:list": Row("in 403 403 403 403 200 403 403 403"),
    "people:groups": Row("in 403 403 403 403 200 403 403 403"),
    "people:who": Row("in 403 403 403 403 200 403 403 403"),
    "people:add": Row("in 403 403 403 403 200 403 403 403", "in 403 403 403 403 422 403 403 403"),
    "people:add_group": Row("in 403 403 403 403 200 403 403 403", "in 403 403 403 403 422 403 403 403"),
    "people:person": Row("in 403 403 403 403 200 403 403 403"),
    "people:group": Row("in 403 403 403 403 200 403 403 403"),
    "people:grant": Row("in 403 403 403 403 200 403 403 403", "in 403 403 403 403 422 403 403 403"),
    "people:grant_group": Row("in 403 403 403 403 200 403 403 403", "in 403 403 403 403 422 403 403 403"),
    "people:take_back": Row("in 403 403 403 403 200 403 403 403", "in 403 403 403 403 422 403 403 403"),
    "people:join": Row("in 403 403 403 403 200 403 403 403", "in 403 403 403 403 422 403 403 403"),
    "people:leave": Row("in 403 403 403 403 200 403 403 403", "in 403 403 403 403 422 403 403 403"),
    "people:switch_off": Row("in 403 403 403 403 200 403 403 403", "in 403 403 403 403 422 403 403 403"),
    "people:switch_on": Row("in 403 403 403 403 200 403 403 403", "in 403 403 403 403 422 403 403 403"),
    "people:renew_link": Row("in 403 403 403 403 200 403 403 403", "in 403 403 403 403 422 403 403 403"),
    "requests:list": Row("in 403 200 200 200 200 200 200 200"),
    "requests:request": Row("in 403 200 200 200 200 200 200 404"),
    "requests:decide": Row("in 405 405 405 405 405 405 405 405", "in 403 403 403 403 422 403 403 404"),
    "requests:withdraw": Row("in 405 405 405 405 405 405 405 405", "in 403 403 403 403 403 403 403 404"),
    "audit:list": Row("in 403 403 403 403 200 403 403 403"),
    "audit:export": Row("in 403 403 403 403 200 403 403 403", "in 403 403 403 403 422 403 403 403"),
    "audit:chain": Row("in 403 403 403 403 200 403 403 403", "in 403 403 403 403 302 403 403 403"),
    "audit:change": Row("in 403 403 403 403 200 403 403 403"),
    "audit:run_chain": Row("in 403 200 200 200 200 200 200 404"),
    "audit:event": Row("in 403 403 403 403 200 403 403 403"),
    "runs:list": Row("in 403 200 200 200 200 200 200 200"),
    "runs:subject": Row("in 403 200 200 200 200 200 200 200"),
    "runs:start": Row("in 403 403 200 200 200 200 200 200"),
    "runs:start_workflow": Row("in 403 403 200 200 200 200 200 404", "in 403 403 422 422 422 422 422 404"),
    "runs:run": Row("in 403 200 200 200 200 200 200 404"),
    "runs:attempt": Row("in 403 200 200 200 200 200 200 404"),
    "runs:value": Row("in 403 403 200 200 200 403 200 404"),
    "runs:record_value": Row("in 403 403 200 200 200 403 200 404"),
    "runs:operation": Row("in 403 200 200 200 200 200 200 404"),
    "runs:operation_value": Row("in 403 403 200 200 200 403 200 404"),
    "runs:retry": Row("in 403 403 403 200 200 200 200 404", "in 403 403 403 422 422 422 422 404"),
    "runs:cancel": Row("in 403 403 403 200 200 200 200 404", "in 403 403 403 422 422 422 422 404"),
    "runs:force_resume": Row("in 403 403 403 200 200 200 200 404", "in 403 403 403 422 422 422 422 404"),
    "runs:kill": Row("in 403 403 403 403 200 403 200 404", "in 403 403 403 403 422 403 422 404"),
    "runs:fork": Row("in 403 403 403 200 200 200 200 404", "in 403 403 403 422 422 422 422 404"),
    "runs:skip": Row("in 403 403 403 200 200 200 200 404", "in 403 403 403 422 422 422 422 404"),
    "runs:edit_state": Row("in 403 403 403 200 200 403 200 404", "in 403 403 403 422 422 403 422 404"),
    "runs:prioritise": Row("in 403 403 403 200 200 200 200 404", "in 403 403 403 422 422 422 422 404"),
    "runs:compare": Row("in 403 200 200 200 200 200 200 404"),
    "runs:signal": Row("in 403 403 403 200 200 200 200 404", "in 403 403 403 422 422 422 422 404"),
    "runs:bundle": Row("in 405 405 405 405 405 405 405 405", "in 403 403 200 200 200 403 200 404"),
    "runs:answer_doubt": Row("in 403 403 200 200 200 200 200 404", "in 403 403 422 422 422 422 422 404"),
    "runs:evidence": Row("in 403 403 200 200 200 403 200 404"),
    "runs:declare_gone": Row("in 403 403 200 200 200 200 403 403", "in 403 403 422 422 422 422 403 403"),
    "runs:failures": Row("in 403 200 200 200 200 200 200 200"),
    "runs:failure": Row("in 403 200 200 200 200 200 200 404"),
    "runs:change_failure": Row("in 403 403 403 200 200 200 200 404", "in 403 403 403 422 422 422 422 404"),
    "runs:webhook": Row("405 405 405 405 405 405 405 405 405", "401 401 401 401 401 401 401 401 401"),
    "runs:limits": Row("in 403 200 200 200 200 200 200 200"),
    "runs:set_limit": Row("in 405 405 405 405 405 405 405 405", "in 403 403 403 403 400 403 400 404"),
    "runs:pause": Row("in 403 403 403 403 302 403 302 404", "in 403 403 403 403 302 403 302 404"),
    "runs:resume": Row("in 403 403 403 403 200 403 200 404", "in 403 403 403 403 422 403 422 404"),
    "runs:end_temporary": Row("in 403 403 403 403 302 403 302 404", "in 403 403 403 403 302 403 302 404"),
    "runs:revert": Row("in 403 403 403 403 200 403 200 404", "in 403 403 403 403 422 403 422 404"),
    "runs:sort_waiting": Row("in 403 403 403 403 200 403 200 404", "in 403 403 403 403 422 403 422 404"),
    "runs:limit": Row("in 403 200 200 200 200 200 200 404"),
    "runs:workers": Row("in 403 200 200 200 200 200 403 403"),
    "runs:ask_worker": Row("in 403 403 403 403 200 403 403 403", "in 403 403 403 403 422 403 403 403"),
    "runs:bulks": Row("in 403 200 200 200 200 200 200 200"),
    "runs:bulk_new": Row("in 403 403 403 200 200 200 200 200", "in 403 403 403 422 422 422 422 422"),
    "runs:bulk": Row("in 403 200 200 200 200 200 404 404"),
    "runs:bulk_start": Row("in 403 403 403 200 200 200 404 404", "in 403 403 403 422 422 422 404 404"),
    "runs:bulk_continue": Row("in 403 403 403 200 200 200 404 404", "in 403 403 403 422 422 422 404 404"),
    "runs:bulk_pause": Row("in 403 403 403 200 200 200 404 404", "in 403 403 403 409 409 409 404 404"),
    "runs:bulk_resume": Row("in 403 403 403 200 200 200 404 404", "in 403 403 403 422 422 422 404 404"),
    "runs:bulk_stop": Row("in 403 403 403 200 200 200 404 404", "in 403 403 403 302 302 302 404 404"),
    "look:parts": Row("in 200 200 200 200 200 200 200 200"),
    "look:form": Row("in 405 405 405 405 405 405 405 405", "in 422 422 422 422 422 422 422 422"),
    "look:tick": Row("in 200 200 200 200 200 200 200 200"),
    "look:error": Row("in 404 404 404 404 404 404 404 404"),
}
