"""Content is on no page, in no part of a page and in no export of who may not see it; each field of it, by its own mark."""

import re
from collections.abc import Iterable, Iterator

import pytest
from django.apps import apps
from django.contrib.auth.models import Permission, User
from django.db import connection
from django.db.models import BinaryField, JSONField, Model
from django.test import Client

from runs import content
from runs.models import Grant
from runs.states import Status
from tests import factories
from tests.security.world import World, world

pytestmark = pytest.mark.django_db

#: Of the models that hold content, the fields that are none: whoever sees the run sees them. A new field is in one of the two.
OPEN: dict[str, str] = {
    "runs.run": "id workflow version queue priority subject tenant start_key started_by_id started_by_name created_at "
    "deadline_at parent_id parent_operation_id child_index depth forked_from forked_visit input_digest "
    "step step_seq attempt_no status epoch wake_at visit_started_at attempt_started_at failures crashes "
    "lone_crashes event_seq event_head sort_at worker_id held_by held_key held_sort compensating "
    "resume_step cancel_requested_at cancel_requested_by attention_kind failure_kind fingerprint "
    "finished_at",
    "runs.attempt": "run_id step_seq attempt_no epoch step outcome worker_id started_at ended_at error_type retry_at "
    "closed_by",
    "runs.operation": "id run_id step_seq position ordinal attempt_no kind name forgotten args_digest status error_type "
    "provider_key provider_ref generation tries looks intent_epoch intent_worker_id intent_at "
    "first_sent_at call_ended_at earlier_send_open settled_by earlier_sends expires_at correlation "
    "children children_wanted rest compensates copied_from compensate_with started_at finished_at",
    "runs.message": "id run_id step_seq position attempt_no role digest created_at",
    "runs.logline": "id run_id step_seq position attempt_no level created_at",
    "runs.signal": "id run_id name correlation source external_id digest received_at sent_by consumed_by consumed_at "
    "ignored",
    "runs.event": "run_id seq at kind actor_id actor head",
    "runs.evidence": "id run_id operation_id sha256 actor_id actor created_at",
    "runs.failuregroup": "fingerprint signature sort workflow version step error_type first_at last_at state fixed_in "
    "changed_at changed_by revision",
    "runs.auditevent": "id at kind target actor_user_id actor old new",
    "approvals.approval": "id run_id operation_id subject name policy requirement state version digest opened_at expires_at "
    "decided_at decided_by consumed_at reminded_at answers asked",
    "approvals.approvalversion": "id approval_id version digest by by_user_id at",
    "approvals.vote": "id approval_id version digest verdict voter_id voter_name at",
    "approvals.comment": "id kind item_id run_id by by_user_id at",
    "approvals.question": "id approval_id run_id number version by by_user_id at",
    "approvals.answer": "question_id run_id outcome at",
    "approvals.request": "id verb function target run_id title digest sent_digest requirement votes in_favour requester_id "
    "requester_name state opened_at escalates_at expires_at closed_at closed_by",
    "approvals.requestvote": "id request_id requester_id digest verdict voter_id voter_name at",
}
#: Fields of content that no page shows to anybody.
NOWHERE = {"approvals.approval.schema", "approvals.request.facts"}
#: Not pages, but sent in answer to a form.
SENT = {"runs:bundle", "audit:export"}


def mark(label: str, field: str) -> str:
    return f"mark-{label}-{field}-".replace(".", "-").replace("_", "-") + "x"


def models() -> Iterator[tuple[str, type[Model], Iterable[str]]]:
    for label, fields in content.CONTENT.items():
        model = apps.get_model(label)
        yield label, model, fields & {one.attname for one in model._meta.concrete_fields}


def fill() -> None:
    """Put its mark into every field of content of every row, past what guards the tables."""
    with connection.cursor() as cursor:
        cursor.execute("SET session_replication_role = replica")
        for label, model, fields in models():
            for name in fields:
                (field,) = (one for one in model._meta.concrete_fields if one.attname == name)
                where = " WHERE kind LIKE 'failure%%'" if label == "runs.auditevent" else ""
                said = mark(label, name)
                if isinstance(field, JSONField):
                    value, cast = f'{{"{said}": "{said}"}}', "jsonb"
                elif isinstance(field, BinaryField):
                    value, cast = "\\x" + said.encode().hex(), "bytea"
                else:
                    value, cast = said, "text"
                cursor.execute(
                    f'UPDATE "{model._meta.db_table}" SET "{field.column}" = %s::{cast}{where}',
                    [value],
                )
        cursor.execute("SET session_replication_role = DEFAULT")


