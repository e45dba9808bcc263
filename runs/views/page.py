"""The page of one run, and those of one attempt, one operation and one recorded value."""

import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.contrib.auth.models import AnonymousUser, User
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, render
from django.template.loader import render_to_string
from django.urls import reverse
from django.utils.safestring import SafeString
from django.views.decorators.http import require_safe

from agentops.console.polling import is_poll, unchanged
from agentops.console.waterfall import waterfall
from runs import access, blobs, clock, codec, content, history, selectors, waits
from runs.kin import offspring, relatives
from runs.models import Attempt, Evidence, LogLine, Message, Operation, Run, Signal
from runs.models.operation import WAIT_KINDS, Kind
from runs.pages import acts, attempts, limit_page, operations, reasons, timeline
from runs.pages.sentences import headline
from runs.services.doubt import gets_no_key
from runs.states import AttentionKind, Status, sources_of

PARTS = {
    "messages": "Messages",
    "logs": "Log",
    "values": "State",
    "signals": "Signals",
    "events": "Events",
}


@require_safe
@access.required("runs.view_run")
def run(request: HttpRequest, run_id: uuid.UUID) -> HttpResponse:
    """One run; all of it is one region, polled until the run is finished."""
    access.check_visible(request.user, run_id)
    try:
        version = selectors.version(run_id)
        # The version is read first: what changes while the page is made comes with the next poll.
        response = unchanged(request, version.tag) or render(
            request,
            "runs/run.html#run" if is_poll(request) else "runs/run.html",
            context(request, run_id, version),
        )
    except Run.DoesNotExist:
        raise Http404 from None
    response.headers["HX-PTag"] = version.tag
    return response


def context(request: HttpRequest, run_id: uuid.UUID, version: selectors.Version) -> dict[str, Any]:
    """What the page of a run shows. Raises Run.DoesNotExist."""
    before = selectors.Place.parse(request.GET.get("before", ""))
    part = request.GET.get("part", "")
    if part not in PARTS:
        part = "messages" if version.messages else "events"
    beside = {**acts.beside(request.user, before), **relatives.beside(request.user)}
    found = selectors.detail(run_id, request.user, part=part, before=before, beside=beside)
    limit_page.keep_for(request, found.overrides)
    seen = access.may_see_payloads(request.user, found.run)
    kin = _children(request, run_id, version)
    polled = not found.run.is_terminal and before is None
    return {
        **head(request, found.run, found.why, found.operations),
        "now": found.now,
        "detail": found,
        "version": version,
        "children": kin,
        "fall": _fall(found, newest=before is None, seen=seen),
        "acts_cut": len(found.run.acts) == acts.ACTS,  # type: ignore[attr-defined]
        "before": before,
        "operations": [_line(found.run, operation) for operation in found.operations],
        "limit": found.limit,
        "part": part,
        "parts": [(name, label, getattr(version, name, None)) for name, label in PARTS.items()],
        "record_rows": list(reversed(found.record)) if part == "messages" else found.record,
        "values": _values(run_id) if part == "values" and seen else None,
        "may_see_payloads": seen,
        "polled": polled,
        "ptag": version.tag,
    }


def _children(
    request: HttpRequest, run_id: uuid.UUID, version: selectors.Version
) -> offspring.Children | None:
    if not version.children:
        return None
    after = request.GET.get("after", "")
    try:
        place = uuid.UUID(after) if after else None
    except ValueError:
        place = None
    return offspring.children(
        request.user, run_id, version, status=request.GET.get("children", ""), after=place
    )


def head(
    request: HttpRequest, run: Run, why: reasons.Why | None = None, operations: Sequence[Operation] = ()
) -> dict[str, Any]:
    """What every page of a run begins with. `why`, where it is known already, is that of the run as this person sees it."""
    run = content.shown(request.user, run)
    why = reasons.why(run, request.user) if why is None else why
    return {
        "run": run,
        "why": why,
        "headline": headline(run, why),
        "verbs": verbs_for(request.user, run, operations),
    }


@dataclass(frozen=True)
class Link:
    """A verb that this person may use on this run now."""

    url: str
    label: str
    primary: bool = False
    danger: bool = False


