"""The store of large payloads: once by content, bounded when read, swept when nobody uses it, never forged."""

import threading
import uuid
import zlib
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, transaction
from django.db.utils import IntegrityError

from runs import blobs, clock, codec, redaction
from runs.models import Blob, BlobUse, Message, Operation, Run, Signal
from runs.models.run import new_id
from runs.redaction import true_value
from tests import factories
from tests.races import wait_until_blocked

LARGE = {"rows": ["é" * 1000] * 30}


def message(run_id: uuid.UUID, content: Any) -> Message:
    return Message.objects.create(
        run_id=run_id,
        step_seq=1,
        position=str(new_id()),
        attempt_no=1,
        role="user",
        content=content,
        digest="d",
    )


def stored(row: Message) -> Any:
    return Message.objects.get(pk=row.pk).content


@pytest.mark.django_db
def test_a_payload_is_spilled_by_its_bytes_not_its_characters(settings: Any) -> None:
    settings.AGENTOPS_SPILL_BYTES = 2000
    run = factories.run()
    assert stored(message(run.pk, "a" * 1998)) == "a" * 1998
    assert blobs.is_marker(stored(message(run.pk, "a" * 1999)))
    assert blobs.is_marker(stored(message(run.pk, "é" * 1000)))


@pytest.mark.django_db
def test_equal_contents_are_stored_once_and_each_run_uses_them() -> None:
    one, other = factories.run(), factories.run()
    rows = [message(one.pk, LARGE), message(one.pk, LARGE), message(other.pk, LARGE)]
    assert Blob.objects.count() == 1
    assert BlobUse.objects.count() == 2
    assert {true_value(stored(row), None)["rows"][0] for row in rows} == {"é" * 1000}
    assert len(bytes(Blob.objects.get().body)) < 1000, "compressed"


@pytest.mark.django_db
def test_a_row_that_is_saved_again_as_it_was_read_keeps_its_marker() -> None:
    operation = factories.operation(factories.run(), result=LARGE)
    again = Operation.objects.get(pk=operation.pk)
    again.save()
    assert true_value(Operation.objects.get(pk=operation.pk).result, None) == LARGE
    assert Blob.objects.count() == 1


@pytest.mark.django_db
def test_data_that_looks_like_a_marker_is_data() -> None:
    row = message(factories.run().pk, LARGE)
    forged = stored(row)
    for given in (forged, {"in": forged}, [forged]):
        encoded = codec.encode(given)
        assert not blobs.is_marker(encoded)
        kept = stored(message(factories.run().pk, encoded))
        assert codec.decode(true_value(kept, None)) == given
        assert "é" not in str(kept)


@pytest.mark.django_db
def test_a_signal_that_no_run_has_taken_keeps_its_payload() -> None:
    fields: dict[str, Any] = {"name": "paid", "source": "bank", "payload": LARGE, "digest": "d"}
    kept = Signal.objects.create(external_id="1", correlation="c", **fields)
    assert Signal.objects.get(pk=kept.pk).payload == LARGE
    taken = Signal.objects.create(external_id="2", run_id=factories.run().pk, **fields)
    assert blobs.is_marker(Signal.objects.get(pk=taken.pk).payload)


@pytest.mark.django_db
def test_a_sealed_value_never_goes_into_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redaction, "redact", lambda encoded: {**LARGE, "card": "hidden"})
    monkeypatch.setattr(redaction, "seal", codec.canonical)
    display, sealed = redaction.split({**LARGE, "card": "4111"})
    message(factories.run().pk, display)
    assert b"4111" in (sealed or b"")
    for blob in Blob.objects.all():
        assert b"4111" not in blobs.unpack(blob.sha256, blob.body)


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("body", "why"),
    [
        (zlib.compress(b"0" * 30_000_000), "more than the"),
        (zlib.compress(codec.canonical(LARGE))[:-5], "more than the"),
        (b"junk", "cannot be read"),
        (zlib.compress(b"{}"), "not what it was stored as"),
    ],
)
def test_a_body_that_is_not_what_its_marker_says_is_refused(body: bytes, why: str) -> None:
    row = message(factories.run().pk, LARGE)
    Blob.objects.update(body=body)
    with pytest.raises(blobs.BlobDamaged, match=why):
        true_value(stored(row), None)


