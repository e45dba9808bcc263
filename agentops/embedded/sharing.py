"""Sharing of one embedded server by the processes of a checkout, through file locks.

`users.lock` is held in shared mode by every process that uses the server: whoever gets it in exclusive mode is alone.
`server.lock` is held in exclusive mode while the server is started or stopped. Both belong to open files, so that the
kernel releases them whatever ends a process; forked children keep their parent's share alive.
"""

import atexit
import fcntl
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from agentops.embedded.server import ADVICE, DATABASE, PORT, ROLE, EmbeddedUnavailable, PostgresServer

# Folder of the server -> descriptor of users.lock that holds this process's share (forked children inherit it).
_shares: dict[Path, int] = {}
_shares_lock = threading.Lock()


def server_folder(data_dir: Path) -> Path:
    """Return the server's folder under the data folder."""
    return data_dir.absolute() / "postgres"


def database(data_dir: Path) -> dict[str, Any]:
    """Return Django's settings for the embedded database of `data_dir`; starts nothing."""
    server = PostgresServer(server_folder(data_dir))
    return {
        "ENGINE": "agentops.embedded",
        "NAME": DATABASE,
        "USER": ROLE,
        "PASSWORD": "",
        "HOST": str(server.socket_folder),
        "PORT": str(PORT),
        "OPTIONS": {},
    }


def hold(data_dir: Path) -> PostgresServer:
    """Have the server of `data_dir` run, and keep it running until this process ends or calls `release`.

    May be called again, for example after the server died. Raises EmbeddedUnavailable.
    """
    folder = server_folder(data_dir)
    server = PostgresServer(folder)
    with _shares_lock, _turn(folder):
        if folder not in _shares:
            _shares[folder] = _share(folder)
            atexit.register(_release_at_exit, data_dir, os.getpid())
        server.start()
    return server


def release(data_dir: Path) -> bool:
    """Give this process's share back; the last one to do so stops the server. Returns whether it was stopped."""
    folder = server_folder(data_dir)
    with _shares_lock:
        share = _shares.pop(folder, None)
        if share is None:
            return False
        with _turn(folder):
            # Closed, not unlocked: unlocking would end the share of forked children too.
            os.close(share)
            if not _is_alone(folder):
                return False
            PostgresServer(folder).stop()
            return True


def holds(data_dir: Path) -> bool:
    """Whether this process, or the one it was forked from, has a share."""
    return server_folder(data_dir) in _shares


def _release_at_exit(data_dir: Path, pid: int) -> None:
    # A forked child that ends in the ordinary way runs its parent's exit functions.
    if os.getpid() == pid:
        release(data_dir)


@contextmanager
def _turn(folder: Path) -> Iterator[None]:
    descriptor = _open(folder, "server.lock")
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _share(folder: Path) -> int:
    descriptor = _open(folder, "users.lock")
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    return descriptor


def _is_alone(folder: Path) -> bool:
    descriptor = _open(folder, "users.lock")
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    else:
        return True
    finally:
        os.close(descriptor)


def _open(folder: Path, name: str) -> int:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return os.open(folder / name, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise EmbeddedUnavailable(
            f"{error.filename or folder} cannot be used for the embedded database ({error.strerror}): set "
            f"AGENTOPS_DATA_DIR to a folder that you may write to, {ADVICE}."
        ) from error