def verbs_for(user: User | AnonymousUser, run: Run, operations: Sequence[Operation]) -> list[Link]:
    """The verbs that this person may use on the run as it is, the one that helps most first."""

    def url(name: str) -> str:
        return reverse(f"runs:{name}", args=[run.pk])

    doubtful = run.status == Status.ATTENTION and run.attention_kind == AttentionKind.IN_DOUBT
    links: list[Link] = []
    if doubtful and access.may(user, "runs.resolve_doubt", run):
        first = next((one for one in operations if timeline.in_doubt(run, one)), None)
        answer = reverse("runs:answer_doubt", args=[run.pk, first.pk]) if first else "#operations"
        links.append(Link(answer, "Resolve in doubt", primary=True))
    if run.status == Status.FAILED and access.may(user, "runs.retry_run", run):
        links.append(Link(url("retry"), "Retry", primary=True))
    if run.status == Status.RETRYING and access.may(user, "runs.retry_run", run):
        links.append(Link(url("retry"), "Retry now", primary=True))
    if not (run.is_terminal or doubtful) and access.may(user, "runs.force_resume_run", run):
        links.append(Link(url("force_resume"), "Force resume", primary=run.status == Status.ATTENTION))
    if not run.is_terminal and access.may(user, "runs.signal_run", run):
        links.append(Link(url("signal"), "Send a signal"))
    still = run.status in sources_of("edit_state") and not (doubtful or run.compensating)
    if still and access.may(user, "runs.skip_step", run):
        links.append(Link(url("skip"), "Skip the step"))
    if still and access.may(user, "runs.edit_state", run) and access.may_see_payloads(user, run):
        links.append(Link(url("edit_state"), "Edit the state"))
    if (run.is_terminal or (still and run.status == Status.ATTENTION)) and access.may(
        user, "runs.fork_run", run
    ):
        links.append(Link(url("fork"), "Fork"))
    if not (run.is_terminal or run.status == Status.RUNNING) and access.may(user, "runs.bulk", run):
        links.append(Link(url("prioritise"), "Change the priority"))
    if not (run.is_terminal or run.cancel_requested_at) and access.may(user, "runs.cancel_run", run):
        links.append(Link(url("cancel"), "Cancel", danger=True))
    # Where a cancel does not end it. Before that the page of the cancel is the way.
    if not run.is_terminal and run.cancel_requested_at and access.may(user, "runs.kill_run", run):
        links.append(Link(url("kill"), "Kill", danger=True))
    return links


@dataclass(frozen=True)
class Line:
    """An operation in the table of a run."""

    operation: Operation
    badge: str
    """Kind under which `status` has its badge."""
    status: str
    seconds: float | None
    url: str
    """Where a wait can be settled, if a page for that is known."""

    @property
    def name(self) -> str:
        return self.operation.name or self.operation.kind

    @property
    def no_key(self) -> bool:
        """Whether its key is of no use at the provider, which was never told it."""
        return self.operation.kind == Kind.EFFECT and gets_no_key(self.operation)


def _line(run: Run, operation: Operation) -> Line:
    end = operation.finished_at or operation.call_ended_at
    badge, status = timeline.shown_status(run, operation)
    return Line(
        operation,
        badge,
        status,
        (end - operation.started_at).total_seconds() if end else None,
        _url_of_wait(operation),
    )


def _url_of_wait(operation: Operation) -> str:
    return waits.kind(operation.kind).describe(operation).url if operation.kind in WAIT_KINDS else ""


def _fall(found: selectors.RunDetail, *, newest: bool, seen: bool) -> Any:
    run = found.run
    since = found.attempts[-1].started_at if found.earlier else None
    tools = {one.name for one in found.operations if one.kind not in WAIT_KINDS}
    drawn = timeline.lanes(
        run,
        found.attempts,
        found.operations,
        newest=newest,
        details=lambda attempt: _details(found, attempt, seen),
        acts=acts.of_run(run, since=since, tools=tools, seen=seen),
        link=_page_of,
        now_at=reverse("runs:attempt", args=[run.pk, run.step_seq, run.attempt_no]),
    )
    return waterfall(drawn, now=found.now)


def _page_of(operation: Operation) -> str:
    """The page of an operation; of an approval the one where it is, or was, decided."""
    own = reverse("runs:operation", args=[operation.run_id, operation.pk])
    return (_url_of_wait(operation) if operation.kind == Kind.APPROVAL else "") or own


def _details(found: selectors.RunDetail, attempt: Attempt, seen: bool) -> SafeString:
    context = {"attempt": attempt, "now": found.now, "run": found.run, "may_see_payloads": seen}
    return render_to_string("runs/attempt_details.html", context)


def _values(run_id: uuid.UUID) -> Mapping[str, Any]:
    return Run.objects.values("input", "state", "result", "external").get(pk=run_id)


# --- one attempt, one operation, one value -----------------------------------------------------------------------------


@require_safe
@access.required("runs.view_run")
def attempt(request: HttpRequest, run_id: uuid.UUID, visit: int, number: int) -> HttpResponse:
    """One attempt: how it ended, what it was given, did, said and logged; also the one that goes on at this moment."""
    run = access.run_or_404(request.user, run_id, rows=Run.objects.annotate(read_at=clock.Now()))
    found = attempts.find(run, visit, number)
    if found is None:
        raise Http404
    run, one = content.shown(request.user, run), content.shown(request.user, found, run)
    seen = access.may_see_payloads(request.user, run)
    done = content.like(run, attempts.operations(one))
    said = content.like(run, attempts.messages(one))
    try:
        after = uuid.UUID(request.GET.get("after", ""))
    except ValueError:
        after = None
    lines, more = attempts.lines(one, after)
    return render(
        request,
        "runs/attempt.html",
        {
            "run": run,
            "attempt": one,
            "opening": attempts.opening(run, one, done, seen=seen),
            **(_states(one) if seen else {}),
            "logs": content.like(run, lines),
            "more_logs": more,
            "after": after,
            "messages_said": said[: selectors.ROWS],
            "messages_cut": len(said) > selectors.ROWS,
            "operations": [_line(run, operation) for operation in done[: selectors.ROWS]],
            "operations_cut": len(done) > selectors.ROWS,
            "may_see_payloads": seen,
            "now": run.read_at,  # type: ignore[attr-defined]
        },
    )