@pytest.mark.django_db
def test_a_bomb_is_inflated_no_further_than_its_marker_says() -> None:
    import tracemalloc

    bomb = zlib.compress(b" " * 50_000_000)
    tracemalloc.start()
    with pytest.raises(blobs.BlobDamaged, match="more than the 1,000 bytes"):
        blobs.unpack("k", bomb, 1000)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1_000_000


@pytest.mark.django_db
def test_a_use_needs_its_blob_and_a_used_blob_stays() -> None:
    with pytest.raises(IntegrityError), transaction.atomic():
        BlobUse.objects.create(run_id=new_id(), blob_id="0" * 64)
        connection.check_constraints()
    message(factories.run().pk, LARGE)
    with pytest.raises(IntegrityError), transaction.atomic():
        Blob.objects.all().delete()
        connection.check_constraints()


def age(days: int) -> None:
    Blob.objects.update(created_at=clock.now() - timedelta(days=days))


@pytest.mark.django_db
def test_the_sweep_deletes_what_no_run_uses_and_nothing_young() -> None:
    one, other = factories.run(), factories.run()
    message(one.pk, LARGE)
    message(one.pk, {**LARGE, "own": 1})
    message(other.pk, LARGE)
    age(2)
    assert blobs.sweep() == 0
    Run.objects.filter(pk=one.pk).delete()
    assert BlobUse.objects.filter(run_id=one.pk).count() == 0, "a use ends with its run, whoever deletes that"
    age(0)
    assert blobs.sweep() == 0, "it may be of a row that is not committed yet"
    age(2)
    assert blobs.sweep() == 1
    assert Blob.objects.count() == 1
    Run.objects.filter(pk=other.pk).delete()
    assert blobs.sweep() == 1


@pytest.mark.django_db
def test_a_sweep_of_what_is_young_is_refused() -> None:
    with pytest.raises(ValueError, match="is no age"):
        blobs.sweep(timedelta(hours=2))


@pytest.mark.django_db(transaction=True)
def test_two_that_write_a_content_of_minutes_ago_do_not_wait_for_each_other() -> None:
    one, other = factories.run(), factories.run()
    message(one.pk, LARGE)
    done = threading.Event()

    def write() -> None:
        try:
            message(other.pk, LARGE)
            done.set()
        finally:
            connection.close()

    with transaction.atomic():
        message(one.pk, LARGE)
        writer = threading.Thread(target=write)
        writer.start()
        assert done.wait(10), "it waits"
    writer.join(10)


@pytest.mark.django_db(transaction=True)
def test_a_content_that_is_written_again_while_it_is_swept_stays() -> None:
    one, other = factories.run(), factories.run()
    message(one.pk, LARGE)
    Run.objects.filter(pk=one.pk).delete()
    age(2)
    swept: list[int] = []

    def sweep() -> None:
        try:
            swept.append(blobs.sweep())
        finally:
            connection.close()

    with transaction.atomic():
        row = message(other.pk, LARGE)
        sweeper = threading.Thread(target=sweep)
        sweeper.start()
        sweeper.join(10)
        assert swept == [0], "it waits for nobody"
    assert true_value(stored(row), None) == LARGE


@pytest.mark.django_db(transaction=True)
def test_a_content_that_is_written_while_a_sweep_deletes_it_is_written_anew() -> None:
    one, other = factories.run(), factories.run()
    message(one.pk, LARGE)
    Run.objects.filter(pk=one.pk).delete()
    age(2)
    written: list[Message] = []

    def write() -> None:
        try:
            written.append(message(other.pk, LARGE))
        finally:
            connection.close()

    with transaction.atomic():
        assert blobs.sweep() == 1
        writer = threading.Thread(target=write)
        writer.start()
        wait_until_blocked(1)
    writer.join(10)
    assert true_value(stored(written[0]), None) == LARGE
