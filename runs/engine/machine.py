"""Which process this is, so that any other one on the same machine can tell when it has certainly ended.

A host's name proves nothing: two containers may share it. The kernel's boot id and the PID namespace do not repeat, and the
start time tells a process from a later one with the same number. Linux only; elsewhere nothing is known.
"""

from pathlib import Path

_PROC = Path("/proc")


def here() -> str:
    """This boot of this machine and its PID namespace; '' where that cannot be told."""
    try:
        boot = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{(_PROC / 'self/ns/pid').readlink()}"
    except OSError:
        return ""


def identity(pid: int) -> str:
    """What tells this process from all others, ever; '' where that cannot be told."""
    place, started = here(), _started(pid)
    return f"{place}/{pid}/{started}" if place and started else ""


def has_ended(process: str) -> bool:
    """Whether the process that `identity` described has certainly ended: it was on this machine and is not any more."""
    place, _, rest = process.rpartition("/")
    place, _, pid = place.rpartition("/")
    return bool(place) and place == here() and _started(int(pid)) != rest


def _started(pid: int) -> str:
    """Start time of a living process in clock ticks since boot; '' if there is none, or it is a zombie, which does nothing."""
    try:
        stat = (_PROC / str(pid) / "stat").read_text()
    except OSError:
        return ""
    # The name, in brackets, may hold anything; state is the third field and start time the 22nd (proc_pid_stat(5)).
    fields = stat.rpartition(")")[2].split()
    return "" if fields[0] in "ZX" else fields[19]
