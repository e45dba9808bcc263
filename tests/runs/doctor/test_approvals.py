"""Each check of the approvals sees exactly what it is for."""

import json
from decimal import Decimal
from typing import Any

import pytest
from pytest_django import Settings

from approvals import doctor
from approvals.models import Approval, ApprovalVersion
from approvals.policies import policy
from approvals.services import decide
from runs import clock, codec
from runs.doctor import Finding
from runs.models import Operation
from runs.models.operation import Kind, OpStatus
from runs.states import Status
from tests import factories
from tests.runs.doctor.conftest import Look, execute, unguarded

pytestmark = pytest.mark.django_db

policy("doctor.two", votes=2, exclude_starter=True)
policy("doctor.silence", on_expiry="approve", sentence="Small, and undone at will.")

SENT = {"order": "1042", "amount": Decimal("10.00")}


def one(findings: list[Finding], severity: str = "error") -> str:
    """The sample of the only finding about one thing."""
    assert len(findings) == 1
    assert findings[0].severity == severity
    assert findings[0].count == 1
    assert findings[0].advice
    return findings[0].sample[0]


def decided(verdict: str = "approve", **options: Any) -> Approval:
    """An approval that operators have decided, vote by vote."""
    approval = factories.approval(**options)
    for _ in range(approval.requirement["votes"]):
        decide(
            factories.operator(),
            approval.pk,
            version=approval.version,
            digest=approval.digest,
            verdict=verdict,
            reason="because",
        )
    approval.refresh_from_db()
    return approval


def sent(approval: Approval, arguments: object = SENT, **fields: object) -> Operation:
    """The effect that an approval stands before, as it was sent."""
    gate = approval.operation
    Operation.objects.filter(pk=gate.pk).update(position="pay/approval")
    Approval.objects.filter(pk=approval.pk, state="approved").update(consumed_at=clock.now())
    encoded = codec.encode(arguments)
    return factories.operation(
        approval.run, Kind.EFFECT, OpStatus.DONE, position="pay", request=encoded, **fields
    )


def test_an_open_approval_of_a_settled_operation_is_found(look: Look):
    approval = factories.approval()
    factories.approval()
    decided()
    execute(
        "UPDATE runs_operation SET status = 'done', finished_at = now() WHERE id = %s", approval.operation_id
    )
    assert str(approval.pk) in one(look(doctor.approval_and_operation))


def test_a_decided_approval_of_an_open_operation_is_found(look: Look):
    approval = factories.approval()
    execute("UPDATE approvals_approval SET state = 'void', decided_at = now() WHERE id = %s", approval.pk)
    assert str(approval.pk) in one(look(doctor.approval_and_operation))


def test_an_operation_that_nobody_can_decide_is_found(look: Look):
    wait = factories.operation(factories.run(Status.WAITING), Kind.APPROVAL, OpStatus.OPEN)
    assert str(wait.pk) in one(look(doctor.approval_and_operation))


def test_a_yes_that_was_written_without_a_vote_is_found(look: Look):
    approval = factories.approval()
    decided()
    execute(
        "UPDATE approvals_approval SET state = 'approved', decided_by = 'boss', decided_at = now() WHERE id = %s",
        approval.pk,
    )
    assert f"{approval.pk} is approved by boss" in one(look(doctor.decided_without_votes))


def test_one_vote_where_two_are_required_is_found(look: Look):
    approval = decided(policy="doctor.two")
    assert look(doctor.decided_without_votes) == []
    with unguarded():
        execute(
            "DELETE FROM approvals_vote WHERE id = %s", approval.votes.order_by("id").values("id")[0]["id"]
        )
    assert str(approval.pk) in one(look(doctor.decided_without_votes))


def test_a_no_without_a_vote_is_found(look: Look):
    approval = decided("reject")
    assert look(doctor.decided_without_votes) == []
    with unguarded():
        execute("DELETE FROM approvals_vote WHERE approval_id = %s", approval.pk)
    assert str(approval.pk) in one(look(doctor.decided_without_votes))


def test_silence_that_counts_as_yes_against_the_policy_is_found(look: Look):
    approvals = [factories.approval(), factories.approval(policy="doctor.silence")]
    for approval in approvals:
        execute(
            "UPDATE approvals_approval SET state = 'approved', decided_by = 'clock', decided_at = now() WHERE id = %s",
            approval.pk,
        )
    assert str(approvals[0].pk) in one(look(doctor.decided_without_votes))


def test_a_vote_of_whoever_started_the_run_is_found(look: Look):
    starter = factories.operator("starter")
    decided(policy="doctor.two")
    run = factories.run(Status.WAITING, started_by=starter.user, started_by_name="starter")
    approval = factories.approval(run, policy="doctor.two")
    execute(
        "UPDATE approvals_approval SET requirement = requirement || '{\"excluded\": []}' WHERE id = %s",
        approval.pk,
    )
    decide(starter, approval.pk, version=1, digest=approval.digest, verdict="approve")
    execute(
        "UPDATE approvals_approval SET requirement = requirement || %s::jsonb WHERE id = %s",
        f'{{"excluded": [{{"id": {starter.id}, "name": "starter"}}]}}',
        approval.pk,
    )
    assert "by starter" in one(look(doctor.vote_by_excluded))


