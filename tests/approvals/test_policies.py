"""Policies made of data: which of them acts, what it asks for, and the verbs that change it."""

from datetime import timedelta
from decimal import Decimal
from typing import Any, cast

import pytest
from django.contrib.auth.models import Permission, User
from django.db import connection, transaction

from approvals import selectors, services, waits
from approvals.models import Approval, Policy, PolicyRevision, Vote
from approvals.policies import caught, declared, effective, verbs
from approvals.policies.effective import Call
from approvals.policies.expressions import compile_expression
from approvals.waits import ApprovalWait
from runs import clock, lifecycle
from runs import services as run_services
from runs.errors import Invalid, NotAllowed, NotFound, NotFresh, Stale
from runs.lifecycle import Actor
from runs.models import AuditEvent, Event, Operation, Run
from runs.models.operation import Kind, OpStatus
from runs.states import AttentionKind, Status
from tests import factories
from tests.races import Caller, wait_until_blocked

pytestmark = pytest.mark.django_db

WAIT = ApprovalWait()
STATE = Approval.State

declared.policy("data.small", groups=["operators"], when=lambda arguments: arguments["amount"] > 10)

BOTH: dict[str, Any] = {"groups": ["operators", "admins"]}
CALL = Call("data.small", "book_courier", "parcel")


def user_of(actor: Actor) -> User:
    return cast(User, actor.user)


def setting(scope: str = "tool", name: str = "book_courier", *rules: dict[str, Any], **more: Any) -> Policy:
    given = [{**BOTH, **rule} for rule in rules] or [BOTH]
    by = more.pop("by", None) or factories.admin()
    return verbs.set_policy(by, scope, name, rules=given, reason="because", **more)


def asked(amount: str = "10.00", policy: str = "data.small", run: Run | None = None) -> Approval:
    """An approval of a tool's call, as the engine opens it."""
    arguments = {"order": "1042", "amount": Decimal(amount)}
    return factories.approval(run, policy=policy, arguments=arguments, tool="book_courier")


def expire(run_id: Any) -> None:
    """What the claim does once the time of a look has come."""
    with transaction.atomic():
        run = lifecycle.lock_run(run_id)
        for wait in Operation.objects.select_for_update().filter(run=run, status=OpStatus.OPEN):
            WAIT.expire(run, wait)


# --- which policy acts ---------------------------------------------------------------------------------------------------


def test_the_code_decides_where_no_policy_is_made_of_data():
    assert effective.required(CALL, {"amount": 11})
    assert not effective.required(CALL, {"amount": 10})
    assert not effective.required(Call("", "book_courier", "parcel"), {"amount": 11})


def test_the_first_rule_that_holds_says_what_is_asked():
    setting(
        "tool",
        "book_courier",
        {"when": "amount > 1000", "votes": 2, "groups": ["admins"]},
        {"when": "amount > 100", "groups": ["operators"]},
    )
    assert not effective.required(CALL, {"amount": Decimal(100)})
    assert asked("100.01").requirement["groups"] == ["operators"]
    dear = asked("1000.01").requirement
    assert (dear["groups"], dear["votes"]) == (["admins"], 2)
    assert dear["policy"] == {"scope": "tool", "name": "book_courier", "revision": 1, "rule": 1}


def test_a_tool_has_the_last_word_before_the_policy_that_its_code_names():
    setting("policy", "data.small", {"when": "amount > 50"})
    assert not effective.required(CALL, {"amount": 20})
    setting("tool", "book_courier", {"when": "amount > 15"})
    assert effective.required(CALL, {"amount": 20})
    assert not effective.required(CALL, {"amount": 12})


def test_a_policy_of_a_workflow_adds_to_what_the_code_asks():
    setting("workflow", "parcel", {"when": "amount > 500", "groups": ["admins"]})
    assert effective.required(Call("", "print_label", "parcel"), {"amount": 501})
    assert effective.required(CALL, {"amount": 11})  # under the policy of its code
    assert not effective.required(Call("", "print_label", "parcel"), {"order": "1"})  # about other calls
    assert asked("501").requirement["groups"] == ["admins"]
    assert asked("11").requirement["groups"] == ["operators"]


def test_what_cannot_be_decided_asks_people_and_says_so():
    setting("tool", "book_courier", {"when": "amount > 10"})
    assert effective.required(CALL, {"amount": "20.00"})
    assert (
        "cannot compare"
        in factories.approval(
            policy="data.small", arguments={"amount": "20.00"}, tool="book_courier"
        ).requirement["problem"]
    )


