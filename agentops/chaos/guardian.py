"""`python -m agentops.chaos.guardian FOLDER`: puts a trial's database server and folder away once the trial has gone.

It waits for the end of its standard input, which the trial holds open: also `kill -9` of the trial ends that. All other
processes of a trial are told of its death by the kernel.
"""

import shutil
import sys
import time
from pathlib import Path

from agentops.chaos.surroundings import KEEP
from agentops.embedded.server import PostgresServer

#: For programs that are being killed to let go of their files (seconds).
PATIENCE_S = 5.0


def main(folder: Path) -> None:
    sys.stdin.read()
    PostgresServer(folder / "postgres").stop("immediate")
    deadline = time.monotonic() + PATIENCE_S
    while not (folder / KEEP).exists() and folder.exists() and time.monotonic() < deadline:
        shutil.rmtree(folder, ignore_errors=True)
        time.sleep(0.05)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
