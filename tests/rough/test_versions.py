"""PostgreSQL 15, 16 and 17, where Debian's packages are installed; all other tests run on 18, the embedded one."""

import os
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from agentops.checks import OLDEST_POSTGRESQL
from tests.harness.server import ThrowAwayServer
from tests.rough.nested import CORE, SHORT, run_tests

# The embedded one.
NEWEST = 18
PACKAGES = Path("/usr/lib/postgresql")


def binaries(version: int) -> Path | None:
    """Folder of a server's programs: where Debian puts them, or where AGENTOPS_TEST_POSTGRESQL_<version> says."""
    given = os.environ.get(f"AGENTOPS_TEST_POSTGRESQL_{version}")
    folder = Path(given) if given else PACKAGES / str(version) / "bin"
    return folder if (folder / "postgres").exists() else None


@pytest.fixture(params=range(OLDEST_POSTGRESQL, NEWEST))
def server(request: pytest.FixtureRequest) -> Iterator[ThrowAwayServer]:
    version: int = request.param
    programs = binaries(version)
    if programs is None:
        # The oldest one is what the documentation promises.
        if version == OLDEST_POSTGRESQL and os.environ.get("CI") == "true":
            pytest.fail(f"PostgreSQL {version} is not installed: apt-get install postgresql-{version}")
        pytest.skip(f"PostgreSQL {version} is not installed")
    folder = Path(os.environ["AGENTOPS_TEST_FOLDER"]) / f"postgres-{version}"
    server = ThrowAwayServer(folder, binaries=programs)
    server.start()
    with psycopg.connect(server.url()) as raw:
        assert raw.info.server_version // 10000 == version
    yield server
    server.stop("immediate")


def test_an_older_postgresql_migrates_and_keeps_the_rules(server: ThrowAwayServer, tmp_path: Path) -> None:
    run_tests(server.url(), SHORT, tmp_path / "nested", timeout=300)


@pytest.mark.long
def test_an_older_postgresql_passes_the_tests_of_the_engine(server: ThrowAwayServer, tmp_path: Path) -> None:
    print(run_tests(server.url(), CORE, tmp_path / "nested", timeout=1800))
