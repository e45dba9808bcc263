"""`manage.py chaos`: a short trial in real processes, and a judge that cannot be talked into anything."""

import json
import re
import shutil
import signal
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest
from django.core.management import CommandError, call_command

from agentops.chaos.plan import GROUPS, Group, Kind
from agentops.chaos.surroundings import SERVER
from agentops.embedded import PostgresServer
from tests.harness.processes import Child, Processes
from tests.harness.waiting import wait_until

KEYS = [
    *("runs", "completed", "attention", "failed", "cancelled", "faults", "effects_expected", "effects_seen"),
    *(
        "lost",
        "repeated",
        "in_doubt_settled",
        "recovery_p50_s",
        "recovery_p99_s",
        "recovery_max_s",
        "invariants_ok",
    ),
]
#: Seconds; all limits are far above what a quiet machine needs.
LIMIT = 300


class Commands(Processes):
    """`manage.py chaos` without anything of the tests' surroundings."""

    def chaos(self, *arguments: str, **env: str) -> Child:
        # An empty variable counts as unset.
        return self.manage("chaos", *arguments, env={"DATABASE_URL": "", "AGENTOPS_APPS": "", **env})

    def ended(self, child: Child) -> tuple[int, str]:
        """Exit code and output."""
        code = child.wait_ended(LIMIT)
        return code, output(child)


def output(child: Child) -> str:
    return child.log_path.read_text(errors="replace")


def folder_of(child: Child) -> Path:
    found = re.search(r"^seed \d+, in (.+)$", output(child), re.MULTILINE)
    assert found is not None, output(child)
    return Path(found[1])


def living_in(folder: Path) -> list[str]:
    """Command lines of processes that belong to a trial; PostgreSQL leads a session of its own."""
    lines = (" ".join(process.info["cmdline"] or []) for process in psutil.process_iter(["cmdline"]))
    return [line for line in lines if str(folder) in line]


@dataclass(frozen=True)
class Trial:
    """A trial that has ended."""

    code: int
    output: str
    report: dict[str, Any]
    folder: Path


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Commands]:
    with Commands(tmp_path_factory.mktemp("chaos"), "") as started:
        yield started


@pytest.fixture(scope="module")
def both(commands: Commands) -> Iterator[tuple[Trial, Trial]]:
    """Two trials at once on this machine: one to its end, one that is interrupted."""
    whole, cut = commands.folder / "whole.json", commands.folder / "cut.json"
    long = (
        "--duration",
        "300",
        "--rate",
        "1",
        "--processes",
        "1",
        "--clusters",
        "1",
        "--without",
        "database",
    )
    interrupted = commands.chaos(*long, "--json", str(cut))
    short = (
        "--duration",
        "10",
        "--seed",
        "7",
        "--rate",
        "2",
        "--faults-per-minute",
        "90",
        "--processes",
        "1",
    )
    trial = commands.chaos(*short, "--keep", "--json", str(whole))
    interrupted.wait_until(
        lambda: "runs, " in output(interrupted) or interrupted.returncode is not None, LIMIT, "it runs"
    )
    interrupted.send_to_all(signal.SIGINT)
    cut_code, cut_output = commands.ended(interrupted)
    code, told = commands.ended(trial)
    folder = folder_of(trial)
    assert whole.exists(), told
    assert cut.exists(), cut_output
    try:
        yield (
            Trial(code, told, json.loads(whole.read_text()), folder),
            Trial(cut_code, cut_output, json.loads(cut.read_text()), folder_of(interrupted)),
        )
    finally:
        shutil.rmtree(folder)


@pytest.fixture
def trial(both: tuple[Trial, Trial]) -> Trial:
    return both[0]


# --- a short trial --------------------------------------------------------------------------------------------------------


def test_nothing_is_lost_and_nothing_happens_twice(trial: Trial):
    assert trial.code == 0, trial.output
    report = trial.report
    assert (report["lost"], report["repeated"], report["invariants_ok"], report["wrong"]) == (0, 0, True, {})
    assert report["runs"] == report["completed"] + report["failed"] + report["cancelled"] > 5
    assert report["effects_expected"] == report["effects_seen"] > 5
    assert report["not_observable"] == {}
    assert "Nothing lost, nothing twice" in trial.output


def test_the_report_has_the_keys_that_were_agreed_on(trial: Trial):
    assert list(trial.report)[: len(KEYS)] == KEYS
    assert trial.report.keys() >= {"faults_by_kind", "seed", "duration", "wrong"}
    assert trial.report["seed"] == 7


def test_faults_of_every_group_happened(trial: Trial):
    by_kind = trial.report["faults_by_kind"]
    assert trial.report["faults"] == sum(by_kind.values()) >= 8
    for group in (Group.PROCESSES, Group.DATABASE, Group.PEOPLE):
        assert by_kind.keys() & set(GROUPS[group]), f"none of {group}"
    assert any(kind.startswith("provider_") for kind in by_kind)


