"""Each check of the schema and of the installation sees exactly what it is for."""

from datetime import UTC, datetime, timedelta

import pytest
from django.db import connection
from django.db.migrations.recorder import MigrationRecorder
from pytest_django import Settings

from agentops import doctor as installation
from runs import clock, doctor
from runs.apps import APPEND_ONLY
from runs.doctor import Finding
from tests.runs.doctor.conftest import Look, unguarded


def run_sql(sql: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(sql)


def one(findings: list[Finding], severity: str = "error") -> str:
    assert len(findings) == 1
    assert findings[0].severity == severity
    assert findings[0].count == 1
    assert findings[0].advice
    return findings[0].sample[0]


# --- schema --------------------------------------------------------------------------------------------------------------


def test_a_missing_function_is_found(look: Look):
    assert look(doctor.missing_functions) == []
    run_sql("DROP FUNCTION agentops_append_event")
    assert one(look(doctor.missing_functions)) == "agentops_append_event()"


def test_a_missing_column_is_found(look: Look):
    assert look(doctor.missing_columns) == []
    run_sql("ALTER TABLE runs_signal DROP COLUMN sent_by")
    assert one(look(doctor.missing_columns)) == "runs_signal.sent_by"


@pytest.mark.parametrize("table", APPEND_ONLY)
def test_a_guard_that_is_switched_off_is_found(look: Look, table: str):
    assert look(doctor.missing_triggers) == []
    run_sql(f"ALTER TABLE {table} DISABLE TRIGGER append_only")
    assert one(look(doctor.missing_triggers)) == f"append_only on {table}"


def test_a_dropped_state_chart_is_found(look: Look):
    run_sql("DROP TRIGGER state_chart ON runs_run")
    assert one(look(doctor.missing_triggers)) == "state_chart on runs_run"


def test_a_session_that_passes_triggers_by_is_found(look: Look):
    with unguarded():
        assert "session_replication_role" in one(look(doctor.missing_triggers))


def test_a_state_chart_that_allows_other_moves_than_the_code_is_found(look: Look):
    assert look(doctor.state_chart) == []
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_get_functiondef('agentops_check_transition'::regproc)")
        cursor.execute(cursor.fetchone()[0].replace("('attention', 'cancelled')", "('completed', 'queued')"))
    (finding,) = look(doctor.state_chart)
    assert finding.sample == [
        "attention to cancelled: only in the code",
        "completed to queued: only in the trigger",
    ]


@pytest.mark.parametrize(
    ("table", "name"),
    [("runs_run", "run_status_known"), ("runs_run", "run_due"), ("approvals_vote", "vote_once_per_version")],
)
def test_a_missing_constraint_or_index_is_found(look: Look, table: str, name: str):
    assert look(doctor.missing_constraints) == []
    with unguarded(f"{table}.{name}"):
        pass
    assert one(look(doctor.missing_constraints)) == f"{name} on {table}"


@pytest.mark.parametrize("right", ["UPDATE", "DELETE", "TRUNCATE"])
@pytest.mark.parametrize("table", APPEND_ONLY)
def test_a_right_to_change_what_is_append_only_is_found(look: Look, table: str, right: str):
    assert look(doctor.role_rights) == []
    run_sql(f"GRANT {right} ON {table} TO agentops_app")
    assert one(look(doctor.role_rights)) == f"agentops_app: {right} on {table}"


def test_a_right_to_change_one_column_is_found(look: Look):
    run_sql("GRANT UPDATE (reason) ON runs_event TO agentops_app")
    assert one(look(doctor.role_rights)) == "agentops_app: UPDATE on runs_event"


def test_a_missing_role_is_a_warning(look: Look):
    run_sql("ALTER ROLE agentops_app RENAME TO agentops_renamed")
    assert one(look(doctor.role_rights), "warning") == "role agentops_app does not exist"


@pytest.mark.parametrize(
    ("sql", "told"),
    [
        ("ALTER FUNCTION agentops_delete_runs SECURITY INVOKER", "not SECURITY DEFINER"),
        ("GRANT EXECUTE ON FUNCTION agentops_delete_runs TO PUBLIC", "may be called by everybody"),
        (
            "REVOKE EXECUTE ON FUNCTION agentops_delete_runs FROM agentops_app",
            "may not be called by agentops_app",
        ),
        ("ALTER TABLE runs_run OWNER TO pg_monitor", "owned by another role than runs_run"),
    ],
)
def test_a_retention_function_with_other_rights_is_found(look: Look, sql: str, told: str):
    assert look(doctor.retention_function) == []
    run_sql(sql)
    assert one(look(doctor.retention_function)) == f"agentops_delete_runs: {told}"


# --- installation --------------------------------------------------------------------------------------------------------


def test_a_missing_secret_key_is_found(look: Look, settings: Settings):
    assert look(installation.configuration) == []
    settings.SECRET_KEY = ""
    assert any("agentops.E001" in finding.sample[0] for finding in look(installation.configuration))


def test_hosts_that_nobody_named_are_found(look: Look, settings: Settings):
    settings.ALLOWED_HOSTS = []
    assert any("agentops.E002" in finding.sample[0] for finding in look(installation.configuration))


def test_debug_mode_on_a_public_host_is_a_warning(look: Look, settings: Settings):
    settings.ALLOWED_HOSTS = ["agents.example.com"]
    (finding,) = look(installation.configuration)
    assert "agentops.W001" in finding.sample[0]
    assert finding.severity == "warning"


def test_outside_debug_mode_the_checks_of_a_deployment_count(look: Look, settings: Settings):
    settings.AGENTOPS_DEBUG = False
    settings.SECRET_KEY = "short"
    assert any("security.W009" in finding.sample[0] for finding in look(installation.configuration))


def test_working_as_the_owner_of_the_tables_is_a_warning(look: Look, settings: Settings):
    assert look(installation.assumed_role) == []
    settings.AGENTOPS_DEBUG = False
    settings.AGENTOPS_DB_ROLE = ""
    assert "connected as" in one(look(installation.assumed_role), "warning")
    settings.AGENTOPS_DB_ROLE = "agentops_app"
    assert look(installation.assumed_role) == []


def test_a_migration_that_was_not_applied_is_found(look: Look):
    assert look(installation.migrations) == []
    MigrationRecorder(connection).record_unapplied("approvals", "0009_alike")
    assert one(look(installation.migrations)) == "approvals.0009_alike"


def test_a_migration_of_newer_code_is_a_warning(look: Look):
    assert look(installation.unknown_migrations) == []
    MigrationRecorder(connection).record_applied("runs", "9999_tomorrow")
    assert one(look(installation.unknown_migrations), "warning") == "runs.9999_tomorrow"


@pytest.mark.parametrize(
    ("offset", "severity", "words"),
    [
        (timedelta(seconds=-10), "warning", "ahead of"),
        (timedelta(seconds=10), "warning", "behind"),
        (timedelta(minutes=10), "error", "behind"),
        (timedelta(minutes=-10), "error", "ahead of"),
    ],
)
def test_clocks_that_differ_are_found(
    look: Look, monkeypatch: pytest.MonkeyPatch, offset: timedelta, severity: str, words: str
):
    assert look(installation.clock_skew) == []
    monkeypatch.setattr(
        doctor.Snapshot, "rows", lambda self, sql: [(datetime.now(UTC) + offset,)], raising=True
    )
    assert f"s {words} the database" in one(look(installation.clock_skew), severity)


def test_a_moved_clock_is_a_warning(look: Look):
    assert look(installation.moved_clock) == []
    clock.shift(timedelta(hours=2))
    assert one(look(installation.moved_clock), "warning") == "by 02:00:00"


def test_an_old_server_is_found(look: Look, monkeypatch: pytest.MonkeyPatch):
    assert look(installation.old_server) == []
    monkeypatch.setattr(installation, "OLDEST_POSTGRESQL", 99)
    assert one(look(installation.old_server)).startswith("PostgreSQL ")


def test_a_server_that_may_lose_what_it_confirmed_is_found(look: Look):
    run_sql("SET LOCAL synchronous_commit = off")
    found = [item for finding in look(installation.durability) for item in finding.sample]
    assert "synchronous_commit is off" in found
