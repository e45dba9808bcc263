"""Migrations while workers are at work: short locks, no rewritten table, nothing lost, old workers on the new schema."""

import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psycopg
import pytest
from django.contrib.postgres.operations import ValidateConstraint
from django.db import connection
from django.db.migrations import Migration, RunSQL
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.state import ProjectState
from django.db.models import Index, Q, UniqueConstraint

from agentops.sandbox.client import SandboxLedger
from runs.online import AddIndexOnline, AddStatisticsOnline, AddUniqueOnline, RemoveIndexOnline
from tests.chaos.conftest import QUICK
from tests.harness.processes import ROOT, Child, Processes, RunningSandbox
from tests.harness.server import ThrowAwayServer

#: Where the first release stands; whoever runs it migrates while its workers work.
BASELINE = {"runs": "0002_guards", "approvals": "0002_guards"}
OURS = ("runs", "approvals", "agentops")
#: Tables that grow with each run, and that of workers, whose beats must not wait.
LARGE = (
    *(
        "runs_run",
        "runs_operation",
        "runs_attempt",
        "runs_event",
        "runs_message",
        "runs_log_line",
        "runs_signal",
    ),
    *("runs_blob", "runs_worker", "approvals_approval", "approvals_version", "approvals_vote"),
)
OLD = "rough_old"


# --- what a migration may do --------------------------------------------------------------------------------------------


def later_migrations() -> list[Migration]:
    loader = MigrationLoader(connection)
    return [
        migration
        for (app, name), migration in sorted(loader.disk_migrations.items())
        if app in OURS and name > BASELINE.get(app, "")
    ]


#: What would lock a large table for as long as its rows are looked at or written anew. Constants as defaults are kept in the
#: catalog; a column without NULL and without default cannot be added at all.
SLOW = {
    r"CREATE (UNIQUE )?INDEX (?!CONCURRENTLY)": "build it with runs.online.AddIndexOnline or AddUniqueOnline",
    r"ADD CONSTRAINT (?!.*NOT VALID)": "add it NOT VALID, and validate it in a migration of its own",
    r"ALTER COLUMN \S+ TYPE ": "add another column instead",
    r"ALTER COLUMN \S+ SET NOT NULL": "add a check constraint NOT VALID instead, and validate it",
    r"ADD COLUMN (?=.*\bNOT NULL\b)(?!.*\bDEFAULT\b)": "give it a db_default",
    r"ADD COLUMN (?=.*DEFAULT (?:(?!CHECK).)*\()": "its default must be a constant",
    r"ADD COLUMN (?=.*\bCHECK\b)": "every row is read for it: add the check NOT VALID, on its own",
    r"ADD COLUMN (?=.*\b(UNIQUE|REFERENCES|PRIMARY KEY)\b)": "an index or a key comes later, on its own",
    r"DROP COLUMN": "old workers still name it: drop it two versions later, and say so here",
    r"RENAME": "old workers still name it",
}


def statements_of(migration: Migration) -> list[str]:
    """The SQL of a migration, one statement a line."""
    loader = MigrationLoader(connection)
    sql = "\n".join(
        loader.collect_sql([(loader.disk_migrations[migration.app_label, migration.name], False)])
    )
    # Bodies of functions are no statements of the migration.
    sql = re.sub(r"\$\$.*?\$\$", "$$", sql, flags=re.DOTALL)
    lines = [line for line in sql.splitlines() if not line.lstrip().startswith("--")]
    return [" ".join(statement.split()) for statement in " ".join(lines).split(";")]


def faults_of(statements: list[str]) -> list[str]:
    """What is wrong with statements on large tables; a table that is just being made has no rows yet."""
    made = {found for text in statements for found in re.findall(r'CREATE TABLE "?(\w+)"?', text)}
    return [
        f"{text[:120]}: {advice}"
        for text in statements
        if (table := re.search(r'(?:ALTER TABLE|\bON) (?:ONLY )?"?(\w+)"?', text))
        and table[1] in LARGE
        and table[1] not in made
        for pattern, advice in SLOW.items()
        if re.search(pattern, text, re.IGNORECASE)
    ]


@pytest.mark.django_db(
    transaction=True
)  # what may not run inside a transaction refuses to be looked at there
def test_no_migration_locks_a_large_table_for_long() -> None:
    found = {str(migration): faults_of(statements_of(migration)) for migration in later_migrations()}
    assert {name: faults for name, faults in found.items() if faults} == {}


