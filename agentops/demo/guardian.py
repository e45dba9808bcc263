"""`python -m agentops.demo.guardian DATA_DIR`: stops the embedded database once the demo has gone, however it went.

It shares the server and waits for the end of its standard input, which the demo holds open: also `kill -9` of the demo
ends that. Whoever else uses the server keeps it running.
"""

import sys
import time
from pathlib import Path

from agentops import embedded

#: Seconds in which the demo's other processes, which die with it, give their shares back.
PATIENCE_S = 5.0


def main(data_dir: Path) -> None:
    embedded.hold(data_dir)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.read()
    deadline = time.monotonic() + PATIENCE_S
    while not embedded.release(data_dir) and time.monotonic() < deadline:
        time.sleep(0.1)
        embedded.hold(data_dir)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