def test_a_worker_hears_which_tools_and_workflows_are_guarded():
    guarded = effective.Guarded()
    guarded.refresh()
    assert not guarded.holds("book_courier", "parcel")
    setting("tool", "book_courier")
    setting("workflow", "parcel")
    verbs.clear_policy(factories.admin(), "workflow", "parcel")
    guarded.refresh()
    assert guarded.holds("book_courier", "other")
    assert not guarded.holds("print_label", "parcel")


def test_a_question_that_no_rule_is_about_is_decided_by_the_last_rule():
    setting("policy", "data.small", {"when": "amount > 500"}, {"when": "amount > 100", "groups": ["admins"]})
    assert factories.approval(policy="data.small", name="May I?").requirement["groups"] == ["admins"]


# --- who decides ---------------------------------------------------------------------------------------------------------


def vote(actor: Actor, approval: Approval, verdict: str = "approve", **more: Any) -> run_services.Done:
    approval.refresh_from_db()
    return services.decide(
        actor,
        approval.pk,
        version=approval.version,
        digest=approval.digest,
        verdict=verdict,
        reason="r",
        **more,
    )


def test_whoever_started_the_run_decides_only_where_the_policy_lets_them():
    starter = factories.operator("starter")
    run = factories.run(Status.WAITING, started_by=starter.user, started_by_name="starter")
    setting()
    with pytest.raises(NotAllowed, match="somebody else"):
        vote(starter, asked(run=run))
    setting("tool", "book_courier", {"exclude_starter": False})
    assert vote(starter, asked(run=run)).changed


def test_people_can_be_named_beside_or_instead_of_groups():
    olga, bert = factories.operator("olga"), factories.operator("bert")
    setting("tool", "book_courier", {"groups": [], "users": [{"id": olga.id, "name": "olga"}]})
    approval = asked()
    with pytest.raises(NotAllowed, match="only olga may decide"):
        vote(bert, approval)
    assert list(selectors.mine(user_of(olga))) == [approval]
    assert not selectors.mine(user_of(bert))
    assert vote(olga, approval).changed


def test_a_sign_in_that_is_too_old_or_unknown_decides_nothing():
    setting("tool", "book_courier", {"fresh_minutes": 10})
    approval, olga = asked(), factories.operator()
    now = clock.now()
    for when in (None, now - timedelta(minutes=11)):
        with pytest.raises(NotFresh, match="10 minutes"):
            vote(olga, approval, signed_in_at=when)
    assert not Vote.objects.exists()
    assert vote(olga, approval, signed_in_at=now - timedelta(minutes=9)).changed


# --- time ----------------------------------------------------------------------------------------------------------------


def test_people_are_reminded_until_the_time_limit():
    setting("tool", "book_courier", {"remind_every_s": 3600, "time_limit_s": 9000})
    approval = asked()
    start = clock.now()
    assert approval.operation.expires_at == approval.opened_at + timedelta(hours=1)
    clock.shift(timedelta(hours=1, seconds=1))
    expire(approval.run_id)
    approval.refresh_from_db()
    assert approval.state == STATE.OPEN and approval.reminded_at is not None
    assert Event.objects.filter(run_id=approval.run_id, kind="approval_reminded").count() == 1
    clock.shift(timedelta(hours=5))  # no worker looked meanwhile: the limit has passed
    wait = Operation.objects.get(pk=approval.operation_id)
    assert wait.expires_at == approval.reminded_at + timedelta(hours=1)
    expire(approval.run_id)
    approval.refresh_from_db()
    assert approval.state == STATE.EXPIRED
    assert clock.now() > start


def test_the_next_look_is_at_the_limit_where_no_reminder_comes_before_it():
    setting("tool", "book_courier", {"remind_every_s": 3600, "time_limit_s": 1800})
    approval = asked()
    assert approval.operation.expires_at == approval.expires_at


def test_silence_means_yes_only_with_a_sentence_which_history_keeps():
    with pytest.raises(Invalid, match="sentence"):
        setting("tool", "book_courier", {"on_expiry": "approve"})
    sentence = "Small, and the courier takes it back."
    setting("tool", "book_courier", {"on_expiry": "approve", "sentence": sentence})
    approval = asked()
    assert sentence in effective.afterwards(approval.requirement)
    expire(approval.run_id)
    approval.refresh_from_db()
    assert (approval.state, approval.decided_by) == (STATE.APPROVED, "clock")
    assert WAIT.confirm(approval.operation, 1)
    assert sentence in Event.objects.get(run_id=approval.run_id, kind="approval_decided").reason