@pytest.mark.parametrize(
    ("statement", "fault"),
    [
        ('CREATE INDEX "x" ON "runs_run" ("queue")', True),
        ('CREATE INDEX CONCURRENTLY "x" ON "runs_run" ("queue")', False),
        ('ALTER TABLE "runs_run" ADD CONSTRAINT "x" CHECK ("depth" >= 0)', True),
        ('ALTER TABLE "runs_run" ADD CONSTRAINT "x" CHECK ("depth" >= 0) NOT VALID', False),
        ('ALTER TABLE "runs_policy" ADD CONSTRAINT "x" CHECK ("depth" >= 0)', False),
        ('ALTER TABLE "runs_run" ALTER COLUMN "depth" TYPE bigint', True),
        ('ALTER TABLE "runs_run" ADD COLUMN "depth" smallint DEFAULT 0 NOT NULL', False),
        ('ALTER TABLE "runs_run" ADD COLUMN "at" timestamptz DEFAULT (clock_timestamp()) NOT NULL', True),
        ('ALTER TABLE "runs_run" ADD COLUMN "depth" smallint NOT NULL', True),
        ('ALTER TABLE "runs_run" ADD COLUMN "depth" integer NULL CHECK ("depth" >= 0)', True),
        ('ALTER TABLE "runs_run" ADD COLUMN "parent_id" uuid NULL', False),
        ('ALTER TABLE "runs_run" ADD COLUMN "parent_id" uuid NULL REFERENCES "runs_run" ("id")', True),
    ],
)
def test_the_look_at_migrations_finds_what_locks_for_long(statement: str, fault: bool) -> None:
    assert bool(faults_of([statement])) is fault


#: Operations that find what they have done when they are run again.
AGAIN = (AddIndexOnline, AddStatisticsOnline, AddUniqueOnline, RemoveIndexOnline, ValidateConstraint)


@pytest.mark.django_db
def test_a_migration_that_is_not_atomic_can_be_run_again_after_it_was_cut() -> None:
    for migration in later_migrations():
        if not migration.atomic:
            for operation in migration.operations:
                again = isinstance(operation, AGAIN) or (
                    isinstance(operation, RunSQL) and "VALIDATE CONSTRAINT" in str(operation.sql)
                )
                assert again, f"{migration}: {operation.describe()}"


@pytest.mark.django_db(transaction=True)
def test_an_index_that_a_killed_migrator_left_half_made_is_made_anew() -> None:
    add = AddUniqueOnline(
        "policy",
        UniqueConstraint(fields=["scope"], condition=Q(revision__gte=0), name="policy_half_made"),
    )
    index = AddIndexOnline("policy", Index(fields=["name"], name="policy_whole"))
    with connection.cursor() as cursor:
        cursor.execute("CREATE TABLE doubled AS SELECT 1 AS n FROM generate_series(1, 2)")
        with pytest.raises(Exception, match="could not create unique index"):
            cursor.execute("CREATE UNIQUE INDEX CONCURRENTLY policy_half_made ON doubled (n)")
    state = MigrationLoader(connection).project_state()
    for _ in range(2):
        forwards([add, index], state)
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT indexrelid::regclass::text, indrelid::regclass::text, indisvalid, indisunique FROM pg_index"
            " WHERE indexrelid::regclass::text IN ('policy_half_made', 'policy_whole') ORDER BY 1"
        )
        assert cursor.fetchall() == [
            ("policy_half_made", "runs_policy", True, True),
            ("policy_whole", "runs_policy", True, False),
        ]


def forwards(operations: list[AddUniqueOnline | AddIndexOnline], state: ProjectState) -> None:
    with connection.schema_editor(atomic=False) as editor:
        for operation in operations:
            after = state.clone()
            operation.state_forwards("runs", after)
            operation.database_forwards("runs", editor, state, after)


# --- with the workers of the version before ---------------------------------------------------------------------------------


FEEDER = """
import sys, time
from pathlib import Path
import django
django.setup()
from runs.lifecycle import Actor
from runs.services import start
count = 0
while not Path(sys.argv[1]).exists():
    start(Actor("feeder"), "z_innocent", {"order": str(count), "seconds": 0.0})
    count += 1
    time.sleep(0.1)
"""
FILL = (
    "import sys, django; django.setup(); from tests.harness.data import fill; print(fill(int(sys.argv[1])))"
)


