"""Every address of the site, and a database in which each of them shows something."""

import json
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from django.conf import settings
from django.contrib.auth.models import Group, User
from django.db import connection
from django.http.response import HttpResponseBase
from django.urls import URLPattern, URLResolver, get_resolver, reverse
from django.utils.encoding import force_bytes
from django.utils.http import urlsafe_base64_encode

from agentops.models import SavedView
from agentops.people.services import links
from approvals.models import Answer, Approval, Comment, ItemKind, Question, Request
from runs import clock, codec
from runs.diagnosis import failures
from runs.models import (
    Attempt,
    AuditEvent,
    Bulk,
    BulkItem,
    Evidence,
    FailureGroup,
    Grant,
    LogLine,
    Message,
    Operation,
    Policy,
    Run,
    Signal,
    Worker,
)
from runs.models.failure import target_of
from runs.models.operation import Kind, OpStatus
from runs.states import Status
from tests import factories


@dataclass(frozen=True)
class Place:
    """One pattern of the site's addresses; `name` with its namespaces."""

    name: str
    parameters: tuple[str, ...]
    view: Callable[..., HttpResponseBase]


def places() -> list[Place]:
    """Every pattern, found by walking through all of them: a new page is attacked without being listed."""

    def walk(patterns: list[Any], namespaces: tuple[str, ...], outer: tuple[str, ...]) -> Iterator[Place]:
        for one in patterns:
            parameters = (*outer, *one.pattern.converters)
            if isinstance(one, URLResolver):
                inner = (*namespaces, one.namespace) if one.namespace else namespaces
                yield from walk(one.url_patterns, inner, parameters)
            else:
                assert isinstance(one, URLPattern) and one.name, f"{one.pattern} has no name"
                yield Place(":".join((*namespaces, one.name)), parameters, one.callback)

    return list(walk(get_resolver(settings.ROOT_URLCONF).url_patterns, (), ()))


PLACES = {place.name: place for place in places()}


@dataclass
class World:
    """Two runs with everything that belongs to a run, `text` in each field; the second is somebody else's business."""

    run: Run
    other: Run
    effect: Operation
    message: Message
    doubt: Operation
    approval: Approval
    worker: Worker
    failed: Run
    waiting: Run
    request: Request
    bulk: Bulk
    view: SavedView
    grant: Grant
    decided: Approval
    retrying: Run
    over: Request

    def url(self, name: str, **changes: Any) -> str:
        """The address of a page as it is for this world."""
        return self._url(name, self._arguments(), changes)

    def _arguments(self) -> dict[str, Any]:
        """What addresses name, for all of them at once: it takes several questions to the database."""
        return {
            "run_id": self.run.pk,
            "operation_id": self.effect.pk,
            "approval_id": self.approval.pk,
            "kind": "doubt",
            "item_id": self.doubt.run_id,
            "worker_id": self.worker.pk,
            "request_id": self.request.pk,
            "part": "messages",
            "row_id": self.message.pk,
            "visit": 1,
            "number": 1,
            "workflow": "parcel",
            "source": "shop",
            "scope": "workflow",
            "name": "parcel",
            "limit": "max_attempts",
            "change": AuditEvent.objects.filter(kind="limits_changed").values_list("pk", flat=True).last(),
            "status": 404,
            "fingerprint": Run.objects.values_list("fingerprint", flat=True).get(pk=self.run.pk),
            "bulk_id": self.bulk.pk,
            "view_id": self.view.pk,
            "user_id": self.grant.user_id,
            "group_id": Group.objects.order_by("-pk")[0].pk,
            "grant_id": self.grant.pk,
            "uidb64": urlsafe_base64_encode(force_bytes(self.grant.user_id)),
            "token": links.make_token(User.objects.get(grants=self.grant)),
            "evidence_id": Evidence.objects.filter(operation_id=self.effect.pk)
            .values_list("pk", flat=True)
            .get(),
        }

    def _url(self, name: str, arguments: dict[str, Any], changes: dict[str, Any]) -> str:
        what = {"what": "request" if "operation" in name else "state"}
        of_state: dict[str, dict[str, Any]] = {
            "policies:revert": {"scope": "tool", "name": "book_courier", "revision": 1},
            **{
                f"policies:{page}": {"scope": "tool", "name": "book_courier"}
                for page in ("policy", "edit", "tried", "clear", "reapply")
            },
            "runs:change_failure": {"what": "acknowledge"},
            "runs:ask_worker": {"what": "drain"},
            "runs:retry": {"run_id": self.failed.pk},
            "runs:cancel": {"run_id": self.waiting.pk},
            "runs:force_resume": {"run_id": self.waiting.pk},
            "runs:signal": {"run_id": self.waiting.pk},
            "runs:fork": {"run_id": self.failed.pk},
            "runs:skip": {"run_id": self.failed.pk},
            "runs:edit_state": {"run_id": self.failed.pk},
            "runs:kill": {"run_id": self.waiting.pk},
            "runs:prioritise": {"run_id": self.waiting.pk},
            "runs:answer_doubt": {"run_id": self.doubt.run_id, "operation_id": self.doubt.pk},
        }
        arguments = arguments | what | of_state.get(name, {}) | changes
        missing = set(PLACES[name].parameters) - set(arguments)
        assert not missing, f"say in tests/security/world.py what {missing} of {name} is"
        # This one page names what it shows behind the question mark.
        of_these = f"?id={self.approval.pk}" if name == "approvals:together" else ""
        return reverse(name, kwargs={each: arguments[each] for each in PLACES[name].parameters}) + of_these

    def pages(self) -> dict[str, str]:
        """The address of every page."""
        arguments = self._arguments()
        return {name: self._url(name, arguments, {}) for name in PLACES}


