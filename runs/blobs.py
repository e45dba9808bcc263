"""Large payloads leave their row: stored once by content in `runs_blob`, the row keeps a marker.

The marker is a tagged value (`codec.TAG`), which no data can forge: `codec.encode` wraps every dict that holds the key of a
tag itself. Only what people may see (display) is stored here; a sealed value stays in its own column, so that no digest of
a secret exists anywhere in the store.

A blob is written before the row that points to it, together with its use by the run (`runs_blob_use`, which refers to
the blob), and is deleted only when no run uses it any more (`sweep`): so no row ever points to a blob that is not there.
"""

import hashlib
import json
import uuid
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.conf import settings
from django.db import connection

from runs.codec import TAG, canonical

#: The tag of a marker.
KIND = "blob"
#: No blob is read to more than this many bytes, whatever its body claims.
LARGEST = 256 * 1024 * 1024

#: A blob that has been there for long is touched: `sweep` reads `created_at` again under the row's lock, and spares it.
#: One that is younger than an hour no sweep takes for long yet: it is not even locked, whoever writes the same content.
WRITE = """
WITH b AS (
    SELECT * FROM unnest(%(keys)s::text[], %(bodies)s::bytea[]) AS b (key, body) ORDER BY key
), kept AS (
    INSERT INTO runs_blob (sha256, body, created_at) SELECT key, body, agentops_now() FROM b WHERE NOT EXISTS (
        SELECT FROM runs_blob o WHERE o.sha256 = b.key AND o.created_at > agentops_now() - interval '1 hour')
    ON CONFLICT (sha256) DO UPDATE SET created_at = excluded.created_at
)
INSERT INTO runs_blob_use (run_id, sha256) SELECT %(run)s, key FROM b ON CONFLICT DO NOTHING RETURNING 1
"""
READ = "SELECT sha256, body FROM runs_blob WHERE sha256 = ANY(%(keys)s)"
#: Blobs are few and their bodies lie apart: a scan of the table. What somebody is writing at this moment is passed over.
SWEEP = """
DELETE FROM runs_blob WHERE sha256 IN (
    SELECT b.sha256 FROM runs_blob b WHERE b.created_at < agentops_now() - make_interval(secs => %(age)s)
      AND NOT EXISTS (SELECT FROM runs_blob_use u WHERE u.sha256 = b.sha256)
    LIMIT %(limit)s FOR UPDATE SKIP LOCKED)
"""


class BlobDamaged(ValueError):
    """A blob is missing, cannot be read, or is not what its marker says."""


@dataclass(frozen=True, slots=True)
class Packed:
    """A value on its way into the store."""

    key: str
    body: bytes
    size: int
    """Bytes of canonical JSON."""

    @property
    def marker(self) -> dict[str, Any]:
        return {TAG: KIND, "v": {"sha256": self.key, "bytes": self.size}}


def limit() -> int:
    """Bytes of JSON from which on a payload leaves its row."""
    at: int = settings.AGENTOPS_SPILL_BYTES
    return at


def pack(text: bytes) -> Packed:
    """Canonical JSON, compressed and named after its content."""
    return Packed(hashlib.sha256(text).hexdigest(), zlib.compress(text, 6), len(text))


def unpack(key: str, body: bytes | memoryview, size: int = LARGEST) -> bytes:
    """The canonical JSON of a blob of at most `size` bytes. Raises BlobDamaged; inflates no more than it was told to."""
    inflate = zlib.decompressobj()
    try:
        text = inflate.decompress(bytes(body), size + 1)
    except zlib.error as error:
        raise BlobDamaged(f"blob {key} cannot be read: {error}") from None
    if len(text) > size or not inflate.eof:
        raise BlobDamaged(f"blob {key} holds more than the {size:,} bytes that it should")
    if hashlib.sha256(text).hexdigest() != key:
        raise BlobDamaged(f"blob {key} is not what it was stored as")
    return text


def is_marker(display: Any) -> bool:
    """Whether a stored value points to a blob."""
    return isinstance(display, dict) and display.get(TAG) == KIND


def size_of(display: Any) -> int:
    """Bytes of the value that a marker points to."""
    size: int = display["v"]["bytes"]
    return size


def parameters(run_id: uuid.UUID, packed: Iterable[Packed]) -> dict[str, Any]:
    """Of WRITE."""
    by_key = {one.key: one.body for one in packed}
    keys = sorted(by_key)  # one order of locks, whoever writes the same contents
    return {"run": run_id, "keys": keys, "bodies": [by_key[key] for key in keys]}


def spilled(encoded: Any, run_id: uuid.UUID) -> Any:
    """`encoded`, or a marker in its place if it is large; the blob is written with Django's connection."""
    # Most values are small and are known to be without being written out twice in full.
    text = canonical(encoded)
    if len(text) <= limit():
        return encoded
    packed = pack(text)
    write(run_id, [packed])
    return packed.marker


def write(run_id: uuid.UUID, packed: Iterable[Packed]) -> None:
    """Store blobs and their use by the run, with Django's connection."""
    with connection.cursor() as cursor:
        cursor.execute(WRITE, parameters(run_id, packed))


def _read(keys: Sequence[str]) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(READ, {"keys": list(keys)})
        found: list[tuple[Any, ...]] = cursor.fetchall()
        return found


def whole(
    displays: Sequence[Any], read: Callable[[Sequence[str]], Sequence[tuple[Any, ...]]] = _read
) -> list[Any]:
    """`displays` with every marker replaced by what it points to; one query, none where there is no marker.

    Raises BlobDamaged.
    """
    wanted = {display["v"]["sha256"] for display in displays if is_marker(display)}
    if not wanted:
        return list(displays)
    bodies: Mapping[str, bytes] = dict(read(sorted(wanted)))
    return [_opened(one, bodies) if is_marker(one) else one for one in displays]


def _opened(marker: Any, bodies: Mapping[str, bytes]) -> Any:
    key = marker["v"]["sha256"]
    if key not in bodies:
        raise BlobDamaged(f"blob {key} is missing")
    return json.loads(unpack(key, bodies[key], min(size_of(marker), LARGEST)))


def sweep(age: timedelta = timedelta(days=1), limit: int = 1000) -> int:
    """Delete up to `limit` blobs that no run uses and that nobody has written for `age`, of hours at least; how many that were.

    A trigger deletes a run's rows of runs_blob_use with the run; this is for after that.
    """
    if age < timedelta(hours=3):
        raise ValueError(f"{age} is no age: whoever writes a content that is an hour old does not touch it")
    with connection.cursor() as cursor:
        cursor.execute(SWEEP, {"age": age.total_seconds(), "limit": limit})
        swept: int = cursor.rowcount
        return swept