def test_a_policy_can_escalate_and_then_leave_the_run_to_people():
    setting("tool", "book_courier", {"escalate_to": ["support"], "on_expiry": "park", "groups": ["admins"]})
    run = factories.run(Status.ATTENTION, attention_kind=AttentionKind.UNDECIDED, reason="nobody decided")
    approval = asked(run=run)
    expire(approval.run_id)
    approval.refresh_from_db()
    assert approval.requirement["groups"] == ["admins", "support"]
    expire(approval.run_id)
    approval.refresh_from_db()
    assert approval.state == STATE.OPEN and approval.expires_at is None
    assert approval.requirement["parked"]
    vote(factories.admin(), approval)
    run.refresh_from_db()
    assert run.status == Status.QUEUED  # a worker looks, and takes the decision over


# --- change --------------------------------------------------------------------------------------------------------------


def test_each_change_is_a_revision_with_its_author_and_an_audit_event():
    ada = factories.admin("ada")
    setting("tool", "book_courier", {"votes": 2}, by=ada)
    verbs.clear_policy(ada, "tool", "book_courier", seen_revision=1, reason="no more")
    policy = verbs.revert_policy(ada, "tool", "book_courier", 1, seen_revision=2, reason="after all")
    assert (policy.active, policy.revision, policy.rules[0]["votes"]) == (True, 3, 2)
    told = list(PolicyRevision.objects.order_by("revision").values_list("revision", "active", "by", "reason"))
    assert told == [
        (1, True, "ada", "because"),
        (2, False, "ada", "no more"),
        (3, True, "ada", "after all"),
    ]
    kinds = list(AuditEvent.objects.order_by("id").values_list("kind", flat=True))
    assert kinds == ["approval_policy_set", "approval_policy_cleared", "approval_policy_reverted"]


def test_revisions_cannot_be_rewritten():
    setting()
    with pytest.raises(Exception, match="append-only"), transaction.atomic():
        PolicyRevision.objects.update(by="somebody else")


@pytest.mark.parametrize("who", [factories.operator, factories.support, factories.stranger])
def test_a_wrong_role_changes_no_policy(who):
    setting()
    person = who()
    for change in (
        lambda: setting(by=person),
        lambda: verbs.clear_policy(person, "tool", "book_courier"),
        lambda: verbs.revert_policy(person, "tool", "book_courier", 1),
        lambda: verbs.reapply(person, "tool", "book_courier"),
    ):
        with pytest.raises(NotAllowed):
            change()
    assert Policy.objects.get().revision == 1


def test_a_stale_page_changes_nothing_and_the_same_form_sent_twice_is_one_change():
    ada, bea = factories.admin("ada"), factories.admin("bea")
    setting("tool", "book_courier", {"votes": 2}, by=ada, seen_revision=0)
    again = setting("tool", "book_courier", {"votes": 2}, by=ada, seen_revision=0)
    assert again.revision == 1
    with pytest.raises(Stale, match="ada"):
        setting("tool", "book_courier", {"votes": 3}, by=bea, seen_revision=0)
    with pytest.raises(Stale):
        verbs.clear_policy(bea, "tool", "book_courier", seen_revision=0)
    assert Policy.objects.get().rules[0]["votes"] == 2


@pytest.mark.django_db(transaction=True)
def test_of_two_first_policies_at_one_instant_the_second_is_told():
    ada, bea = factories.admin("ada"), factories.admin("bea")
    with transaction.atomic():
        setting("tool", "book_courier", {"votes": 2}, by=ada, seen_revision=0)
        second = Caller(lambda: setting("tool", "book_courier", {"votes": 3}, by=bea, seen_revision=0))
        wait_until_blocked(1)
    assert isinstance(second.join().error, Stale)
    assert PolicyRevision.objects.count() == 1


