"""Policies made of data, as a real worker follows them."""

from datetime import timedelta
from typing import Any

import pytest

from approvals.models import Approval
from approvals.policies import effective, verbs
from approvals.services import decide
from runs import clock
from runs.lifecycle import Actor
from runs.models import Event, Operation, Run
from runs.services import force_resume, start
from runs.states import AttentionKind
from tests import factories
from tests.harness.waiting import wait_until
from tests.runs.engine.conftest import until
from tests.runs.engine.flows import world

pytestmark = pytest.mark.usefixtures("worker")


@pytest.fixture(autouse=True)
def fresh_world() -> None:
    world.__init__()  # type: ignore[misc]


def begin(workflow: str, n: int = 0) -> Run:
    return start(Actor("system"), workflow, {"n": n, "text": ""}).run


def setting(scope: str, name: str, **rule: Any) -> Actor:
    ada = factories.admin("ada")
    verbs.set_policy(ada, scope, name, rules=[{"groups": ["admins"], **rule}])
    return ada


def opened(run: Run) -> Approval:
    until(run, "waiting")
    return Approval.objects.get(run=run, state="open")


def approve(approval: Approval) -> None:
    by = factories.admin()
    decide(by, approval.pk, version=approval.version, digest=approval.digest, verdict="approve")


@pytest.mark.parametrize("scope", [("tool", "book"), ("workflow", "t_trip")])
def test_a_tool_that_its_code_leaves_open_is_asked_about_once_data_says_so(scope: tuple[str, str]) -> None:
    ada = setting(*scope, when='name == "hotel"')
    wait_until(lambda: effective.guarded.holds("book", "t_trip"), 5, "the worker hears of the policy")
    run = begin("t_trip")
    approval = opened(run)
    assert dict(world.ledger) == {"book flight": 1}
    # What is asked for stays asked for, whatever becomes of the policy.
    verbs.clear_policy(ada, *scope)
    wait_until(lambda: not effective.guarded.holds("book", "t_trip"), 5, "the worker hears that it is gone")
    approve(approval)
    wait_until(lambda: world.ledger["book hotel"] == 1, 10, "the hotel is booked")
    until(run, "waiting", also=lambda run: Operation.objects.filter(run=run, kind="signal").exists())
    assert dict(world.ledger) == {"book flight": 1, "book hotel": 1}


def test_people_are_reminded_and_then_the_run_is_left_to_them() -> None:
    setting("tool", "pay_approved", remind_every_s=3600, time_limit_s=5400, on_expiry="park")
    run = begin("t_guarded", 20)
    approval = opened(run)
    clock.shift(timedelta(hours=1))
    wait_until(
        lambda: Event.objects.filter(run_id=run.pk, kind="approval_reminded").exists(),
        10,
        "the reminder is there",
    )
    run = until(run, "waiting", also=lambda run: run.wake_at is not None and run.wake_at > clock.now())
    assert run.attempt_no == 1  # no attempt was spent on it
    clock.shift(timedelta(hours=1))
    run = until(run, "attention")
    assert run.attention_kind == AttentionKind.UNDECIDED
    assert "nobody decided" in run.reason
    approval.refresh_from_db()
    assert approval.state == "open" and not world.ledger
    approve(approval)
    assert until(run).result == "approved-1"
    assert world.seen == [20]


def test_a_parked_run_that_is_forced_on_waits_again_without_a_limit() -> None:
    setting("tool", "pay_approved", time_limit_s=60, on_expiry="park")
    run = begin("t_guarded", 20)
    approval = opened(run)
    clock.shift(timedelta(minutes=2))
    run = until(run, "attention")
    force_resume(factories.support(), run.pk)
    run = until(run, "waiting")
    assert run.wake_at is None
    approve(approval)
    assert until(run).result == "approved-1"