def _states(attempt: Attempt) -> dict[str, Any]:
    """The state that this attempt began with, which the last one that changed it left, and the one that it left itself."""
    try:
        before = history.restored(attempt.run_id, attempt.step_seq, attempt.attempt_no - 1)
        old = before.shown if before else {}
        kept = attempt.state_after
        if kept is None:
            return {"state_before": old}
        if not history.is_patch(kept):
            return {"state_before": old, "state_after": blobs.whole([kept])[0]}
        if before is not None and history.is_large(old):
            # As a whole it would be folded, and the difference hidden with it.
            old, new = history.told(old, history.changes_of(kept))
            return {"state_before": old, "state_after": new}
        after = history.restored(attempt.run_id, attempt.step_seq, attempt.attempt_no)
    except UNREADABLE as error:
        return {"unreadable": str(error)}
    return {"state_before": old, "state_after": after.shown if after else {}}


@require_safe
@access.required("runs.view_run")
def operation(request: HttpRequest, run_id: uuid.UUID, operation_id: uuid.UUID) -> HttpResponse:
    """One operation: what came of it, each time that it was sent, what was asked, approved and answered."""
    access.check_visible(request.user, run_id)
    chosen = selectors.in_brief(Operation.objects.select_related("run"), request.user).defer(None)
    chosen = operations.with_relations(request.user, chosen)
    one: Any = get_object_or_404(chosen, pk=operation_id, run_id=run_id)
    run, seen = content.shown(request.user, one.run), access.may_see_payloads(request.user, one.run)
    one = content.shown(request.user, one, run)
    sent = operations.sends(run, one)
    return render(
        request,
        "runs/operation.html",
        {
            "run": run,
            "operation": one,
            "opening": operations.opening(run, one, now=one.read_at, seen=seen),
            "sends": sent,
            "sends_cut": len(sent) > operations.SENDS_KEPT,
            "line": _line(run, one),
            "answers": operations.answers(one, seen=seen),
            "evidence": Evidence.objects.filter(run_id=run_id, operation_id=operation_id)
            .defer("body")
            .order_by("id"),
            "may_see_payloads": seen,
            "now": one.read_at,
        },
    )


@require_safe
@access.required("runs.view_run", "runs.view_payload")
def value(request: HttpRequest, run_id: uuid.UUID, what: str) -> HttpResponse:
    """The whole of a value that its page had to cut: input, state, result or external, as JSON."""
    access.run_or_404(request.user, run_id, "runs.view_payload")
    if what not in ("input", "state", "result", "external"):
        raise Http404
    return _json(run_id, get_object_or_404(Run.objects.values_list(what, flat=True), pk=run_id))


@require_safe
@access.required("runs.view_run", "runs.view_payload")
def operation_value(
    request: HttpRequest, run_id: uuid.UUID, operation_id: uuid.UUID, what: str
) -> HttpResponse:
    """The whole of a value of an operation: request, approved, response or result, as JSON."""
    access.run_or_404(request.user, run_id, "runs.view_payload")
    if what not in ("request", "approved", "response", "result"):
        raise Http404
    found = Operation.objects.filter(run_id=run_id).values_list(what, flat=True)
    return _json(run_id, get_object_or_404(found, pk=operation_id))


@require_safe
@access.required("runs.view_run", "runs.view_payload")
def record_value(request: HttpRequest, run_id: uuid.UUID, part: str, row_id: uuid.UUID) -> HttpResponse:
    """The whole of a message, of a signal's payload or of a log line, as JSON."""
    access.run_or_404(request.user, run_id, "runs.view_payload")
    if part == "messages":
        return _json(run_id, get_object_or_404(Message, run_id=run_id, pk=row_id).content)
    if part == "logs":
        line = get_object_or_404(LogLine, run_id=run_id, pk=row_id)
        return _json(run_id, {"text": line.text, "data": line.data})
    if part == "signals":
        return _json(run_id, get_object_or_404(Signal, run_id=run_id, pk=row_id).payload)
    raise Http404


#: A value is stored apart and is not what it should be; doctor says more.
UNREADABLE = (blobs.BlobDamaged, history.HistoryDamaged)


def _json(run_id: uuid.UUID, recorded: Any) -> HttpResponse:
    """JSON as ASCII text: what would deceive a reader stays an escape. 410 where it cannot be read any more."""
    try:
        shown = history.displayed(run_id, recorded)
    except UNREADABLE as error:
        return HttpResponse(f"This value cannot be read: {error}.", status=410, content_type="text/plain")
    text = json.dumps(codec.plain(shown), indent=2, ensure_ascii=True)
    return HttpResponse(text, content_type="application/json; charset=utf-8")