@pytest.mark.parametrize(
    ("rule", "says"),
    [
        ({"when": "amount >"}, "at character 9"),
        ({"when": "amuont > 5"}, "no field “amuont”.*order, amount"),
        ({"groups": []}, "say who decides"),
        ({"groups": ["nobodies"]}, "no group nobodies"),
        ({"votes": 0}, "votes"),
        ({"escalate_to": ["admins"], "time_limit_s": None}, "ever escalated"),
        ({"remind_every_s": 5}, "remind every s"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_what_is_no_rule_is_refused(rule, says):
    with pytest.raises(Invalid, match=says):
        setting("tool", "book_courier", rule)


def test_a_policy_is_about_something_that_exists_and_has_a_rule():
    with pytest.raises(NotFound):
        setting("tool", "no_such_tool")
    with pytest.raises(Invalid, match="at least one rule"):
        verbs.set_policy(factories.admin(), "tool", "book_courier", rules=[])


def test_votes_that_nobody_could_give_are_pointed_out():
    factories.operator()
    rules = verbs.made([{"groups": ["operators"], "votes": 2}], "tool", "book_courier")
    assert "only 1 person is there" in verbs.too_few(rules)[0]


# --- what is open --------------------------------------------------------------------------------------------------------


def test_open_approvals_keep_what_they_ask_for_until_the_policy_is_applied_to_them():
    setting("tool", "book_courier", {"votes": 2})
    approval, ann = asked(), factories.operator("ann")
    vote(ann, approval)
    setting("tool", "book_courier", {"votes": 1, "groups": ["admins"]})
    preview = verbs.preview_reapply("tool", "book_courier")
    assert "1 open approval asks" in preview.sentence and preview.votes_lost == 1
    approval.refresh_from_db()
    assert approval.requirement["votes"] == 2
    done = verbs.reapply(factories.admin("ada"), "tool", "book_courier", seen_revision=2, reason="new rule")
    assert len(done.changed) == 1
    approval.refresh_from_db()
    assert (approval.version, approval.requirement["groups"]) == (2, ["admins"])
    with pytest.raises(NotAllowed):
        vote(ann, approval)
    assert waits.approvals_so_far(approval) == 0  # her vote was on what was asked before
    run = Run.objects.get(pk=approval.run_id)
    assert run.wake_at is not None and run.wake_at <= clock.now()
    assert Event.objects.filter(run_id=run.pk, kind="approval_policy_applied").count() == 1
    assert not verbs.reapply(factories.admin(), "tool", "book_courier").changed


def test_applying_from_a_stale_page_changes_nothing():
    setting()
    approval = asked()
    setting("tool", "book_courier", {"votes": 2})
    with pytest.raises(Stale):
        verbs.reapply(factories.admin(), "tool", "book_courier", seen_revision=1)
    approval.refresh_from_db()
    assert approval.version == 1


# --- which of the last 100? ------------------------------------------------------------------------------------------------


def test_an_expression_is_tried_on_the_newest_calls():
    asked("50.00")
    for amount in ("5.00", "500.00"):
        factories.operation(
            factories.run(),
            Kind.EFFECT,
            OpStatus.DONE,
            request={"amount": {"$agentops": "decimal", "v": amount}},
        )
    olga = user_of(factories.operator())
    trial = caught.try_expression(olga, "tool", "book_courier", compile_expression("amount > 40"))
    assert (len(trial.cases), trial.caught, trial.asked) == (3, 2, 1)
    assert (
        trial.sentence == "It would have caught 2 of the last 3 calls; people were asked about 1 at the time."
    )
    assert caught.try_expression(olga, "workflow", "parcel", None).caught == 3


def test_an_effect_that_people_were_asked_about_is_one_call():
    approval = asked()
    wait = approval.operation
    Operation.objects.filter(pk=wait.pk).update(position="x/approval")
    factories.operation(approval.run, position="x", request={"amount": 5})
    assert len(caught.try_expression(user_of(factories.operator()), "tool", "book_courier", None).cases) == 1


def test_nobody_learns_from_an_expression_what_they_may_not_read():
    asked("50.00")
    blind = user_of(factories.operator())
    blind.groups.get().permissions.remove(Permission.objects.get(codename="view_payload"))
    trial = caught.try_expression(blind, "tool", "book_courier", compile_expression("amount > 40"))
    assert (trial.cases, trial.hidden) == ([], 1)


def test_what_an_expression_cannot_decide_would_be_asked_about():
    asked("50.00")
    trial = caught.try_expression(
        user_of(factories.operator()), "tool", "book_courier", compile_expression("order > 5")
    )
    assert (trial.caught, trial.undecided) == (1, 1)


def test_looking_for_calls_reads_the_newest_rows_by_their_key():
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL enable_seqscan = off")
        cursor.execute(
            "EXPLAIN SELECT a.id FROM (SELECT * FROM runs_operation ORDER BY id DESC LIMIT 20000) AS a"
            " JOIN runs_run r ON r.id = a.run_id WHERE a.kind = 'effect' AND a.name = ANY('{x}') ORDER BY a.id DESC LIMIT 100"
        )
        plan = "\n".join(line for (line,) in cursor.fetchall())
    assert "runs_operation_pkey" in plan
