"""Steps that wait for files, and one that kills its own process."""

import os
import signal
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from runs.workflow import Complete, Workflow, tool


class Gate(BaseModel):
    path: str


def begun(path: str) -> list[int]:
    """Process ids in which a step for this gate has begun, in order."""
    book = Path(f"{path}.begun")
    return [int(line) for line in book.read_text().split()] if book.exists() else []


gated = Workflow("cluster_gated", input=Gate)


@gated.step(start=True, timeout=120)
def pass_gate(ctx: Any) -> Complete:
    """Write down that it has begun, and end when the file exists."""
    with Path(f"{ctx.input.path}.begun").open("a") as book:
        book.write(f"{os.getpid()}\n")
    while not Path(ctx.input.path).exists():
        time.sleep(0.02)
    return Complete({"pid": os.getpid()})


deadly = Workflow("cluster_deadly", input=Gate)


@deadly.step(start=True, timeout=30)
def kill_own_process(ctx: Any) -> Complete:
    with Path(f"{ctx.input.path}.begun").open("a") as book:
        book.write(f"{os.getpid()}\n")
    os.kill(os.getpid(), signal.SIGKILL)
    return Complete()


@contextmanager
def inside(folder: Path, what: str) -> Iterator[None]:
    """Stand in a place of this kind until the file that opens it is there, and write down how many stand there."""
    place = folder / f"in-{what}-{os.getpid()}-{uuid.uuid4()}"
    place.touch()
    with (folder / f"book-{what}").open("a") as book:
        book.write(f"{len(list(folder.glob(f'in-{what}-*')))} {os.getpid()}\n")
    while not (folder / f"open-{what}").exists():
        time.sleep(0.02)
    time.sleep(0.02)
    place.unlink(missing_ok=True)
    yield


def crowds(folder: Path) -> dict[str, list[int]]:
    """How many stood in a step, and in a call, each time that one came; and the process ids of those who came to a step."""
    told: dict[str, list[tuple[int, int]]] = {}
    for what in ("step", "call"):
        book = folder / f"book-{what}"
        lines = book.read_text().splitlines() if book.exists() else []
        told[what] = [(int(one.split()[0]), int(one.split()[1])) for one in lines if " " in one]
    return {
        "step": [count for count, _ in told["step"]],
        "call": [count for count, _ in told["call"]],
        "pids": [pid for _, pid in told["step"]],
    }


@tool
def crowded_call(path: str) -> None:
    with inside(Path(path), "call"):
        return


crowded = Workflow("cluster_crowded", input=Gate)


@crowded.step(start=True, timeout=60)
def crowd(ctx: Any) -> Complete:
    with inside(Path(ctx.input.path), "step"):
        ctx.call(crowded_call, path=ctx.input.path)
    return Complete()
