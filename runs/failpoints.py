"""Failpoints: named places between two durable facts, where tests and `chaos` can kill, stop or delay a process.

A place is marked by `failpoint("intent.committed")`. Which ones do something is read once, at import, from
AGENTOPS_FAILPOINTS: entries `NAME=ACTION[:ARGUMENT][@N][;once:PATH]`, separated by commas.

    kill            the process sends itself SIGKILL
    stop            the process sends itself SIGSTOP, and goes on after SIGCONT
    exit[:STATUS]   the process ends at once, without clean-up (status 1)
    raise           FailpointError is raised in the place
    delay:SECONDS   the place sleeps
    pause:PATH      the place writes PATH.hit and waits until PATH.go exists

`@N` limits an entry to the Nth time that this process comes by; `once:PATH` to the first time that any process does,
remembered by the file PATH. Several entries may share a name: each is tried in its order.
"""

import os
import re
import signal
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured

VARIABLE = "AGENTOPS_FAILPOINTS"

_ENTRY = re.compile(
    r"(?P<name>[a-z0-9_.]+)=(?P<action>[a-z]+)(?::(?P<argument>[^;]*?))?(?:@(?P<nth>[1-9][0-9]*))?(?:;once:(?P<once>.+))?"
)
_NEEDS_ARGUMENT = {"kill": False, "stop": False, "exit": None, "raise": False, "delay": True, "pause": True}


class FailpointError(Exception):
    """Raised by a failpoint whose action is `raise`."""


@dataclass(frozen=True, slots=True)
class _Entry:
    name: str
    action: str
    argument: str
    nth: int | None
    once: Path | None


_active = False
_entries: tuple[_Entry, ...] = ()
_hits: dict[str, int] = {}
_hits_lock = threading.Lock()


def failpoint(name: str) -> None:
    """Mark a place; does nothing unless an entry for `name` is switched on. Blocks the event loop when it waits."""
    if _active:
        _hit(name)


def configure(text: str) -> None:
    """Switch on the entries of `text`, and off all others; counting starts anew.

    Raises ImproperlyConfigured when `text` cannot be read, or is not empty although AGENTOPS_DEBUG is off.
    """
    global _active, _entries
    entries = tuple(_parse(part.strip()) for part in text.split(",") if part.strip())
    if entries and not settings.AGENTOPS_DEBUG:
        raise ImproperlyConfigured(
            f"{VARIABLE} is set, but failpoints need AGENTOPS_DEBUG: unset {VARIABLE}."
        )
    with _hits_lock:
        _hits.clear()
        _entries = entries
        _active = bool(entries)


def _parse(part: str) -> _Entry:
    match = _ENTRY.fullmatch(part)
    if match is None:
        raise ImproperlyConfigured(f"{VARIABLE} has {part!r}: write NAME=ACTION[:ARGUMENT][@N][;once:PATH].")
    action, argument = match["action"], match["argument"] or ""
    if action not in _NEEDS_ARGUMENT:
        raise ImproperlyConfigured(
            f"{VARIABLE} has {part!r}: {action} is none of {', '.join(_NEEDS_ARGUMENT)}."
        )
    needed = _NEEDS_ARGUMENT[action]
    if needed is not None and needed != bool(argument):
        raise ImproperlyConfigured(
            f"{VARIABLE} has {part!r}: {action} takes {'an' if needed else 'no'} argument."
        )
    try:
        if action == "delay":
            float(argument)
        elif action == "exit":
            int(argument or 1)
    except ValueError:
        raise ImproperlyConfigured(f"{VARIABLE} has {part!r}: {argument} is not a number.") from None
    return _Entry(
        name=match["name"],
        action=action,
        argument=argument,
        nth=int(match["nth"]) if match["nth"] else None,
        once=Path(match["once"]) if match["once"] else None,
    )


def _hit(name: str) -> None:
    with _hits_lock:
        count = _hits.get(name, 0) + 1
        _hits[name] = count
        entries = _entries
    for entry in entries:
        if entry.name == name and entry.nth in {None, count} and _is_first(entry.once):
            _act(entry)


def _is_first(marker: Path | None) -> bool:
    if marker is None:
        return True
    try:
        os.close(os.open(marker, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644))
    except FileExistsError:
        return False
    return True


def _act(entry: _Entry) -> None:
    match entry.action:
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
            # The signal may reach another thread first: this one must not go past the place.
            threading.Event().wait()
        case "stop":
            # To this thread: sent to the process, another thread may take it while this one goes past the place.
            signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
        case "exit":
            os._exit(int(entry.argument or 1))
        case "raise":
            raise FailpointError(f"failpoint {entry.name}")
        case "delay":
            time.sleep(float(entry.argument))
        case "pause":
            _announce(Path(f"{entry.argument}.hit"))
            go = Path(f"{entry.argument}.go")
            while not go.exists():
                time.sleep(0.005)


def _announce(path: Path) -> None:
    # Whoever sees the file may read it: it appears whole, with the number of the process in it.
    draft = path.with_name(f"{path.name}.{os.getpid()}.{threading.get_ident()}")
    draft.write_text(str(os.getpid()))
    draft.replace(path)


configure(os.environ.get(VARIABLE, ""))
