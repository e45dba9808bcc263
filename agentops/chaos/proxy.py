"""A proxy in front of PostgreSQL that can be told to drop connections, to be late, and to let nothing pass.

It listens on a Unix socket in the trial's folder: whoever reached a port of it would be let in as superuser.
"""

import asyncio
import random
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import cast

START_TIMEOUT_S = 10


class Proxy:
    """Runs in a thread of its own. The methods may be called from any other one."""

    def __init__(self, listen: Path, upstream: Path) -> None:
        """Paths of sockets; the folder of `listen` exists."""
        self._listen, self._upstream = listen, upstream
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="proxy", daemon=True)
        self._links: set[_Link] = set()
        self._started: Future[None] = Future()
        self.late_by = 0.0
        self.shut_until = 0.0

    def start(self) -> None:
        """Returns when connections are accepted. Raises OSError."""
        self._thread.start()
        self._started.result(START_TIMEOUT_S)

    def stop(self) -> None:
        """Drop every connection and end the thread."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(START_TIMEOUT_S)

    def cut(self, share: float, seed: float) -> int:
        """Drop `share` (0 to 1) of the connections, at least one if there are any; returns how many."""

        def choose() -> int:
            links = sorted(self._links, key=lambda link: link.number)
            count = min(len(links), max(1, round(len(links) * share)))
            for link in random.Random(seed).sample(links, count):
                link.abort()
            return count

        return self._call(choose)

    def delay(self, seconds: float) -> None:
        """From now on every piece is late by so much; 0 ends it."""

        def change() -> None:
            self.late_by = seconds

        self._call(change)

    def hang(self, seconds: float) -> None:
        """Let nothing pass for so long; then all of it, in order. 0 ends it."""

        def change() -> None:
            self.shut_until = self._loop.time() + seconds
            for link in self._links:
                link.look_again()

        self._call(change)

    @property
    def connections(self) -> int:
        return len(self._links)

    def _call[T](self, work: Callable[[], T]) -> T:
        async def do() -> T:
            return work()

        return asyncio.run_coroutine_threadsafe(do(), self._loop).result(START_TIMEOUT_S)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            server = self._loop.run_until_complete(
                self._loop.create_unix_server(lambda: _Link(self).client, str(self._listen))
            )
        except OSError as error:
            self._started.set_exception(error)
            return
        self._started.set_result(None)
        self._loop.run_forever()
        server.close()
        for link in list(self._links):
            link.abort()
        self._loop.run_until_complete(asyncio.sleep(0))
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        self._loop.run_until_complete(asyncio.sleep(0))
        self._loop.close()


class _Link:
    """A client's connection and the one to PostgreSQL that belongs to it."""

    _numbers = iter(range(1, 2**62))

    def __init__(self, proxy: Proxy) -> None:
        self.proxy, self.number = proxy, next(self._numbers)
        self.client, self.server = _End(self), _End(self)
        self.client.other, self.server.other = self.server, self.client

    def opened(self, end: "_End", upstream: Path) -> None:
        if end is self.client:
            self.proxy._links.add(self)
            self._connecting = end.loop.create_task(self._connect(end.loop, upstream))

    async def _connect(self, loop: asyncio.AbstractEventLoop, upstream: Path) -> None:
        try:
            await loop.create_unix_connection(lambda: self.server, str(upstream))
        except OSError:
            self.abort()  # the server is down: the client learns that at once, as without a proxy

    def closed(self, end: "_End") -> None:
        """One end is gone; the other is closed once it has what was on its way."""
        self.proxy._links.discard(self)
        end.other.finish()

    def abort(self) -> None:
        self.proxy._links.discard(self)
        for end in (self.client, self.server):
            end.abort()

    def look_again(self) -> None:
        for end in (self.client, self.server):
            end.flush()


class _End(asyncio.Protocol):
    """One end of a link: what arrives here goes out at the other."""

    other: "_End"

    def __init__(self, link: _Link) -> None:
        self._link, self._proxy, self.loop = link, link.proxy, link.proxy._loop
        self._transport: asyncio.Transport | None = None
        self._waiting: deque[tuple[float, bytes]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._finishing = self._gone = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if self._gone:
            self._transport.abort()
            return
        self._link.opened(self, self._proxy._upstream)
        self.flush()

    def data_received(self, data: bytes) -> None:
        self.other.put(data)

    def connection_lost(self, error: Exception | None) -> None:
        self._gone = True
        self._waiting.clear()
        self._link.closed(self)

    def pause_writing(self) -> None:
        if self.other._transport is not None:
            self.other._transport.pause_reading()

    def resume_writing(self) -> None:
        if self.other._transport is not None and not self.other._gone:
            self.other._transport.resume_reading()

    def put(self, data: bytes) -> None:
        self._waiting.append((self.loop.time() + self._proxy.late_by, data))
        self.flush()

    def finish(self) -> None:
        """Close after what still waits."""
        self._finishing = True
        self.flush()

    def abort(self) -> None:
        self._gone = True
        self._waiting.clear()
        if self._transport is not None:
            self._transport.abort()

    def flush(self) -> None:
        """Send what is due, and look again when the next piece will be."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._transport is None or self._gone:
            return
        now = self.loop.time()
        while self._waiting:
            due = max(self._waiting[0][0], self._proxy.shut_until)
            if due > now:
                self._timer = self.loop.call_at(due, self.flush)
                return
            self._transport.write(self._waiting.popleft()[1])
        if self._finishing:
            self._transport.close()
