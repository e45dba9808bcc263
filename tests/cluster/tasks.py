"""Ordinary tasks for the tests."""

import signal
import sys
import time
from pathlib import Path

from django.db import connection


def double(number: int) -> int:
    return number * 2


def fail() -> None:
    raise ValueError("the task was asked to fail")


def leave() -> None:
    sys.exit(3)


def give_lambda() -> object:
    return lambda: None


def wait_for(path: str) -> str:
    """Say that it has begun, by the file PATH.begun, and end when PATH exists."""
    Path(f"{path}.begun").touch()
    while not Path(path).exists():
        time.sleep(0.02)
    return "seen"


def never_end() -> None:
    while True:
        time.sleep(0.02)


def never_end_nor_be_interrupted() -> None:
    """Like a call into a library that does not come back: the alarm of the time-out does not reach it."""
    signal.signal(signal.SIGALRM, signal.SIG_IGN)
    never_end()


def pool_facts() -> dict[str, int]:
    connection.ensure_connection()
    pool = connection.pool  # type: ignore[attr-defined]
    return {"min_size": pool.min_size, "max_size": pool.max_size}


def append_line(path: str, line: str) -> None:
    with Path(path).open("a") as file:
        file.write(line + "\n")
