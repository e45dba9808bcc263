"""The secret key of a developer's machine: made once, kept in the data folder."""

import os
import secrets
import threading
from contextlib import suppress
from pathlib import Path

from agentops.env import WrongSetting


def development_key(data_dir: Path) -> str:
    """Return the key kept in `data_dir`, made at the first call.

    Raises WrongSetting, in a sentence that says what to do, when the folder can be neither read nor written.
    """
    path = data_dir / "secret_key"
    try:
        with suppress(FileNotFoundError):
            if key := path.read_text(encoding="ascii").strip():
                return key
        data_dir.mkdir(parents=True, exist_ok=True)
        draft = data_dir / f".secret_key.{os.getpid()}.{threading.get_ident()}"
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(secrets.token_urlsafe(48))
        try:
            # Two first starts at once must agree: a link, unlike a rename, fails when the other one was faster.
            with suppress(FileExistsError):
                os.link(draft, path)
        finally:
            draft.unlink()
        return path.read_text(encoding="ascii").strip()
    except OSError as error:
        raise WrongSetting(
            f"The secret key cannot be kept in {data_dir} ({error.strerror}): set AGENTOPS_DATA_DIR to a folder that "
            "you may write to, or set AGENTOPS_SECRET_KEY."
        ) from None
