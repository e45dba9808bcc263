"""The page of worker processes."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.contrib.auth.decorators import permission_required
from django.db import connection
from django.db.models import Q
from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_safe

from agentops.console import polling
from runs.models import Run, Worker

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

    @property
    def named(self) -> list[Run]:
        return self.runs[:NAMED]

    @property
    def more(self) -> int:
        return len(self.runs) - len(self.named)

    @property
    def is_lost(self) -> bool:
        return self.state == "lost"


@require_safe
@permission_required("runs.view_worker", raise_exception=True)
def workers(request: HttpRequest) -> HttpResponse:
    """Every worker that may still do something, and those that ended lately."""
    now = _server_now()
    shown = list(
        Worker.objects.filter(Q(reaped_at__isnull=True) | Q(closed_at__gt=now - KEPT))
        .defer("capabilities")
        .order_by("host", "-started_at")[: ROWS + 1]
    )
    lines = _lines(shown[:ROWS], now)
    seen = [
        (
            line.worker.pk,
            line.state,
            line.worker.beat_at,
            line.worker.lost_slots,
            [run.pk for run in line.runs],
        )
        for line in lines
    ]
    context: dict[str, Any] = {
        "lines": lines,
        "live": sum(line.state == "live" for line in lines),
        "lost": sum(line.is_lost for line in lines),
        "cut": len(shown) > ROWS,
        "now": now,
        "ptag": polling.tag(seen, request.user.pk),
    }
    template = "runs/workers.html#workers" if polling.is_poll(request) else "runs/workers.html"
    return polling.fragment(request, template, context)


def _lines(shown: Sequence[Worker], now: datetime) -> list[Line]:
    held: dict[Any, list[Run]] = defaultdict(list)
    found = Run.objects.filter(worker_id__in=[worker.pk for worker in shown]).order_by("attempt_started_at")
    for run in found.only("id", "workflow", "subject", "step", "worker_id"):
        held[run.worker_id].append(run)
    return [Line(worker, state(worker, now), held[worker.pk]) for worker in shown]


def state(worker: Worker, now: datetime) -> str:
    """live, draining, lost (its lease is over and nobody has proved that it ended) or ended."""
    if worker.reaped_at is not None:
        return "ended"
    if worker.closed_at is not None or worker.beat_until < now:
        return "lost"
    return "draining" if worker.draining else "live"


def _server_now() -> datetime:
    """Leases are on the server's clock, which no test moves."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT statement_timestamp()")
        value: datetime = cursor.fetchone()[0]
    return value
