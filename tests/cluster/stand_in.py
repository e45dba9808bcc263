"""A cluster with stand-ins for the engine: `python -m tests.cluster.stand_in FOLDER [--processes N] [--grace S] …`.

They keep their books as files in FOLDER: what is not about the engine can then be tested to the last branch,
the database being away included. Behaviour is asked for with files as well (see `StandInRuns`).
"""

import argparse
import json
import os
import sys
import threading
import time
import uuid
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import django
from django.db import connection


class StandInRuns:
    """Executes no runs. Asked by files in the folder, it raises (`raise`), wants to be recycled (`recycle`), or has
    a step that never ends (`busy`)."""

    def __init__(self, folder: Path, **arguments: Any) -> None:
        self.folder = folder
        self.worker_id: uuid.UUID = arguments["worker_id"]
        self.stop = arguments["stop"]
        self.arguments = arguments
        self.wants_recycle = False

    def run(self) -> None:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
        connection.close()
        record(self.folder, "started", worker_id=self.worker_id, alone=self.arguments["alone"])
        while not self.stop.wait(0.05):
            if (self.folder / "raise").exists():
                (self.folder / "raise").unlink()
                raise RuntimeError("the stand-in was asked to fail")
            if (self.folder / "recycle").exists():
                (self.folder / "recycle").unlink()
                self.wants_recycle = True
        record(self.folder, "draining", worker_id=self.worker_id)
        while (self.folder / "busy").exists():
            time.sleep(0.02)


class StandInLeases:
    """Writes down who was reaped; says that those leases are over that the file `expired` names, one id a line."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def reap(self, worker_id: uuid.UUID, *, graceful: bool = False) -> None:
        self._query()
        if (self.folder / "reap-fails").exists():
            (self.folder / "reap-fails").unlink()
            raise ValueError("the stand-in was asked to fail")
        record(
            self.folder, "reaped", worker_id=worker_id, graceful=graceful, threads=threading.active_count()
        )

    def expired(self, worker_ids: Collection[uuid.UUID]) -> set[uuid.UUID]:
        self._query()
        named = self.folder / "expired"
        over = {uuid.UUID(line) for line in named.read_text().split()} if named.exists() else set()
        return over & set(worker_ids)

    def lone_due(self, queues: Sequence[str]) -> int:
        self._query()
        count = self.folder / "lone-due"
        return int(count.read_text()) if count.exists() else 0

    def _query(self) -> None:
        with connection.cursor() as cursor:
            seconds = self.folder / "slow-query"
            cursor.execute("SELECT pg_sleep(%s)", [seconds.read_text() if seconds.exists() else 0])


def record(folder: Path, event: str, **facts: object) -> None:
    """Append one line to the books; lines of different processes do not mix, being short."""
    line = json.dumps(
        {"event": event, "pid": os.getpid(), **{name: str(fact) for name, fact in facts.items()}}
    )
    with (folder / "books.jsonl").open("a") as books:
        books.write(line + "\n")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--slots", type=int, default=2)
    parser.add_argument("--grace", type=float, default=5.0)
    parser.add_argument("--queue", action="append", dest="queues")
    arguments = parser.parse_args()
    django.setup()
    from django_q.signals import post_execute

    from agentops.cluster.cluster import WorkerCluster
    from agentops.cluster.options import ClusterOptions

    options = ClusterOptions(
        queues=tuple(arguments.queues or ["default"]),
        processes=arguments.processes,
        slots=arguments.slots,
        grace_s=arguments.grace,
    )
    folder: Path = arguments.folder

    def announced(task: dict[str, Any], **_: object) -> None:
        record(folder, "post_execute", name=task["name"])

    post_execute.connect(announced, weak=False)
    cluster = WorkerCluster(
        options,
        make_run_execution=lambda **given: StandInRuns(folder, **given),
        leases=StandInLeases(folder),
    )
    cluster.start()
    if cluster.wait_until_ready():
        print("stand-in cluster ready", flush=True)
    sys.exit(cluster.wait_until_ended())


if __name__ == "__main__":
    main()
