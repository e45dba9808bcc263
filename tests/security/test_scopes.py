"""Who was given a part of the runs is told of no other: not in lists, numbers, searches, banners or the answers of verbs."""

from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from approvals import asking, services
from approvals.inbox import handling
from approvals.models import ItemKind
from runs.errors import NotAllowed
from runs.lifecycle import Actor
from runs.models import Grant, Run, Signal
from runs.models.run import new_id
from runs.services import fork, receive_signal, start
from runs.states import Status
from tests import factories
from tests.security.table import ROLES, browser
from tests.security.test_content import addresses
from tests.security.world import world

pytestmark = pytest.mark.django_db

#: Shared by all workflows, so that everybody who may see policies sees who changed it: that of a tool.
SHARED = {"policies:policy", "policies:tried", "policies:list"}


def granted(*grants: tuple[str, str, str]) -> User:
    user = factories.user()
    for capability, scope, name in grants:
        Grant.objects.create(user=user, capability=capability, scope=scope, name=name, granted_by="Ada")
    return user


def test_somebody_of_another_workflow_reads_nothing_of_this_one_anywhere() -> None:
    made = world("zanzibar")
    client = browser(ROLES["elsewhere"]())
    told = set()
    for name, url in addresses(made).items():
        # An error repeats the address that was asked for.
        said = client.get(url).content.decode().replace(url, "")
        if "zanzibar" in said or str(made.run.pk) in said:
            told.add(name)
    assert told - SHARED == set()


def test_somebody_of_this_workflow_reads_it() -> None:
    made = world("zanzibar")
    client = browser(ROLES["here"]())
    for name in ("home", "approvals:inbox", "runs:list", "runs:failures", "requests:list", "runs:limits"):
        assert b"zanzibar" in client.get(made.url(name)).content, name


def test_numbers_count_what_somebody_may_see() -> None:
    for workflow in ("parcel", "elsewhere"):
        for status in (Status.FAILED, Status.ATTENTION, Status.ATTENTION):
            factories.run(status, workflow=workflow)
    client = browser(ROLES["elsewhere"]())
    page = client.get("/runs/")
    needs = page.context["needs"]
    assert (needs.attention, needs.dead_letters) == (2, 1)
    assert [entry.count for entry in page.context["navigation"] if entry.entry.view == "runs:list"] == [2]


def test_a_search_finds_what_somebody_may_see_however_much_there_is_of_others(monkeypatch) -> None:
    monkeypatch.setattr("runs.search.LIMIT", 2)
    mine = factories.run(workflow="elsewhere", subject="order 7")
    others = [factories.run(subject="order 7") for _ in range(4)]
    client = browser(ROLES["elsewhere"]())
    html = client.get("/runs/", {"q": "order"}).content.decode()
    assert str(mine.pk) in html
    assert not [run for run in others if str(run.pk) in html]


def test_a_run_is_started_within_ones_part_only() -> None:
    actor = Actor.of(granted(("operate", "subject", "order 7")))
    given = {"order": "7", "amount": "1.00"}
    assert start(actor, "parcel", given).created
    with pytest.raises(NotAllowed, match="here"):
        start(actor, "parcel", given | {"order": "8"})
    with pytest.raises(NotAllowed, match="here"):
        start(actor, "parcel", given, subject="invoice 7")
    assert Run.objects.count() == 1


def test_a_fork_is_made_within_ones_part_only() -> None:
    source = factories.run(Status.FAILED, subject="order 7")
    actor = Actor.of(granted(("operate", "subject", "order 7"), ("payloads", "subject", "order 7")))
    with pytest.raises(NotAllowed, match="here"):
        fork(actor, source.pk, visit=1, input={"order": "8", "amount": "1.00"}, reason="other")
    assert Run.objects.count() == 1


def test_a_signal_is_sent_within_ones_part_only() -> None:
    actor = Actor.of(granted(("operate", "workflow", "elsewhere")))
    wait = factories.signal_wait(correlation="order-7")
    common: dict[str, Any] = {"name": "paid", "payload": {}, "source": "console"}
    with pytest.raises(NotAllowed, match="here"):
        receive_signal(actor, external_id="1", run_id=wait.run_id, **common)
    # Whichever run waits for the key, now or later.
    for key in ("order-7", "nobody-waits-for-this"):
        with pytest.raises(NotAllowed, match="here"):
            receive_signal(actor, external_id=key, correlation=key, **common)
    assert not Signal.objects.exists()
    # What became of a signal of others is told to those alone who could have sent it.
    receive_signal(factories.SYSTEM, external_id="9", run_id=wait.run_id, **common)
    with pytest.raises(NotAllowed, match="here"):
        receive_signal(actor, external_id="9", run_id=wait.run_id, **common)


def test_an_approval_is_decided_edited_and_asked_about_within_ones_part_only() -> None:
    approval = factories.approval()
    person = granted(("approve", "workflow", "elsewhere"))
    person.groups.add(*factories.user("", "operators").groups.all())
    operators = person.groups.get()
    operators.permissions.clear()
    actor = Actor.of(User.objects.get(pk=person.pk))
    shown: dict[str, Any] = {"version": 1, "digest": approval.digest}
    with pytest.raises(NotAllowed, match="here"):
        services.decide(actor, approval.pk, verdict="approve", **shown)
    with pytest.raises(NotAllowed, match="here"):
        services.edit(actor, approval.pk, version=1, arguments={"order": "7", "amount": "2.00"})
    with pytest.raises(NotAllowed, match="here"):
        asking.ask(actor, approval.pk, text="why?", token=new_id(), **shown)
    with pytest.raises(NotAllowed, match="here"):
        handling.claim(actor, ItemKind.APPROVAL, approval.pk)
    Grant.objects.create(user=person, capability="approve", scope="workflow", name="parcel", granted_by="Ada")
    actor = Actor.of(User.objects.get(pk=person.pk))
    assert handling.claim(actor, ItemKind.APPROVAL, approval.pk).changed
    assert services.decide(actor, approval.pk, verdict="approve", **shown).changed


def test_nobody_decides_on_what_they_may_not_see() -> None:
    approval = factories.approval()
    actor = factories.operator()
    assert isinstance(actor.user, User)
    actor.user.groups.get().permissions.filter(codename="view_payload").delete()
    with pytest.raises(NotAllowed, match="view payload"):
        services.decide(actor, approval.pk, version=1, digest=approval.digest, verdict="approve")


def test_an_item_is_assigned_to_those_whose_part_it_is_in(console: Client) -> None:
    run = factories.run(Status.FAILED)
    theirs = granted(("operate", "workflow", "parcel"))
    granted(("operate", "workflow", "elsewhere"))
    offered = handling.people_who_may(ItemKind.DEAD, run, None)
    assert theirs in offered
    assert {person.pk for person in offered} & set(
        Grant.objects.filter(name="elsewhere").values_list("user", flat=True)
    ) == set()
    assert handling.assign(Actor.of(theirs), ItemKind.DEAD, run.pk, to=theirs.pk).changed
