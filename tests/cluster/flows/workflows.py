"""Steps that wait for files, and one that kills its own process."""

import os
import signal
import time
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from runs.workflow import Complete, Workflow


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
