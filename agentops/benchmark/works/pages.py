"""W10: pages of the console over a large database, asked for through the real views: time and queries of each."""

import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from django.conf import settings
from django.contrib.auth.models import Group, User
from django.db import connection
from django.test import Client

from agentops import heap
from agentops.benchmark import workflows
from agentops.benchmark.bench import Bench
from agentops.benchmark.figures import Figures, percentile
from agentops.benchmark.fill import fill
from agentops.benchmark.used import use
from approvals.inbox.listing import together_url
from approvals.models import Approval
from runs.models import Bulk, FailureGroup, Run
from runs.states import Status

#: Attempts of the run whose page is asked for.
ATTEMPTS = 5000
#: Its subject.
LONG = "long run"
WARM = 2


@dataclass(frozen=True, slots=True)
class Asked:
    """Milliseconds of each answer, and the queries of one."""

    ms: list[float]
    queries: int


def measure(bench: Bench) -> Figures:
    with emptied(bench):
        # Ten attempts for each run: five of each of the two visits that are over, and the last one.
        fill(bench.size.many, tries=5)
        use()
        asked = ask(long_run(min(ATTEMPTS, bench.size.many)), bench.size.asks)
    figures: Figures = {"W10.runs": bench.size.many}
    for group in ("list", "search", "run", "other"):
        mine = [one for name, one in asked.items() if name.startswith(f"{group} ")]
        figures[f"W10.{group}_p50_ms"] = round(percentile([ms for one in mine for ms in one.ms], 50), 1)
        # Of the slowest page of the group: a mean over pages would hide it.
        figures[f"W10.{group}_p95_ms"] = round(max(percentile(one.ms, 95) for one in mine), 1)
    figures["W10.most_queries"] = max(one.queries for one in asked.values())
    return figures


@contextmanager
def emptied(bench: Bench) -> Iterator[None]:
    """Leave nothing behind for the works that follow: a large table would slow them down."""
    try:
        yield
    finally:
        with connection.cursor() as cursor:
            cursor.execute(
                "TRUNCATE runs_run, runs_attempt, runs_operation, runs_event, runs_worker, runs_failure_group,"
                " runs_failure_tally, runs_bulk, runs_audit_event CASCADE"
            )


def long_run(attempts: int) -> uuid.UUID:
    """A run with so many attempts, three operations, a message, a log line and an event for each of them; returns its id."""
    fresh = Run.objects.exclude(subject=LONG).order_by("-id")
    run = fresh.filter(status=Status.WAITING).first() or fresh[0]
    parameters: dict[str, Any] = {"run": run.pk, "n": attempts}
    statements = (
        "INSERT INTO runs_attempt (run_id, step_seq, attempt_no, epoch, step, outcome, started_at, ended_at, error_type, error,"
        " traceback, closed_by) SELECT %(run)s, 1000 + n, 1, n, 'step_' || n, 'succeeded', now(), now(), '', '', '', ''"
        " FROM generate_series(1, %(n)s) n",
        "INSERT INTO runs_operation (id, run_id, step_seq, position, ordinal, attempt_no, kind, name, forgotten, args_digest,"
        " status, request, error_type, error, provider_ref, generation, tries, looks, earlier_send_open, settled_by, correlation,"
        " compensate_with, rest, started_at, finished_at)"
        " SELECT gen_random_uuid(), %(run)s, 1000 + n, place::text, place, 1, 'query', 'get_order', false, '', 'done', '{}',"
        " '', '', '', 0, 0, 0, false, '', '', '', '', now(), now()"
        " FROM generate_series(1, %(n)s) n, generate_series(1, 3) place",
        "INSERT INTO runs_message (id, run_id, step_seq, position, attempt_no, role, content, digest, created_at)"
        " SELECT gen_random_uuid(), %(run)s, 1000 + n, '1', 1, 'user', to_jsonb('hello'::text), '', now()"
        " FROM generate_series(1, %(n)s) n",
        "INSERT INTO runs_log_line (id, run_id, step_seq, position, attempt_no, level, text, data, created_at)"
        " SELECT gen_random_uuid(), %(run)s, 1000 + n, '1', 1, 'info', 'a line', '{}', now() FROM generate_series(1, %(n)s) n",
        "INSERT INTO runs_event (run_id, seq, at, kind, actor, reason, data, head)"
        " SELECT %(run)s, 1000 + n, now(), 'signal', 'benchmark', '', '{}', '' FROM generate_series(1, %(n)s) n",
    )
    with connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement, parameters)
        cursor.execute("UPDATE runs_run SET subject = %s WHERE id = %s", [LONG, run.pk])
        cursor.execute(
            "VACUUM (ANALYZE) runs_run, runs_attempt, runs_operation, runs_message, runs_log_line, runs_event"
        )
    return run.pk


def ask(long: uuid.UUID, times: int) -> dict[str, Asked]:
    """Ask for every page so often; by name, which begins with its group."""
    heap.keep_pages()  # as a web process does when it starts
    client, found = _signed_in(), {}
    for name, (path, headers) in _pages(long).items():
        counter = _Counter()
        samples = []
        for _ in range(WARM + times):
            counter.count = 0
            with connection.execute_wrapper(counter):
                began = time.perf_counter()
                response = client.get(path, headers=headers)
                samples.append((time.perf_counter() - began) * 1000)
            assert response.status_code in (200, 304), f"{path} was answered {response.status_code}"
        found[name] = Asked(samples[WARM:], counter.count)
    return found


