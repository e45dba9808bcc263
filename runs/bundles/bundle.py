"""Support bundles: all that is recorded of a run, as people may see it, in one JSON document.

`runs.bundles.replay` executes a bundle again. What is written are rows as they stand: values in display form (what is sealed
stays behind, and its name is told under `hidden`), states as they were recorded, and once each the contents that lie apart. Apps
that keep more about a run register it (`register`), since `runs` does not know them.
"""

import json
import tempfile
import uuid
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime, timedelta
from importlib.metadata import PackageNotFoundError, version
from typing import IO, Any

from django.db import connection, models, transaction
from django.db.models import QuerySet

from runs import access, blobs, clock
from runs.models import Attempt, Blob, BlobUse, Event, LogLine, Message, Operation, Run, Signal
from runs.models.operation import Kind

FORMAT, VERSION = "agentops bundle", 1
#: Bytes that are kept in memory before the rest goes to a file.
IN_MEMORY = 4 * 1024 * 1024
ROWS = 500

type Part = Callable[[uuid.UUID], QuerySet[Any]]

_PARTS: dict[str, Part] = {
    "attempts": lambda run: Attempt.objects.filter(run_id=run).order_by("step_seq", "attempt_no"),
    "operations": lambda run: Operation.objects.filter(run_id=run).order_by("step_seq", "ordinal", "id"),
    "messages": lambda run: Message.objects.filter(run_id=run).order_by("id"),
    "log_lines": lambda run: LogLine.objects.filter(run_id=run).order_by("id"),
    "signals": lambda run: Signal.objects.filter(run_id=run).order_by("id"),
    "events": lambda run: Event.objects.filter(run_id=run).order_by("seq"),
}


def register(name: str, part: Part) -> None:
    """Let bundles hold further rows of a run, under this name."""
    _PARTS[name] = part


def written(run_id: uuid.UUID, by: str, user: access.Person | None = None) -> IO[bytes]:
    """A file, at its beginning, with the bundle of a run; all of it as of one moment. `by` is told in it.

    With a user: without the results of child runs that this person may not see, or not what is in them; `left_out` says so.

    Raises Run.DoesNotExist.
    """
    file = tempfile.SpooledTemporaryFile(max_size=IN_MEMORY, mode="w+b")  # noqa: SIM115 (the caller's)
    try:
        with transaction.atomic():
            if len(connection.savepoint_ids) == 0:
                # One picture, however long it takes to write: a run that goes on must not be told in halves.
                with connection.cursor() as cursor:
                    cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            for text in _document(run_id, by, user):
                file.write(text.encode())
    except BaseException:
        file.close()
        raise
    file.seek(0)
    return file


def _document(run_id: uuid.UUID, by: str, user: access.Person | None) -> Iterator[str]:
    run = Run.objects.get(pk=run_id)
    about = {"format": FORMAT, "version": VERSION, "at": clock.now(), "by": by, "agentops": _release()}
    yield "{" + f'"about":{_json(about)},\n"run":{_json(row(run))}'
    for name, part in _PARTS.items():
        yield f',\n"{name}":['
        yield from _lines(_json(row(one)) for one in part(run_id).iterator(ROWS))
        yield "]"
    yield ',\n"children":['
    left_out: list[int] = []
    yield from _lines(_json(one) for one in _children(run_id, user, left_out))
    yield f'],\n"left_out":{_json(_told(len(left_out), by))}'
    yield ',\n"blobs":{'
    used = BlobUse.objects.filter(run_id=run_id).values("blob_id")
    apart = Blob.objects.filter(sha256__in=used).order_by("sha256")
    # As text: what was stored is canonical JSON already.
    yield from _lines(
        f"{_json(one.sha256)}:{blobs.unpack(one.sha256, one.body).decode()}" for one in apart.iterator(20)
    )
    yield "}}\n"


def _told(left_out: int, by: str) -> list[str]:
    """Sentences on what is not in the bundle, for whoever reads it."""
    if not left_out:
        return []
    runs = "1 child run" if left_out == 1 else f"{left_out:,} child runs"
    return [f"The results of {runs}, whose content {by} may not see, are left out"]


def _children(run_id: uuid.UUID, user: access.Person | None, left_out: list[int]) -> Iterator[dict[str, Any]]:
    """What became of the child runs: their results are answers that this run was given. In full, as blobs are the child's own.

    Of one whose content the person may not see there is its place alone, which `left_out` gets as well.
    """
    waits = Operation.objects.filter(run_id=run_id, kind=Kind.CHILD).values("pk")
    found = Run.objects.filter(parent_operation_id__in=waits).order_by("parent_operation_id", "child_index")
    columns = ("id", "parent_operation_id", "child_index", "workflow", "status", "result")
    for *values, subject, sealed in found.values_list(*columns, "subject", "result_sealed").iterator(ROWS):
        told = dict(zip(columns, values, strict=True))
        child = Run(pk=told["id"], workflow=told["workflow"], subject=subject)
        if user is not None and not (
            access.may(user, "runs.view_run", child) and access.may_see_payloads(user, child)
        ):
            left_out.append(told["child_index"])
            place = {name: told[name] for name in ("parent_operation_id", "child_index")}
            yield place | {"left_out": True, "hidden": ["result"]}
            continue
        told["result"] = blobs.whole([told["result"]])[0]
        yield told | {"hidden": ["result"] if sealed is not None else []}


def row(of: models.Model) -> dict[str, Any]:
    """A row by its columns, without what is sealed; `hidden` names the values of which display does not tell all."""
    told: dict[str, Any] = {}
    hidden = []
    for field in of._meta.concrete_fields:
        value = getattr(of, field.attname)
        name = field.attname
        if name.endswith("_sealed"):
            if value is not None:
                hidden.append(name.removesuffix("_sealed"))
        else:
            told[name] = value
    return told | {"hidden": hidden}


def _lines(rows: Iterable[str]) -> Iterator[str]:
    for number, text in enumerate(rows):
        yield f"{',' if number else ''}\n{text}"


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False, default=_plain)


def _plain(value: Any) -> Any:
    match value:
        case uuid.UUID():
            return str(value)
        case datetime():
            return value.isoformat()
        case timedelta():
            return value.total_seconds()
        case bytes() | memoryview():
            return bytes(value).hex()
    raise TypeError(f"{type(value).__name__} has no place in a bundle")


def _release() -> str:
    try:
        return version("agentops")
    except PackageNotFoundError:
        return ""