@pytest.fixture(scope="session")
def old_code(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project as it was at the baseline: before the first migration after it was written."""
    git = ("git", "-C", str(ROOT))
    after = BASELINE["runs"][:2] + str(int(BASELINE["runs"][2:4]) + 1).zfill(2)
    added = subprocess.run(
        [*git, "log", "--diff-filter=A", "--format=%H", "--", f"runs/migrations/{after}_*.py"],
        capture_output=True,
        text=True,
        check=False,
    )
    if added.returncode != 0:
        pytest.skip("the history of the project is not here, so that there is no old code to run")
    commits = added.stdout.split()
    folder = tmp_path_factory.mktemp("old")
    archive = subprocess.run(
        [*git, "archive", f"{commits[-1]}^" if commits else "HEAD"], capture_output=True, check=False
    )
    if archive.returncode != 0:
        pytest.skip("the history of the project is cut short, so that there is no old code to run")
    subprocess.run(["tar", "-x", "-C", str(folder)], input=archive.stdout, check=True)
    assert (
        sorted(path.stem for path in (folder / "runs" / "migrations").glob("0*.py"))[-1] == BASELINE["runs"]
    )
    return folder


class Installation:
    """A database at the baseline, used by the code of then and the code of now."""

    def __init__(self, processes: Processes, server: ThrowAwayServer, old_code: Path) -> None:
        self.processes, self.server, self.old_code = processes, server, old_code
        self.url = server.url(OLD)
        with psycopg.connect(server.url("postgres"), autocommit=True) as raw:
            raw.execute(f"DROP DATABASE IF EXISTS {OLD} WITH (FORCE)")
            raw.execute(f"CREATE DATABASE {OLD}")
        self.old("manage.py", "migrate", "--verbosity", "0").wait_for_success()

    def old(self, *arguments: str, env: dict[str, str] | None = None) -> "Ended":
        command = ["env", "-C", str(self.old_code), sys.executable, *arguments]
        return Ended(self.processes.start(command, name="old", env={"DATABASE_URL": self.url, **(env or {})}))

    def new(self, *arguments: str, env: dict[str, str] | None = None) -> "Ended":
        return Ended(self.processes.manage(*arguments, env={"DATABASE_URL": self.url, **(env or {})}))

    def ask(self, question: str) -> list[tuple[object, ...]]:
        with psycopg.connect(self.url, autocommit=True) as raw:
            return raw.execute(question.encode()).fetchall()

    def number(self, question: str) -> int:
        ((found,),) = self.ask(question)
        assert isinstance(found, int)
        return found

    def files(self) -> dict[object, object]:
        """Where each large table is stored; a table that is written anew is stored elsewhere."""
        names = ", ".join(f"('{name}')" for name in LARGE)
        return dict(
            self.ask(f"SELECT n, pg_relation_filenode(n) FROM (VALUES {names}) t (n)")  # type: ignore[arg-type]
        )


@dataclass
class Ended:
    child: Child

    def wait_for_success(self, timeout: float = 120) -> str:
        assert self.child.wait_ended(timeout) == 0, self.child.log()
        return self.child.log_path.read_text()


@pytest.fixture
def installation(
    processes: Processes, postgres_server: ThrowAwayServer, old_code: Path
) -> Iterator[Installation]:
    yield Installation(processes, postgres_server, old_code)
    processes.close()
    with psycopg.connect(postgres_server.url("postgres"), autocommit=True) as raw:
        raw.execute(f"DROP DATABASE {OLD} WITH (FORCE)")


@dataclass
class Watch:
    """Notes the longest wait for a lock while it is open."""

    url: str
    longest_s: float = 0.0
    looks: int = 0
    _stop: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> "Watch":
        self._thread = threading.Thread(target=self._look)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _look(self) -> None:
        # What waits for a transaction, not for a table, is an index that is being built.
        with psycopg.connect(self.url, autocommit=True) as raw:
            while not self._stop.wait(0.05):
                row = raw.execute(
                    "SELECT coalesce(max(extract(epoch FROM clock_timestamp() - waitstart)), 0)::float8 FROM pg_locks"
                    " WHERE NOT granted AND locktype NOT IN ('virtualxid', 'advisory')"
                ).fetchone()
                assert row is not None
                self.longest_s = max(self.longest_s, row[0])
                self.looks += 1


OLD_WORKERS = "SELECT count(*) FROM runs_run WHERE workflow = 'z_innocent' AND status = 'completed'"


def migrate_under_load(
    installation: Installation, sandbox: RunningSandbox, tmp_path: Path, runs: int
) -> dict[str, float]:
    """Fill, start old workers and a feeder, migrate, let them go on, hand over to new workers; returns figures."""
    env = QUICK | {"AGENTOPS_SANDBOX_URL": sandbox.url}
    begun = time.monotonic()
    installation.old("-c", FILL, str(runs)).wait_for_success(timeout=1200)
    filled_s = time.monotonic() - begun
    stop = tmp_path / "stop"
    old_workers = installation.old("manage.py", "worker", "--processes", "2", env=env).child
    feeder = installation.old("-c", FEEDER, str(stop), env=env)
    old_workers.wait_until(lambda: installation.number(OLD_WORKERS) >= 5, 60, "old workers are at work")
    before = installation.files()

    begun = time.monotonic()
    with Watch(installation.url) as watch:
        # A transaction that reads holds the first tries up.
        with psycopg.connect(installation.url) as reader:
            reader.execute("SELECT count(*) FROM (SELECT FROM runs_run LIMIT 1) AS one")
            migrator = installation.new("migrate", "--lock-timeout", "0.5")
            migrator.child.wait_until(
                lambda: migrator.child.returncode is not None or "migrate.again" in migrator.child.log(),
                120,
                "a statement of the migration waited for a lock for too long",
            )
        migrator.wait_for_success(timeout=1200)
    took_s = time.monotonic() - begun
    assert watch.looks > 10
    assert watch.longest_s < 2, f"somebody waited {watch.longest_s:.2f} s for a lock"
    assert installation.files() == before, "a table was written anew"

    done = installation.number(OLD_WORKERS)
    old_workers.wait_until(
        lambda: installation.number(OLD_WORKERS) >= done + 10, 60, "old workers go on with the new schema"
    )
    new_workers = installation.new("worker", "--processes", "1", env=env).child
    new_workers.wait_for_log("worker ready", 60)
    old_workers.terminate()
    assert old_workers.wait_ended(60) == 0
    stop.touch()
    feeder.wait_for_success()
    fed = installation.number("SELECT count(*) FROM runs_run WHERE workflow = 'z_innocent'")
    new_workers.wait_until(lambda: installation.number(OLD_WORKERS) == fed, 60, "all runs complete")

    attempts = "SELECT count(*) FROM runs_attempt a JOIN runs_run r ON r.id = a.run_id WHERE r.workflow = 'z_innocent'"
    assert installation.number(f"{attempts} AND a.outcome = 'succeeded'") == 2 * fed
    # On a busy machine a worker may hand back a run whose claim was answered late; that spends nothing.
    assert installation.number(f"{attempts} AND a.outcome NOT IN ('succeeded', 'stopped')") == 0
    with SandboxLedger(sandbox.url) as ledger:
        summary = ledger.summary()
        assert (summary.counts["refund"], summary.repeated) == (fed, [])
    return {
        "runs": runs,
        "filled_s": round(filled_s, 1),
        "migrated_s": round(took_s, 1),
        "longest_wait_s": round(watch.longest_s, 3),
        "fed": fed,
    }


@pytest.fixture
def sandbox(processes: Processes) -> RunningSandbox:
    return processes.sandbox()


@pytest.mark.django_db(transaction=True)
def test_migrations_of_a_busy_database_hold_no_lock_for_long_and_lose_nothing(
    installation: Installation, sandbox: RunningSandbox, tmp_path: Path
) -> None:
    print(migrate_under_load(installation, sandbox, tmp_path, 20_000))


@pytest.mark.long
@pytest.mark.django_db(transaction=True)
def test_migrations_of_a_million_runs_hold_no_lock_for_long_and_lose_nothing(
    installation: Installation, sandbox: RunningSandbox, tmp_path: Path
) -> None:
    print(migrate_under_load(installation, sandbox, tmp_path, 1_000_000))


@pytest.mark.django_db(transaction=True)
def test_a_migrator_that_was_killed_keeps_nobody_from_migrating(installation: Installation) -> None:
    with psycopg.connect(installation.url) as reader:
        reader.execute("SELECT count(*) FROM runs_run")
        killed = installation.new("migrate", "--lock-timeout", "600").child
        killed.wait_until(
            lambda: installation.number("SELECT count(*) FROM pg_locks WHERE NOT granted"),
            60,
            "the migrator waits for a lock that it does not get",
        )
        early = installation.new("migrate", "--patience", "0.1").child
        assert early.wait_ended(30) == 1
        assert "Another migrate is at work on this database. It is PostgreSQL's process" in early.log()
        killed.kill()
        second = installation.new("migrate", "--lock-timeout", "0.2", "--patience", "1").child
        assert second.wait_ended(60) == 1
        assert "The tables are in use" in second.log()
        assert "Traceback" not in second.log()
    assert "Applying" in installation.new("migrate").wait_for_success()