def addresses(made: World) -> dict[str, str]:
    """Every page, the parts of a run's record, and the lists as they are narrowed."""
    run = f"/runs/{made.run.pk}/"
    more = {
        f"part {part}": f"{run}?part={part}" for part in ("messages", "logs", "values", "signals", "events")
    }
    more |= {f"run {name}": f"/runs/{getattr(made, name).pk}/" for name in ("failed", "waiting", "retrying")}
    more |= {f"inbox {show}": f"/approvals/?show={show}" for show in ("mine", "others", "decided")}
    more |= {
        f"item {kind}": f"/approvals/items/{kind}/{run_id}/"
        for kind, run_id in (("doubt", made.doubt.run_id), ("dead", made.failed.pk))
    }
    more["an approval that was decided"] = made.url("approvals:approval", approval_id=made.decided.pk)
    more["a request that is over"] = made.url("requests:request", request_id=made.over.pk)
    return made.pages() | more


def told(client: Client, urls: dict[str, str], *, forms: bool = True) -> dict[str, set[str]]:
    """By mark, the pages that tell it: shown, polled, or sent in answer to an empty form."""
    marks = re.compile("|".join(mark(label, name) for label, _, fields in models() for name in fields))
    found: dict[str, set[str]] = {}
    for name, url in urls.items():
        if name in ("logout", "runs:webhook"):
            continue
        answers = [client.get(url)]
        if forms and not answers[0].streaming and b"hx-get" in answers[0].content:
            answers.append(client.get(url, headers={"HX-Request": "true"}))
        if forms or name in SENT:
            answers.append(client.post(url, {}))
        for answer in answers:
            assert answer.status_code < 500, (name, answer.status_code)
            body = b"".join(answer) if answer.streaming else answer.content
            for one in marks.findall(body.decode()):
                found.setdefault(one, set()).add(name)
    return found


def browser(user: User) -> Client:
    made = Client()
    made.force_login(user)
    return made


def blind() -> User:
    """Everything but content."""
    person = factories.user("blind")
    person.user_permissions.set(Permission.objects.exclude(codename="view_payload"))
    return person


def blind_here() -> User:
    """Everything, and content of another workflow only."""
    person = blind()
    Grant.objects.create(
        user=person, capability="payloads", scope="workflow", name="elsewhere", granted_by="Ada"
    )
    return person


def test_who_may_not_see_content_reads_none_of_it_anywhere(console: Client) -> None:
    made = world()
    fill()
    urls = addresses(made)
    wanted = {
        mark(label, name)
        for label, _, fields in models()
        for name in fields
        if f"{label}.{name}" not in NOWHERE
    }
    assert wanted - set(told(console, urls, forms=False)) == set()
    client = browser(blind())
    assert told(client, urls) == {}
    # What they look for is not found in what they may not read.
    for url in ("/runs/", "/bulk/new/"):
        by_error = {"q": mark("runs.run", "reason"), "status": "failed"}
        assert str(made.run.pk) in console.get(url, by_error).content.decode()
        assert str(made.run.pk) not in client.get(url, by_error).content.decode()


def test_who_may_see_content_of_another_workflow_reads_none_of_this_one() -> None:
    made = world()
    fill()
    run = f"/runs/{made.run.pk}/"
    narrowed = {
        name: url
        for name, url in addresses(made).items()
        if url.startswith(run) or "list" in name or name == "home"
    }
    assert told(browser(blind_here()), narrowed) == {}


def test_a_row_without_its_content_is_never_saved() -> None:
    run = factories.run(Status.FAILED)
    hidden = content.shown(blind(), run)
    assert (hidden.reason, hidden.status) == (content.HIDDEN, run.status)
    assert run.reason != content.HIDDEN
    with pytest.raises(TypeError):
        hidden.save()


def test_every_field_of_a_model_with_content_is_content_or_is_open() -> None:
    for label, model, _ in models():
        known = content.CONTENT[label] | set(OPEN[label].split())
        fields = {one.attname for one in model._meta.concrete_fields}
        # The sealed form of a value is read by nobody but the engine.
        assert {name for name in fields if not name.endswith("_sealed")} - known == set(), label