def world(text: str = "plain", payload: str | None = None) -> World:
    """`text` stands in every field that a person, an agent or a provider fills; `payload` in recorded values."""
    text = codec.clean_text(text)
    inner = text if payload is None else payload
    value = {inner: [inner, {"deep": inner}]}
    run, other = _run(text, value), _run(text, value)
    effect = _belongings(run, text, value)
    _belongings(other, text, value)
    doubt = factories.doubt(name=text, request=value)
    Run.objects.filter(pk=doubt.run_id).update(reason=text, subject=text)
    waiting = factories.run(Status.WAITING, subject=text, state=value)
    approval = factories.approval(
        waiting,
        arguments={"order": inner, "amount": inner} | ({} if text == "plain" else {inner: inner}),
        name="book_courier" if text == "plain" else text,
        why=text,
        title=text,
        schema={"type": "object"},
    )
    worker = factories.worker(beats=False, host=text[:200], code_version=text, gone_by=text)
    Policy.objects.create(
        scope="workflow", name="parcel", paused=True, pause_reason=text, changed_by=text, max_attempts=3
    )
    AuditEvent.objects.create(
        kind="limits_changed",
        target="workflow parcel",
        actor=text,
        reason=text,
        old={"max_attempts": None},
        new={"max_attempts": 3},
    )
    message = Message.objects.filter(run_id=run.pk).earliest("position")
    failed = factories.run(Status.FAILED)
    _failures(run, text, value)
    factories.approval_policy(changed_by=text)
    asked = factories.request(
        waiting,
        title=text or "asked",
        reason=text,
        requester_name=text or "somebody",
        facts={"subject": text},
    )
    factories.request_vote(asked, reason=text)
    view = SavedView.objects.create(
        user=factories.user(), page="runs:list", name=text or "view", query="status=failed"
    )
    return World(
        run,
        other,
        effect,
        message,
        doubt,
        approval,
        worker,
        failed,
        waiting,
        asked,
        _bulk(text, failed),
        view,
        _grant(text),
        _said(text, approval, doubt.run),
        _retrying(text),
        factories.request(
            title=text or "asked",
            reason=text,
            state="refused",
            in_favour=1,
            closed_by=text or "ada",
            closed_at=clock.now(),
            outcome=text,
        ),
    )


def _said(text: str, approval: Approval, doubtful: Run) -> Approval:
    """What people say of an approval and of an effect in doubt, what the agent answers, and an approval that was rejected."""
    factories.vote(approval, reason=text)
    for kind, item, run_id in (
        (ItemKind.APPROVAL, approval.pk, approval.run_id),
        (ItemKind.DOUBT, doubtful.pk, doubtful.pk),
    ):
        Comment.objects.create(kind=kind, item_id=item, run_id=run_id, text=text or "-", by=text)
    question = Question.objects.create(
        approval=approval, run_id=approval.run_id, number=1, version=1, text=text or "-", by=text
    )
    Answer.objects.create(question=question, run_id=approval.run_id, text=text, outcome="answered")
    Approval.objects.filter(pk=approval.pk).update(asked=1)
    decided = factories.approval(title=text or "asked")
    Approval.objects.filter(pk=decided.pk).update(
        state=Approval.State.REJECTED, decided_at=clock.now(), decided_by=text or "ada", reason=text
    )
    return decided


def _retrying(text: str) -> Run:
    """A run that backs off: its step has failed, and so has a tool."""
    made = factories.run(Status.RETRYING, subject=text)
    factories.attempt(made, error_type=text, error=text)
    factories.operation(made, status=OpStatus.RETRY, name=text, error_type=text, error=text, tries=1)
    return made


