"""What comes from people, files and other programs: refused with the path, or recorded with a visible marker."""

import json
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from django.core.management import CommandError, call_command

from approvals import services as approvals
from approvals.models import ApprovalVersion
from runs import checks, codec, sizes
from runs.errors import Invalid
from runs.lifecycle import Actor
from runs.models import Message, Run, Signal
from runs.models.run import new_id
from runs.services import receive_signal, start
from runs.services.payloads import parse_json
from tests import factories
from tests.runs.payloads import flows
from tests.runs.test_webhooks import post
from tests.runs.views.people import client

pytestmark = pytest.mark.django_db

SYSTEM = Actor("system")
BERLIN = ZoneInfo("Europe/Berlin")
NO_ZONE = datetime(2027, 10, 31, 2, 30)  # noqa: DTZ001

#: Files and bodies that are JSON for some, and why they are none for us.
TEXTS = {
    '{"what": NaN}': "NaN is not JSON",
    '{"what": -Infinity}': "-Infinity is not JSON",
    '{"what": "a", "what": "b"}': "the key 'what' twice",
    '{"what": [{"n": 1, "\\u006e": 2}]}': "the key 'n' twice",
    '{"what": "a': "not valid JSON",
    '{"n": ' + "9" * 5000 + "}": "4300 digits",
    "[" * 100_000 + "]" * 100_000: "not valid JSON",
}


@pytest.mark.parametrize("text", TEXTS, ids=lambda text: text[:30])
def test_text_that_readers_of_json_do_not_agree_on_is_refused(text: str) -> None:
    with pytest.raises(Invalid) as refused:
        parse_json(text, "the input")
    assert TEXTS[text] in str(refused.value)
    assert post(b'{"type": "paid", "data": ' + text.encode() + b"}").status_code == 400


@pytest.mark.parametrize("what", ["nul", "surrogate"])
def test_an_input_that_cannot_be_recorded_is_refused_with_its_path(what: str) -> None:
    with pytest.raises(Invalid, match=r"the input: \$\.what holds"):
        start(SYSTEM, "t_rough", {"what": flows.BAD[what][0]})
    assert not Run.objects.exists()


@pytest.mark.parametrize("what", [w for w in flows.BAD if w not in ("socket", "object", "deep")])
def test_a_signal_is_kept_with_a_marker(what: str) -> None:
    run = factories.run()
    receive_signal(
        SYSTEM, name="s", payload={"v": flows.BAD[what][0]}, external_id="1", source="t", run_id=run.pk
    )
    kept = json.dumps(Signal.objects.get().payload, ensure_ascii=False)
    assert "⟦" in kept or what == "key"


def test_a_number_beyond_floats_in_a_webhook_is_kept_with_a_marker() -> None:
    run = factories.run()
    body = b'{"type": "paid", "data": {"run_id": "%s", "amount": 1e999, "big": %s}}' % (
        str(run.pk).encode(),
        b"9" * 4000,
    )
    assert post(body).status_code == 200
    payload = Signal.objects.get().payload
    assert (payload["amount"], payload["big"]) == ("⟦inf⟧", int("9" * 4000))


@pytest.mark.parametrize("what", ["nul", "surrogate", "nan", "set", "bytes", "integer", "key", "deep"])
def test_an_edit_of_an_approval_that_cannot_be_recorded_is_refused_with_its_path(what: str) -> None:
    asked = factories.approval(name="a question", arguments={"note": "hello"})
    with pytest.raises(Invalid, match=r"the payload: \$\.note") as refused:
        approvals.edit(
            factories.operator(), asked.pk, version=1, arguments={"note": flows.BAD[what][0]}, reason="r"
        )
    assert flows.BAD[what][1] in str(refused.value)
    assert ApprovalVersion.objects.count() == 1


def test_the_command_refuses_what_is_no_json_in_one_sentence(tmp_path: Any) -> None:
    file = tmp_path / "input.json"
    for text, why in TEXTS.items():
        file.write_text(text)
        with pytest.raises(CommandError, match=why) as refused:
            call_command("start", "t_rough", "--input", str(file))
        assert "\n" not in str(refused.value)


def test_the_command_that_sends_a_signal_refuses_them_too() -> None:
    wait = factories.signal_wait()
    for text, why in TEXTS.items():
        with pytest.raises(CommandError, match=why):
            call_command("signal", "paid", "--run", str(wait.run_id), "--data", text)
    assert not Signal.objects.exists()


# --- sizes ---------------------------------------------------------------------------------------------------------------


def test_twenty_megabytes_are_refused_by_the_path_to_them() -> None:
    body = "word " * 4_000_000
    with pytest.raises(Invalid) as refused:
        start(SYSTEM, "t_rough", {"what": body})
    assert "the input: $.what is 20.0 MB of 5.0 MB of JSON" in str(refused.value)


