"""The page of queues and worker processes, and what people ask of a worker."""

import uuid
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django import forms
from django.contrib import messages
from django.db import connection
from django.db.models import F, Q
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.views.decorators.http import require_http_methods, require_safe

from agentops.console import polling
from agentops.console.sparkline import Sparkline, sparkline
from runs import access, clock, services
from runs.errors import StateMismatch
from runs.models import Run, Worker
from runs.models.worker import Asked
from runs.pages import activity
from runs.services.workers import WORDS
from runs.views.acting import actor

#: A worker that ended longer ago is no longer shown, unless nobody has reaped it.
KEPT = timedelta(hours=1)
ROWS = 200
#: Runs of one worker that its row names; more are counted.
NAMED = 5


@dataclass(frozen=True)
class Line:
    """A worker, what it holds, and which line of the table of badges it is."""

    worker: Worker
    state: str
    runs: list[Run]
    theirs: list[Run]
    """Those of its runs that the viewer may see."""

    @property
    def named(self) -> list[Run]:
        return self.theirs[:NAMED]

    @property
    def more(self) -> int:
        return len(self.runs) - len(self.named)

    @property
    def verbs(self) -> list[tuple[str, str]]:
        """What may be asked of it now."""
        names = {"live": ["drain", "recycle"], "draining": ["resume", "recycle"]}.get(self.state, [])
        if self.state == "draining" and not self.worker.asked:
            names = []  # it ends by itself
        return [(name, "Resume" if name == "resume" else WORDS[name]) for name in names]

    @property
    def is_lost(self) -> bool:
        return self.state == "lost"


@dataclass(frozen=True)
class QueueLine:
    """A queue with its charts."""

    queue: activity.Queue

    @property
    def steps(self) -> Sparkline:
        return sparkline(self.queue.steps, f"Steps of the last 24 hours: {sum(self.queue.steps):,}")


@require_safe
@access.required("runs.view_worker")
def workers(request: HttpRequest) -> HttpResponse:
    """Every worker that may still do something, and those that ended lately."""
    now = _server_now()
    shown = list(
        Worker.objects.filter(Q(reaped_at__isnull=True) | Q(closed_at__gt=now - KEPT))
        .defer("capabilities")
        # Those that may still do something first; of the others whatever ended last.
        .order_by(F("closed_at").desc(nulls_first=True), "host", "-started_at")[: ROWS + 1]
    )
    lines = _lines(request.user, shown[:ROWS], now)
    seen = [
        (
            line.worker.pk,
            line.state,
            line.worker.beat_at,
            line.worker.lost_slots,
            line.worker.asked,
            [run.pk for run in line.runs],
        )
        for line in lines
    ]
    queues = [QueueLine(queue) for queue in activity.queues()]
    context: dict[str, Any] = {
        "queues": queues,
        "due": sum(line.queue.due for line in queues),
        "unserved": [line.queue.name for line in queues if line.queue.unserved],
        "may_ask": access.everywhere(request.user, "runs.drain_worker"),
        "may_declare": access.everywhere(request.user, "runs.declare_gone"),
        "lines": lines,
        "live": sum(line.state == "live" for line in lines),
        "lost": sum(line.is_lost for line in lines),
        "cut": len(shown) > ROWS,
        "now": now,
        "ptag": polling.tag(seen, [activity.shown(line.queue) for line in queues], request.user.pk),
    }
    template = "runs/workers.html#workers" if polling.is_poll(request) else "runs/workers.html"
    return polling.fragment(request, template, context)


def _lines(user: access.Person, shown: Sequence[Worker], now: datetime) -> list[Line]:
    held: dict[Any, list[Run]] = defaultdict(list)
    found = Run.objects.filter(worker_id__in=[worker.pk for worker in shown]).order_by("attempt_started_at")
    for run in found.only("id", "workflow", "subject", "step", "worker_id"):
        held[run.worker_id].append(run)
    return [
        Line(
            worker,
            state(worker, now),
            held[worker.pk],
            [run for run in held[worker.pk] if access.may(user, "runs.view_run", run)],
        )
        for worker in shown
    ]


def state(worker: Worker, now: datetime) -> str:
    """live, draining, lost (its lease is over and nobody has proved that it ended) or ended."""
    if worker.reaped_at is not None:
        return "ended"
    if worker.closed_at is not None or worker.beat_until < now:
        return "lost"
    if worker.asked == Asked.RECYCLE:
        return "recycling"
    return "draining" if worker.draining or worker.asked else "live"


# --- what people ask of one ----------------------------------------------------------------------------------------------


class AskForm(forms.Form):
    """Why."""

    reason = forms.CharField(max_length=500, label="Reason", help_text="Written to the audit with your name.")


@require_http_methods(["GET", "POST"])
@access.required("runs.drain_worker")
def ask(request: HttpRequest, worker_id: uuid.UUID, what: str) -> HttpResponse:
    """Drain a worker, recycle it, or let it take runs again."""
    worker = get_object_or_404(Worker.objects.defer("capabilities"), pk=worker_id)
    if what not in WORDS:
        raise Http404
    form, status, refusal = AskForm(request.POST or None), 200, ""
    if request.method == "POST":
        if form.is_valid():
            try:
                messages.success(
                    request, services.ask_worker(actor(request), worker_id, what, **form.cleaned_data)
                )
                return redirect("runs:workers")
            except StateMismatch as error:
                refusal, status = str(error), error.status
                worker.refresh_from_db()
        else:
            status = 422
    consequence, why_not = None, ""
    try:
        consequence = services.preview_ask_worker(worker, what)
    except StateMismatch as error:
        why_not = str(error)
    context = {
        "worker": worker,
        "state": state(worker, _server_now()),
        "title": WORDS[what],
        "verb": WORDS[what] if what == "resume" else f"{WORDS[what]} worker {worker}",
        "consequence": consequence,
        "why_not": why_not,
        "refusal": refusal,
        "form": form,
        "action": request.path,
        "close": reverse("runs:workers"),
        "now": clock.now(),
    }
    return render(request, "runs/ask_worker.html", context, status=status)


def _server_now() -> datetime:
    """Leases are on the server's clock, which no test moves."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT statement_timestamp()")
        value: datetime = cursor.fetchone()[0]
    return value
