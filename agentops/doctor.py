"""Checks of `manage.py doctor` on the installation: settings, migrations, clocks, the server."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from django.conf import settings
from django.core import checks
from django.db import connection
from django.db.migrations.executor import MigrationExecutor

from agentops.checks import OLDEST_POSTGRESQL
from runs.doctor import ERROR, WARNING, Finding, Snapshot, installation

SKEW_WARNING = timedelta(seconds=2)
SKEW_ERROR = timedelta(minutes=5)


@installation
def configuration(at: Snapshot) -> Iterator[Finding]:
    """What Django's system checks and ours say: keys, hosts, cookies, workflows. One finding for each message."""
    for message in checks.run_checks(include_deployment_checks=not settings.AGENTOPS_DEBUG):
        if message.level < checks.WARNING or message.is_silenced():
            continue
        severity = ERROR if message.level >= checks.ERROR else WARNING
        where = f" ({message.obj})" if message.obj else ""
        text = " ".join(f"{message.id}: {message.msg}{where}".split())
        yield Finding(severity, 1, [text], " ".join((message.hint or "See `manage.py check`.").split()))


@installation
def assumed_role(at: Snapshot) -> Iterator[Finding]:
    """Web and workers work as the owner of the tables, whom no missing right holds back."""
    if settings.AGENTOPS_DB_ROLE or settings.AGENTOPS_DEBUG:
        return iter(())
    return at.collect(
        WARNING,
        [f"connected as {at.rows('SELECT current_user')[0][0]}"],
        "Set AGENTOPS_DB_ROLE to agentops_app, which has no UPDATE or DELETE on append-only tables.",
    )


@installation
def pooler(at: Snapshot) -> Iterator[Finding]:
    """A pooler is in front of the database, and statements are prepared as if there were none."""
    # What a pooler tells its client is not the number of the server's process.
    server_pid = at.rows("SELECT pg_backend_pid()")[0][0]
    raw = connection.connection
    if raw is None or server_pid == raw.info.backend_pid or not settings.AGENTOPS_PREPARED_STATEMENTS:
        return iter(())
    return at.collect(
        WARNING,
        ["prepared statements through a pooler"],
        "Set AGENTOPS_PREPARED_STATEMENTS=0 behind PgBouncer in transaction mode, unless it is 1.22 or newer and its"
        " max_prepared_statements is set.",
    )


@installation
def migrations(at: Snapshot) -> Iterator[Finding]:
    """The database is older than the code."""
    executor = MigrationExecutor(connection)
    plan = executor.migration_plan(executor.loader.graph.leaf_nodes())
    missing = (f"{migration.app_label}.{migration.name}" for migration, _ in plan)
    return at.collect(ERROR, missing, "Run `manage.py migrate`.")


@installation
def unknown_migrations(at: Snapshot) -> Iterator[Finding]:
    """The database is newer than the code."""
    loader = MigrationExecutor(connection).loader
    ours = {label for label, _ in loader.disk_migrations}
    unknown = sorted(
        key for key in loader.applied_migrations if key[0] in ours and key not in loader.disk_migrations
    )
    # A squashed migration is recorded together with those that it replaces.
    replaced = {key for migration in loader.disk_migrations.values() for key in migration.replaces}
    return at.collect(
        WARNING,
        (f"{label}.{name}" for label, name in unknown if (label, name) not in replaced),
        "Old code works on a newer database for the time of an upgrade only: finish it.",
    )


@installation
def clock_skew(at: Snapshot) -> Iterator[Finding]:
    """The clocks of this host and of the database's differ."""
    before = datetime.now(UTC)
    theirs: datetime = at.rows("SELECT clock_timestamp()")[0][0]
    after = datetime.now(UTC)
    # Between the two readings the answer may be of any moment: only what lies outside is certain.
    skew = max(before - theirs, theirs - after, timedelta())
    if skew > SKEW_WARNING:
        ahead = "ahead of" if theirs < before else "behind"
        yield Finding(
            ERROR if skew > SKEW_ERROR else WARNING,
            1,
            [f"this host is {skew.total_seconds():.1f} s {ahead} the database"],
            "Have both hosts set their clocks by NTP. Leases and wake times use the database's clock alone, but log lines,"
            " signed webhooks and people's reckoning do not.",
        )


@installation
def moved_clock(at: Snapshot) -> Iterator[Finding]:
    """Business time is moved, which only tests do."""
    if not at.rows("SELECT to_regclass('runs_clock') IS NOT NULL")[0][0]:
        return iter(())  # migrations says so
    return at.find(
        WARNING,
        "SELECT 'by ' || shift FROM runs_clock",
        "DELETE FROM runs_clock: waits and deadlines are off by this much.",
    )


@installation
def old_server(at: Snapshot) -> Iterator[Finding]:
    """PostgreSQL is older than what was tried."""
    return at.find(
        ERROR,
        "SELECT 'PostgreSQL ' || current_setting('server_version')"
        " WHERE current_setting('server_version_num')::int < %(oldest)s * 10000",
        f"Use PostgreSQL {OLDEST_POSTGRESQL} or newer.",
        oldest=OLDEST_POSTGRESQL,
    )


@installation
def durability(at: Snapshot) -> Iterator[Finding]:
    """A crash of the server could lose what it has confirmed: an effect would be sent a second time."""
    return at.find(
        ERROR,
        "SELECT name || ' is ' || setting FROM pg_settings"
        " WHERE name IN ('fsync', 'synchronous_commit', 'full_page_writes') AND setting = 'off'",
        "Switch it on in postgresql.conf: an intent that is committed must still be there after a power cut.",
    )
