"""W8: a run of many steps with a large state that changes a little each time: what its history costs, and is it exact?"""

import time
from typing import Any

from django.db import connection

from agentops.benchmark.bench import Bench
from agentops.benchmark.figures import Figures
from agentops.benchmark.large import change, first_state
from agentops.benchmark.works.throughput import Wal, logged
from runs import codec, history
from runs.models import Run

#: Tables that hold the states of a run.
TABLES = ("runs_run", "runs_attempt", "runs_blob", "runs_blob_use")
LIMIT_S = 300.0


def measure(bench: Bench) -> Figures:
    steps, wal = bench.size.large_steps, Wal()
    with bench.workers():
        before = _on_disk()
        bench.server.execute("CHECKPOINT")
        with logged(bench, wal):
            begun = time.monotonic()
            run = bench.start("benchmark_large", steps)
            bench.trace.one(steps, {"large"}, LIMIT_S, "the last of its steps")
            seconds = time.monotonic() - begun
            _wait_until_finished(run)
    growth = sum(_on_disk().values()) - sum(before.values())
    state = first_state()
    size = len(codec.canonical(state))
    exact = 0
    for step, (_, _, text) in enumerate(history.walk(run)):
        if step:
            change(state, step)
        exact += text.encode() == codec.canonical(state)
    return {
        "W8.state_bytes": size,
        "W8.steps": steps,
        "W8.disk_bytes_per_step": round(growth / steps),
        "W8.share_of_steps_by_state": round(growth / (steps * size), 5),
        "W8.wal_bytes_per_step": round(wal.records / steps),
        "W8.steps_per_s": round(steps / seconds, 1),
        "W8.inexact_checkpoints": steps + 1 - exact,
        "W8.bytes_changed_per_step": round(_changed(run) / steps),
    }


def _changed(run: Any) -> int:
    """Bytes of JSON of all patches: what the steps changed, as it is recorded."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT coalesce(sum(length((state_after -> 'v' -> 'changes')::text)), 0)::bigint FROM runs_attempt"
            " WHERE run_id = %s AND state_after ->> %s = %s",
            [run, codec.TAG, history.PATCH],
        )
        return int(cursor.fetchone()[0])


def _on_disk() -> dict[str, int]:
    """Bytes of the tables with their indexes and what lies out of line."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT name, pg_total_relation_size(name::regclass)::bigint FROM unnest(%s::text[]) AS t (name)",
            [list(TABLES)],
        )
        return dict(cursor.fetchall())


def _wait_until_finished(run: Any) -> None:
    end = time.monotonic() + 30
    while time.monotonic() < end and not Run.objects.filter(pk=run, finished_at__isnull=False).exists():
        time.sleep(0.05)
