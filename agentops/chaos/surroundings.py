"""A place of its own for each trial: prepared before Django's settings are read, so that no process ever sees another one.

`manage.py` calls `prepare` for the command `chaos`. It only chooses names; the folder is made by the trial.
"""

import json
import os
import secrets
import tempfile
from base64 import b64encode
from collections.abc import MutableMapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from agentops.embedded.server import PostgresServer

#: Shorter than in production, so that minutes hold what days would: seconds. A value of one's own stands.
QUICK = {
    "AGENTOPS_LEASE_SECONDS": "3",
    "AGENTOPS_BEAT_SECONDS": "0.6",
    "AGENTOPS_SEND_MARGIN_SECONDS": "1",
    "AGENTOPS_POLL_SECONDS": "0.25",
    "AGENTOPS_GRACE_SECONDS": "3",
}
_LEASE = ("AGENTOPS_LEASE_SECONDS", "AGENTOPS_BEAT_SECONDS", "AGENTOPS_SEND_MARGIN_SECONDS")
#: What would lead a trial out of its folder: to a database, a mail server, a model that costs money.
_LEADS_OUT = (
    *("DATABASE_URL", "DATABASE_URL_FILE", "AGENTOPS_DB_ROLE", "AGENTOPS_FAILPOINTS"),
    *("AGENTOPS_SMTP_USER", "AGENTOPS_SMTP_PASSWORD", "AGENTOPS_SMTP_PASSWORD_FILE", "AGENTOPS_SMTP_TLS"),
    *(
        "AGENTOPS_MODEL_BASE_URL",
        "AGENTOPS_MODEL_API_KEY",
        "AGENTOPS_MODEL_API_KEY_FILE",
        "AGENTOPS_MODEL_NAME",
    ),
    *("AGENTOPS_SECRET_KEY_FILE", "AGENTOPS_SECRET_KEY_FALLBACKS", "AGENTOPS_WEBHOOK_SECRET_FILE"),
    *("AGENTOPS_WORKER_QUEUES", "AGENTOPS_SSL_REDIRECT", "AGENTOPS_ALLOWED_HOSTS"),
)

#: A killed server finds in the system's cache what it had written: no fault of a trial is a power cut, which fsync is for.
SERVER = {"fsync": "off", "full_page_writes": "off"}

#: What a folder that is judged again was signed with.
KEYS = "keys.json"
#: Where this file is, the folder stays.
KEEP = "keep"
_KEYS = ("AGENTOPS_SECRET_KEY", "AGENTOPS_WEBHOOK_SECRET")
JUDGE = "--judge"
OWN_APP = "agentops.chaos"


@dataclass(frozen=True)
class Surroundings:
    """Where a trial takes place. `refusal`: why it must not, a sentence, or ""."""

    folder: Path
    refusal: str

    @property
    def server(self) -> PostgresServer:
        return PostgresServer(self.folder / "postgres", settings=SERVER)

    @property
    def sandbox(self) -> Path:
        return self.folder / "sandbox"

    @property
    def notes(self) -> Path:
        return self.folder / "notes.json"

    def keep(self) -> None:
        """Have the folder stay when the trial ends."""
        (self.folder / KEEP).touch()

    @property
    def kept(self) -> bool:
        return (self.folder / KEEP).exists()

    def make(self) -> None:
        """Make the folder. Root's is passable for the user that PostgreSQL runs as. Raises OSError."""
        self.folder.mkdir(mode=0o711 if os.geteuid() == 0 else 0o700)
        keys = self.folder / KEYS
        keys.touch(mode=0o600)
        keys.write_text(json.dumps({name: os.environ[name] for name in _KEYS}))


_prepared: Surroundings | None = None


def prepared() -> Surroundings | None:
    """The surroundings that this process's settings were read in, None if they are those of an installation."""
    return _prepared


def prepare(environ: MutableMapping[str, str], arguments: Sequence[str] = ()) -> None:
    """Point the settings that are about to be read at a scratch folder and a database server in it.

    A new one; with `--judge FOLDER` among the arguments, the one that an earlier trial has kept.
    """
    global _prepared
    kept = _kept(arguments)
    new = Path(tempfile.gettempdir()) / f"agentops-chaos-{os.getpid()}-{secrets.token_hex(3)}"
    surroundings = Surroundings((kept or new).absolute(), _refusal(environ, arguments))
    for name in _LEADS_OUT:
        environ.pop(name, None)
    if not any(environ.get(name) for name in _LEASE):
        environ.update({name: QUICK[name] for name in _LEASE})
    for name, value in QUICK.items():
        environ[name] = environ.get(name) or value
    environ.update(
        {
            "AGENTOPS_DEBUG": environ.get("AGENTOPS_DEBUG") or "1",
            "AGENTOPS_DATA_DIR": str(surroundings.folder / "data"),
            "AGENTOPS_APPS": _with_own(environ.get("AGENTOPS_APPS", "")),
            **_keys(kept),
            "DATABASE_URL": surroundings.server.url(),
        }
    )
    _prepared = surroundings


def _with_own(apps: str) -> str:
    """The apps of the site, and the one with the workflows that only trials run."""
    named = [name.strip() for name in apps.split(",") if name.strip()]
    return ",".join(dict.fromkeys([*named, OWN_APP]))


def _kept(arguments: Sequence[str]) -> Path | None:
    following = iter(arguments)
    for argument in following:
        name, equals, value = argument.partition("=")
        if name == JUDGE and (folder := value if equals else next(following, "")):
            return Path(folder)
    return None


def _keys(kept: Path | None) -> dict[str, str]:
    """New ones, or those of a kept folder. That there is no such folder is found out by the command."""
    if kept is not None and (kept / KEYS).is_file():
        found: dict[str, str] = json.loads((kept / KEYS).read_text())
        return found
    return dict(
        zip(
            _KEYS,
            (secrets.token_urlsafe(48), "whsec_" + b64encode(secrets.token_bytes(24)).decode()),
            strict=True,
        )
    )


def _refusal(environ: MutableMapping[str, str], arguments: Sequence[str]) -> str:
    for name in ("DATABASE_URL", "DATABASE_URL_FILE"):
        if environ.get(name, "").strip() and "--ignore-database-url" not in arguments:
            return (
                f"{name} is set, as for an installation. Chaos makes a database of its own and touches no other: unset it, or "
                "say --ignore-database-url."
            )
    return ""
