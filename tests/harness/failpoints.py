"""Switch failpoints on in other processes (through their environment) and in this one."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from runs import failpoints
from tests.harness.waiting import wait_until


@dataclass(frozen=True, slots=True)
class Failpoint:
    """One entry of AGENTOPS_FAILPOINTS; see runs/failpoints.py for the actions."""

    name: str
    action: str
    argument: str | float | Path = ""
    nth: int | None = None
    once: Path | None = None

    def __str__(self) -> str:
        return (
            f"{self.name}={self.action}"
            + (f":{self.argument}" if self.argument != "" else "")
            + (f"@{self.nth}" if self.nth else "")
            + (f";once:{self.once}" if self.once else "")
        )


def environment(*entries: Failpoint) -> dict[str, str]:
    """Return the environment variables that switch `entries` on in a child process."""
    return {failpoints.VARIABLE: ",".join(map(str, entries))}


@contextmanager
def switched_on(*entries: Failpoint) -> Iterator[None]:
    """Switch `entries` on in this process, for the time of the block."""
    failpoints.configure(",".join(map(str, entries)))
    try:
        yield
    finally:
        failpoints.configure("")


class Pause:
    """A place where processes wait until the test lets them go on."""

    def __init__(self, folder: Path, name: str, *, nth: int | None = None, only_once: bool = True) -> None:
        self.name = name
        self._path = folder / f"pause-{name}"
        self.entry = Failpoint(
            name, "pause", self._path, nth=nth, once=folder / f"once-{name}" if only_once else None
        )

    @property
    def is_hit(self) -> bool:
        """Whether a process has come to the place."""
        return self._hit.exists()

    def wait(self, timeout: float = 60) -> int:
        """Wait until a process has come to the place; returns its number. `timeout` in seconds."""
        wait_until(lambda: self.is_hit, timeout, f"a process comes to failpoint {self.name}")
        return int(self._hit.read_text())

    def go(self) -> None:
        """Let all processes at the place go on, now and later."""
        Path(f"{self._path}.go").touch()

    @property
    def _hit(self) -> Path:
        return Path(f"{self._path}.hit")