def test_limits_count_bytes_and_not_characters(settings: Any) -> None:
    settings.AGENTOPS_PAYLOAD_LIMITS = {"input": 1000}
    start(SYSTEM, "t_rough", {"what": "a" * 900})
    with pytest.raises(Invalid, match=r"\$\.what is 1\.8 KB of 1\.0 KB"):
        start(SYSTEM, "t_rough", {"what": "é" * 900})


def test_each_kind_of_payload_has_a_limit_of_its_own(settings: Any) -> None:
    settings.AGENTOPS_PAYLOAD_LIMITS = {"signal": 100}
    run = factories.run()
    start(SYSTEM, "t_rough", {"what": "a" * 900})
    with pytest.raises(Invalid, match="the payload"):
        receive_signal(SYSTEM, name="s", payload="a" * 99, external_id="1", source="t", run_id=run.pk)
    assert {kind: sizes.limit(kind) for kind in ("signal", "state")} == {"signal": 100, "state": 5_000_000}
    assert set(sizes.KINDS) >= set(settings.AGENTOPS_PAYLOAD_LIMITS)


def test_a_limit_for_a_kind_that_does_not_exist_is_an_error(settings: Any) -> None:
    assert checks.check_payload_limits() == []
    settings.AGENTOPS_PAYLOAD_LIMITS = {"states": 100}
    [message] = checks.check_payload_limits()
    assert (message.id, "states" in message.msg) == ("runs.E012", True)


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ({"documents": [{"body": "x"}, {"body": "x"}, {"body": "x" * 900}]}, "state.documents[2].body"),
        ({"documents": [{"body": "x" * 90} for _ in range(9)]}, "state.documents"),
        ({"a": "x" * 300, "b": "x" * 290}, "state"),
        ({"when": {codec.TAG: "decimal", "v": "1" * 500}}, "state.when"),
        ("x" * 500, "state"),
    ],
)
def test_the_path_leads_to_what_holds_most(value: Any, path: str) -> None:
    assert sizes.heaviest(value, "state")[0] == path


def test_sizes_are_never_rounded_up_to_the_limit_that_they_exceed() -> None:
    assert sizes.readable(5_000_001) == "5.0 MB"
    assert sizes.readable(4_999_999) == "4.9 MB"
    assert sizes.readable(812) == "812 bytes"
    assert sizes.readable(6_130_000) == "6.1 MB"


def test_a_run_of_ten_thousand_messages_has_a_page() -> None:
    run = factories.run()
    Message.objects.bulk_create(
        Message(
            id=new_id(),
            run_id=run.pk,
            step_seq=1,
            position=f"{n:06d}",
            attempt_no=1,
            role="user",
            content=f"no. {n}",
            digest="d",
        )
        for n in range(10_000)
    )
    page = client("support").get(f"/runs/{run.pk}/?part=messages")
    assert page.status_code == 200
    assert "no. 9999" in page.content.decode()
    assert len(page.content) < 400_000


# --- time ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("local", "utc"),
    [
        # A gap: 02:30 does not exist on this night; PEP 495 reads it with the offset of before.
        (datetime(2027, 3, 28, 2, 30, tzinfo=BERLIN), datetime(2027, 3, 28, 1, 30, tzinfo=UTC)),
        # A fold: 02:30 is there twice.
        (datetime(2027, 10, 31, 2, 30, tzinfo=BERLIN), datetime(2027, 10, 31, 0, 30, tzinfo=UTC)),
        (datetime(2027, 10, 31, 2, 30, tzinfo=BERLIN, fold=1), datetime(2027, 10, 31, 1, 30, tzinfo=UTC)),
    ],
)
def test_a_moment_in_a_gap_or_a_fold_stays_the_same_moment(local: datetime, utc: datetime) -> None:
    run = start(SYSTEM, "t_rough", {}, deadline_at=local).run
    run.refresh_from_db()
    assert run.deadline_at == utc
    back = codec.decode(codec.encode(local))
    assert (back.astimezone(UTC), back.utcoffset()) == (utc, local.utcoffset())


def test_a_deadline_without_a_time_zone_is_refused() -> None:
    with pytest.raises(Invalid, match="no time zone"):
        start(SYSTEM, "t_rough", {}, deadline_at=NO_ZONE)


def test_a_moment_without_a_zone_and_a_span_over_a_change_of_clocks_come_back_as_they_were() -> None:
    for value in (
        NO_ZONE,
        timedelta(days=1, microseconds=1),
        Decimal("1E+400"),
        Decimal("-0"),
    ):
        assert repr(codec.decode(codec.encode(value))) == repr(value)
