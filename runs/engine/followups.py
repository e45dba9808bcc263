"""After a child run has ended: may its parent go on? Asked on a thread of its own, once for all that ended meanwhile."""

import threading
import time
import uuid

import structlog
from django.db import connection

from runs.engine.database import UNSURE, UNSURE_DJANGO, Database, cold
from runs.failpoints import failpoint
from runs.kin import children, families

log = structlog.get_logger(__name__)

#: Seconds between two rounds, and the share of the time that they may take: ten thousand siblings that end one after the
#: other are asked about some hundred times, not ten thousand times.
PAUSE = 0.003
SHARE = 0.2


class FollowUps:
    """Hints that are lost here (the process is killed, the database is away) are found by `families.Sweep`."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self._ended: dict[uuid.UUID, int] = {}
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._over = False
        self._thread = threading.Thread(target=self._run, name="follow-ups", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def child_ended(self, wait_id: uuid.UUID, place: int) -> None:
        """This child of the wait has ended, and that is committed."""
        with self._lock:
            self._ended[wait_id] = max(place, self._ended.get(wait_id, 0))
        self._wake.set()

    def close(self) -> None:
        """Ask about what is left, and end."""
        self._over = True
        self._wake.set()
        self._thread.join(5)

    def _run(self) -> None:
        while True:
            self._wake.wait()
            self._wake.clear()
            with self._lock:
                ended, self._ended = self._ended, {}
            begun = time.monotonic()
            for wait_id, place in ended.items():
                self._ask(wait_id, place)
            if self._over and not self._ended:
                return
            if not self._over:
                time.sleep(max(PAUSE, (time.monotonic() - begun) * (1 - SHARE) / SHARE))

    def _ask(self, wait_id: uuid.UUID, place: int) -> None:
        try:
            failpoint("follow_up.before")
            row = self.database.once(children.ENOUGH, {"wait": wait_id, "last": place})
            if row is not None:
                cold(lambda unsure: families.wake_parent(row[0], wait_id))
        except (*UNSURE, *UNSURE_DJANGO) as error:
            log.warning("follow_up.lost", wait=str(wait_id), error=str(error))
        except Exception:
            # One wait that cannot be asked about must not keep the others from it.
            log.exception("follow_up.failed", wait=str(wait_id))
        finally:
            connection.close()