def _grant(text: str) -> Grant:
    """A person in a group, whose names and grants are `text`."""
    person = factories.user(first_name=text[:150], last_name=text[:150])
    group = Group.objects.create(name=text[:150] or "group")
    person.groups.add(group)
    Grant.objects.create(
        group=group, capability="view", scope="workflow", name=text or "parcel", granted_by=text
    )
    AuditEvent.objects.create(
        kind="capability_granted",
        target=f"person {person.username}",
        actor=text,
        reason=text,
        old={"grants": []},
        new={"grants": [text]},
    )
    return Grant.objects.create(
        user=person, capability="view", scope="subject", name=text or "order ", granted_by=text
    )


def _bulk(text: str, of: Run) -> Bulk:
    made = Bulk.objects.create(
        name=text or "bulk",
        reason=text or "because",
        verb="retry",
        filter={"step": text, "workflow": text},
        status="ready",
        said=text,
        started_by_name=text,
        acts_for_name=text,
        chosen=True,
        total=1,
        to_look=1,
        looked=1,
    )
    BulkItem.objects.create(bulk=made, place=1, run_id=of.pk, seen_version=of.event_seq, look=text, said=text)
    return made


def _failures(run: Run, text: str, value: Any) -> None:
    """Groups for the failed runs, with what people say of them, and a good run that did the same with other values."""
    failures.give_fingerprints()
    run.refresh_from_db()
    AuditEvent.objects.create(
        kind="failure_note",
        target=target_of(factories.fingerprint(run)),
        actor=text,
        reason=text,
        old=None,
        new=None,
    )
    FailureGroup.objects.filter(pk=factories.fingerprint(run)).update(changed_by=text, state="acknowledged")
    good = factories.run(Status.COMPLETED, subject=text)
    Attempt.objects.create(
        run_id=good.pk,
        step_seq=1,
        attempt_no=1,
        epoch=1,
        step=text,
        outcome="succeeded",
        started_at=clock.now(),
        ended_at=clock.now(),
    )
    factories.operation(good, Kind.QUERY, name=text, request=value, result=value)


def _run(text: str, value: Any) -> Run:
    made = factories.run(
        Status.FAILED,
        subject=text,
        start_key=f"{text} {uuid.uuid4()}",
        tenant=text,
        reason=text,
        state=value,
        external=value,
        result=value,
    )
    Run.objects.filter(pk=made.pk).update(started_by_name=text, step=text, queue=text, input=value)
    return made


def _belongings(run: Run, text: str, value: Any) -> Operation:
    now, common = clock.now(), {"run_id": run.pk, "step_seq": 1, "attempt_no": 1}
    Attempt.objects.create(
        **common,
        epoch=1,
        step=text,
        outcome="failed",
        started_at=now,
        ended_at=now,
        error_type=text,
        error=text,
        traceback=f'Traceback:\n  File "{text}", line 1, in {text}\n    {text}\n{text}',
        closed_by=text,
        state_after=value,
    )
    Message.objects.create(**common, position="1", role="user", content=value, digest="")
    Message.objects.create(**common, position="2", role=text, content=next(iter(value)), digest="")
    LogLine.objects.create(**common, position="1", level=text, text=text, data=value)
    Signal.objects.create(
        run_id=run.pk,
        name=text,
        correlation=text,
        source=text,
        external_id=str(run.pk),
        payload=value,
        digest="",
        sent_by=text,
        ignored=text,
    )
    factories.operation(run, Kind.QUERY, name=text, position=text, result=value)
    factories.operation(run, Kind.MODEL, name=text, request=value, response=value, result=value)
    effect = factories.operation(
        run,
        status=OpStatus.FAILED,
        name=text,
        provider_ref=text,
        error_type=text,
        error=text,
        request=value,
        approved=value,
        response=value,
        result=value,
        settled_by=text,
        correlation=text,
        compensate_with=text,
    )
    factories.evidence(effect, name=text, actor=text, body=text.encode() or b"-")
    return effect


def dump() -> str:
    """Every row of every table of the project, as one text."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT table_name FROM information_schema.tables WHERE table_schema = 'public' AND table_type = 'BASE TABLE'"
        )
        tables = sorted(name for (name,) in cursor.fetchall())
        lines = []
        for table in tables:
            cursor.execute(f'SELECT row_to_json(t)::text FROM "{table}" AS t')
            lines += [f"{table} {row}" for (row,) in cursor.fetchall()]
    return "\n".join(lines)


def rows(table: str) -> list[dict[str, Any]]:
    """The rows of one table, by column."""
    with connection.cursor() as cursor:
        cursor.execute(f'SELECT row_to_json(t)::text FROM "{table}" AS t')
        return [json.loads(row) for (row,) in cursor.fetchall()]