class _Counter:
    count = 0

    def __call__(self, execute: Any, *arguments: Any) -> Any:
        self.count += 1
        return execute(*arguments)


def _signed_in() -> Client:
    """Somebody who may do everything, in a browser on one of the hosts that the settings name."""
    person, _ = User.objects.get_or_create(username="benchmark", defaults={"password": "!"})
    User.objects.filter(pk=person.pk).update(is_superuser=True)
    person.groups.set(Group.objects.all())
    host = next((name for name in settings.ALLOWED_HOSTS if name.strip("*.")), "localhost")
    client = Client(SERVER_NAME=host.lstrip("."))
    # As a proxy would hand it on; a redirect to HTTPS is no page.
    client.defaults["wsgi.url_scheme"] = "https"
    client.force_login(User.objects.get(pk=person.pk))
    return client


def _pages(long: uuid.UUID) -> dict[str, tuple[str, dict[str, str]]]:
    middle = Run.objects.order_by("id").values_list("pk", flat=True)[:1].get()
    poll = {"HX-Request": "true"}
    pages = {
        "list first": "/runs/",
        "list last": f"/runs/?after={middle}",
        "list failed": "/runs/?status=failed",
        "list dead letter": "/runs/?status=dead_letter",
        "list waiting": "/runs/?status=waiting",
        "list workflow": "/runs/?workflow=generated",
        "list workflow failed": "/runs/?workflow=generated&status=failed",
        "list unknown workflow": "/runs/?workflow=none&status=completed",
        "list subject": "/runs/?subject=order+77",
        "search id": f"/runs/?q={str(long)[:23]}",
        "search short id": "/runs/?q=0",
        "search subject": "/runs/?q=order+77",
        "search many subjects": "/runs/?q=order",
        "search number": "/runs/?q=77",
        "search error": "/runs/?q=answered+503",
        "search workflow": "/runs/?q=generated",
        "search nothing": "/runs/?q=no-such-thing",
        "search within failed": "/runs/?q=77&status=failed",
        "run newest": f"/runs/{long}/",
        "run earlier": f"/runs/{long}/?before=3500.1",
        "run attempt": f"/runs/{long}/attempts/3500/1/" if _has_attempt(long) else f"/runs/{long}/",
        "list reason": "/runs/?reason=signal",
        "list reason approval": "/runs/?reason=approval",
        "other overview": "/",
        "other limits": "/limits/",
        "other workers": "/workers/",
        "other inbox": "/approvals/",
        "other inbox approvals": "/approvals/?kind=approval",
        "other inbox dead letters": "/approvals/?kind=dead",
        "other decided": "/approvals/?show=decided",
        "other subject": "/runs/subjects/?subject=order+77",
        "other failures": "/failures/",
        "other failures handled": "/failures/?state=handled",
        "other bulks": "/bulk/",
        "other limit": f"/limits/workflow/{workflows.ten.name}/",
        "other policies": "/policies/",
        "other requests": "/requests/",
        "list audit": "/audit/",
        "list audit of a person": "/audit/?person=generator",
        "list audit of a workflow": "/audit/?workflow=generated",
        "other people": "/people/",
        "other saved views": "/views/",
    }
    pages |= _of_one(long)
    parts = {f"run {part}": f"/runs/{long}/?part={part}" for part in ("messages", "logs", "values", "events")}
    found: dict[str, tuple[str, dict[str, str]]] = {
        name: (path, {}) for name, path in (pages | parts).items()
    }
    return found | {"list poll": ("/runs/", poll), "run poll": (f"/runs/{long}/", poll)}


def _of_one(long: uuid.UUID) -> dict[str, str]:
    """Pages of one thing each, of those that belong to most."""
    found = {}
    if approvals := list(
        Approval.objects.filter(state=Approval.State.OPEN).values_list("pk", flat=True)[:50]
    ):
        found["other approval"] = f"/approvals/{approvals[0]}/"
        found["other approvals together"] = together_url(approvals)
    if (bulk := Bulk.objects.first()) is not None:
        found |= {"other bulk": f"/bulk/{bulk.pk}/"}
    if (group := FailureGroup.objects.filter(sort=FailureGroup.Sort.FAILURE).first()) is not None:
        found["other failure"] = f"/failures/{group.pk}/"
    if (failed := Run.objects.filter(status=Status.FAILED).order_by("-id").first()) is not None:
        found |= {
            f"other {verb} a failed run": f"/runs/{failed.pk}/{verb}/"
            for verb in ("retry", "fork", "compare")
        }
    return found | {f"run {verb}": f"/runs/{long}/{verb}/" for verb in ("cancel", "force-resume")}


def _has_attempt(run: uuid.UUID) -> bool:
    with connection.cursor() as cursor:
        cursor.execute("SELECT FROM runs_attempt WHERE run_id = %s AND step_seq = 3500", [run])
        return bool(cursor.rowcount)
