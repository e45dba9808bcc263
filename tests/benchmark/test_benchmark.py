"""The benchmark in miniature: that it measures every figure and leaves nothing behind. Never how fast."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from xml.etree import ElementTree

import psycopg
import pytest

from agentops.benchmark.figures import MEANINGS, Wanted, percentile, table
from agentops.benchmark.trace import VARIABLE, Trace
from agentops.embedded import PostgresServer
from agentops.management.commands.benchmark import WORKS
from tests.harness.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def durable_server() -> Iterator[PostgresServer]:
    """A server with the settings of an installation: the tests' own one is not durable."""
    server = PostgresServer(Path(os.environ["AGENTOPS_TEST_FOLDER"]) / "durable")
    server.start()
    yield server
    server.stop("immediate")


type Begin = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def benchmark() -> Iterator[Begin]:
    """Begins a benchmark on the server with this URL, and ends it whatever the test does."""
    begun: list[subprocess.Popen[str]] = []

    def begin(url: str, *arguments: str) -> subprocess.Popen[str]:
        command = subprocess.Popen(
            [sys.executable, "manage.py", "benchmark", "--quick", *arguments],
            cwd=ROOT,
            env={**os.environ, "DJANGO_SETTINGS_MODULE": "agentops.settings", "DATABASE_URL": url},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        begun.append(command)
        return command

    yield begin
    for command in begun:
        if command.poll() is None:
            command.send_signal(signal.SIGTERM)
            # It drops its databases, and says where it stood.
            print(command.communicate(timeout=60)[0])


def databases(server: PostgresServer) -> set[str]:
    with psycopg.connect(server.url()) as session:
        return {name for (name,) in session.execute("SELECT datname FROM pg_database")}


def test_it_measures_every_figure_and_drops_its_databases(
    benchmark: Begin, durable_server: PostgresServer, tmp_path: Path
) -> None:
    report, chart = tmp_path / "figures.json", tmp_path / "growth.svg"
    before = databases(durable_server)
    command = benchmark(
        durable_server.url(),
        "--json",
        str(report),
        "--chart",
        str(chart),
        "--only",
        ",".join(WORKS),
        "--processes",
        "1",
        "--slots",
        "4",
    )
    output, _ = command.communicate(timeout=600)
    assert command.returncode == 0, output
    figures = json.loads(report.read_text())
    about = figures.pop("about")
    optional = {"memory.pss_mb"}
    growth = {key for key in figures if key.startswith("growth.")}
    assert len(growth) == 12
    assert set(MEANINGS) - optional <= set(figures) - growth <= set(MEANINGS)
    assert ElementTree.parse(chart).getroot().tag.endswith("svg")
    assert all(isinstance(figure, int | float) and figure >= 0 for figure in figures.values())
    assert about["workers"] == ["--processes", "1", "--slots", "4"] and about["quick"] is True
    assert "W1.ratio_to_floor" in output
    assert databases(durable_server) == before


def test_a_stopped_benchmark_drops_its_databases(benchmark: Begin, durable_server: PostgresServer) -> None:
    before = databases(durable_server)
    command = benchmark(durable_server.url(), "--only", "floor")
    wait_until(lambda: databases(durable_server) > before, 60, "it has made its databases")
    command.send_signal(signal.SIGTERM)
    command.communicate(timeout=60)
    assert command.returncode == 143
    assert databases(durable_server) == before


def test_a_second_benchmark_on_the_same_server_is_refused(
    benchmark: Begin, durable_server: PostgresServer
) -> None:
    with psycopg.connect(durable_server.url()) as other:
        other.execute("SELECT pg_advisory_lock(%s)", [0xA6E70B5])
        output, _ = benchmark(durable_server.url(), "--only", "floor").communicate(timeout=60)
    assert "Another benchmark is at work" in output


@pytest.mark.django_db(transaction=True)
def test_a_server_that_is_not_durable_is_refused(benchmark: Begin, database_url: str) -> None:
    command = benchmark(database_url, "--only", "floor")
    output, _ = command.communicate(timeout=60)
    assert command.returncode == 1
    assert "fsync = off" in output


def test_an_unknown_work_is_refused(benchmark: Begin, durable_server: PostgresServer) -> None:
    command = benchmark(durable_server.url(), "--only", "W99")
    output, _ = command.communicate(timeout=60)
    assert command.returncode != 0
    assert "there is no work W99; known: floor, W1, " in output


def test_a_percentile_is_a_sample_that_so_many_do_not_exceed() -> None:
    samples = [float(n) for n in range(1, 101)]
    assert [percentile(samples, p) for p in (50, 99, 100)] == [50.0, 99.0, 100.0]
    assert percentile([7.0], 50) == 7.0


def test_a_figure_is_met_or_missed() -> None:
    assert Wanted("least", 0.3).holds(0.3) and not Wanted("least", 0.3).holds(0.29)
    assert Wanted("most", 15).holds(15) and not Wanted("most", 15).holds(15.1)
    made = table({"W1.ratio_to_floor": 0.2, "W2.p50_ms": 3.0})
    assert list(made.columns[3].cells) == ["missed", "met"]


def test_marks_of_steps_arrive_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = Trace(tmp_path)
    monkeypatch.setenv(VARIABLE, str(trace.path))
    from agentops.benchmark import trace as module

    monkeypatch.setattr(module, "_pipes", {})
    begun = time.monotonic()
    for number in range(3):
        module.mark("here", number)
    marks = trace.wait(lambda mark: mark.number != 1, 2, 5, "two marks")
    assert [(m.what, m.number, m.pid) for m in marks] == [("here", 0, os.getpid()), ("here", 2, os.getpid())]
    assert begun - 0.01 <= marks[0].at <= marks[1].at <= time.monotonic()
    os.close(module._pipes[os.getpid()])
    trace.close()