def test_a_vote_of_somebody_outside_the_groups_is_a_warning(look: Look):
    approval = decided()
    assert look(doctor.vote_outside_groups) == []
    voter = approval.votes.get().voter
    voter.groups.clear()
    assert voter.username in one(look(doctor.vote_outside_groups), "warning")


def test_a_vote_on_another_payload_than_the_version_holds_is_found(look: Look):
    approval = decided()
    assert look(doctor.vote_on_other_digest) == []
    with unguarded():
        execute("UPDATE approvals_vote SET digest = 'other' WHERE approval_id = %s", approval.pk)
    assert "vote of" in one(look(doctor.vote_on_other_digest))


def test_an_approval_that_names_another_payload_than_its_version_is_found(look: Look):
    approval = factories.approval()
    execute("UPDATE approvals_approval SET digest = 'other' WHERE id = %s", approval.pk)
    assert one(look(doctor.vote_on_other_digest)) == f"approval {approval.pk} version 1"


def test_a_vote_that_the_history_does_not_know_is_found(look: Look):
    approval = decided()
    decided("reject")
    assert look(doctor.vote_without_event) == []
    with unguarded():
        execute("DELETE FROM runs_event WHERE run_id = %s AND kind = 'vote'", approval.run_id)
    assert one(look(doctor.vote_without_event)) == f"approval {approval.pk}: vote without event"


def test_a_vote_that_vanished_is_found(look: Look):
    approval = decided()
    with unguarded():
        execute("DELETE FROM approvals_vote WHERE approval_id = %s", approval.pk)
    assert one(look(doctor.vote_without_event)) == f"approval {approval.pk}: event without vote"


def test_a_decision_that_was_taken_over_without_a_yes_is_found(look: Look):
    approval = decided("reject")
    execute("UPDATE approvals_approval SET consumed_at = now() WHERE id = %s", approval.pk)
    assert str(approval.pk) in one(look(doctor.consumed_not_approved))


def test_a_payload_that_was_changed_after_it_was_signed_is_found(look: Look):
    approval = factories.approval(
        arguments={"amount": 1e300, "text": "Zoë", "when": clock.now(), "nothing": -0.0}
    )
    assert look(doctor.payload_not_as_signed) == []
    with unguarded():
        execute(
            "UPDATE approvals_version SET payload = '{\"amount\": 1}' WHERE approval_id = %s", approval.pk
        )
    assert one(look(doctor.payload_not_as_signed)) == f"approval {approval.pk} version 1"


def test_payloads_that_an_earlier_secret_key_signed_are_known(look: Look, settings: Settings):
    factories.approval()
    settings.SECRET_KEY_FALLBACKS, settings.SECRET_KEY = [settings.SECRET_KEY], "another key " * 5
    assert look(doctor.payload_not_as_signed) == []
    settings.SECRET_KEY_FALLBACKS = []
    assert len(look(doctor.payload_not_as_signed)) == 1


def test_without_a_secret_key_nothing_is_verified(look: Look, settings: Settings):
    sent(decided(), {"order": "1"})
    settings.SECRET_KEY = ""
    assert look(doctor.payload_not_as_signed) == []
    assert look(doctor.executed_not_as_approved) == []


def test_an_effect_that_was_sent_as_approved_is_in_order(look: Look):
    sent(decided())
    edited = decided()
    payload = {"order": "1042", "amount": Decimal("9.00")}
    digest = codec.keyed_digest(codec.encode(payload))
    with unguarded():
        execute("UPDATE approvals_approval SET digest = %s WHERE id = %s", digest, edited.pk)
    sent(edited, approved=codec.encode(payload))
    assert look(doctor.executed_not_as_approved) == []
    assert ApprovalVersion.objects.count() == 2


def test_an_effect_that_was_sent_with_other_arguments_is_found(look: Look):
    effect = sent(decided(), {"order": "1042", "amount": Decimal("1000.00")})
    assert f"{effect.pk} ({effect.name}): other arguments" in one(look(doctor.executed_not_as_approved))


@pytest.mark.parametrize(
    "approval", [lambda: decided("reject"), factories.approval], ids=["rejected", "open"]
)
def test_an_effect_that_was_sent_without_a_yes_is_found(look: Look, approval):
    effect = sent(approval())
    assert str(effect.pk) in one(look(doctor.executed_not_as_approved))


def test_a_person_whom_the_requirement_names_votes_without_a_group(look: Look):
    olga = factories.user("olga")
    approval = decided()
    with unguarded():
        execute(
            "UPDATE approvals_approval SET requirement = requirement || %s::jsonb WHERE id = %s",
            json.dumps({"groups": ["admins"], "users": [{"id": olga.pk, "name": "olga"}]}),
            approval.pk,
        )
        execute("UPDATE approvals_vote SET voter_id = %s", olga.pk)
    assert look(doctor.vote_outside_groups) == []


def test_a_policy_that_asks_a_group_or_a_person_who_is_gone_is_found(look: Look):
    olga = factories.user("olga")
    rules = [
        {"groups": ["operators"], "users": [{"id": olga.pk, "name": "olga"}], "escalate_to": ["support"]}
    ]
    factories.approval_policy(rules=rules)
    assert look(doctor.policy_asks_nobody) == []
    olga.is_active = False
    olga.save()
    assert one(look(doctor.policy_asks_nobody), "warning") == "tool book_courier: olga"
    factories.approval_policy("workflow", "parcel", rules=[{"groups": ["gone"]}])
    assert len(look(doctor.policy_asks_nobody)[0].sample) == 2