def test_a_trial_leaves_nothing_running(trial: Trial):
    assert living_in(trial.folder) == []


def test_ctrl_c_ends_it_with_the_report_so_far_and_nothing_is_left(both: tuple[Trial, Trial]):
    _, interrupted = both
    assert interrupted.code == 130, interrupted.output
    assert interrupted.report["interrupted"] is True
    assert interrupted.report["runs"] > 0
    wait_until(lambda: not living_in(interrupted.folder), 20, "its processes are gone")
    wait_until(lambda: not interrupted.folder.exists(), 20, "its folder is gone")


@pytest.mark.long
def test_kill_9_of_a_trial_leaves_nothing_behind(commands: Commands):
    child = commands.chaos("--duration", "300", "--rate", "1", "--clusters", "1", "--processes", "1")
    child.wait_until(lambda: "runs, " in output(child) or child.returncode is not None, LIMIT, "it runs")
    folder = folder_of(child)
    assert living_in(folder)
    psutil.Process(child.pid).kill()
    wait_until(lambda: not living_in(folder), 30, "its processes are gone")
    wait_until(lambda: not folder.exists(), 30, "its folder is gone")


# --- the judge, from outside ------------------------------------------------------------------------------------------------


def judge_again(commands: Commands, folder: Path) -> tuple[int, str, dict[str, Any]]:
    file = commands.folder / "again.json"
    file.unlink(missing_ok=True)
    code, told = commands.ended(commands.chaos("--judge", str(folder), "--json", str(file)))
    return code, told, json.loads(file.read_text()) if file.exists() else {}


def test_a_kept_trial_that_was_tampered_with_is_found_out(commands: Commands, trial: Trial):
    """One effect doubled and one removed in the ledger, one event changed in the database: each is named."""
    ledger = sqlite3.connect(trial.folder / "sandbox" / "ledger.sqlite3")
    with ledger:
        doubled, removed = (
            row[0]
            for row in ledger.execute("SELECT key FROM entries WHERE kind = 'mail' ORDER BY no LIMIT 2")
        )
        columns = "at, kind, key, order_id, reference, business_key, digest, request_no, answer"
        ledger.execute(
            f"INSERT INTO entries ({columns}) SELECT {columns} FROM entries WHERE key = ?", (doubled,)
        )
        ledger.execute("DELETE FROM entries WHERE key = ?", (removed,))
    ledger.close()
    server = PostgresServer(trial.folder / "postgres", settings=SERVER)
    server.start()
    with psycopg.connect(server.url(), autocommit=True) as connection:
        connection.execute("SET session_replication_role = replica")
        (run,) = connection.execute(
            "UPDATE runs_event SET actor = 'nobody' WHERE (run_id, seq) IN (SELECT run_id, seq FROM runs_event LIMIT 1)"
            " RETURNING run_id"
        ).fetchone() or ("",)
    server.stop()

    code, told, report = judge_again(commands, trial.folder)
    assert code == 1, told
    assert (report["repeated"], report["lost"], report["invariants_ok"]) == (1, 1, False)
    assert doubled in report["wrong"]["repeated"][0]
    assert removed in report["wrong"]["lost"][0]
    assert f"run {run}" in "".join(report["wrong"]["doctor"])
    assert "Something is wrong" in told


def test_a_folder_without_a_trial_cannot_be_judged(commands: Commands, tmp_path: Path):
    code, told, _ = judge_again(commands, tmp_path)
    assert code == 2
    assert "holds no trial" in told


# --- arguments --------------------------------------------------------------------------------------------------------------


def refused(commands: Commands, *arguments: str, **env: str) -> str:
    code, told = commands.ended(commands.chaos(*arguments, **env))
    assert code != 0
    assert "setting up" not in told
    return told


def test_a_database_of_ones_own_is_never_used(commands: Commands):
    told = refused(commands, DATABASE_URL="postgresql://somebody@db.example/production")
    assert "DATABASE_URL is set" in told
    assert "production" not in told


def test_it_needs_debug_mode(commands: Commands):
    assert "AGENTOPS_DEBUG=0 forbids" in refused(commands, AGENTOPS_DEBUG="0")


def test_unknown_kinds_and_workflows_are_named(commands: Commands):
    told = refused(commands, "--only", "kill_worker,earthquake")
    assert "earthquake" in told
    assert all(kind in told for kind in Kind)
    assert "no workflow 'nothing'" in refused(commands, "--workflow", "nothing")


def test_an_input_belongs_behind_its_workflow(commands: Commands):
    assert "belongs behind the --workflow" in refused(commands, "--input", "{}")


def test_it_runs_in_no_process_whose_settings_are_those_of_an_installation():
    with pytest.raises(CommandError, match="a process of its own"):
        call_command("chaos")
