"""`manage.py start`."""

import io
import json

import pytest
from django.core.management import CommandError, call_command

from runs.models import Run
from tests import factories

pytestmark = pytest.mark.django_db


def start(*arguments, **options) -> tuple[str, str]:
    out, err = io.StringIO(), io.StringIO()
    try:
        call_command("start", "parcel", *map(str, arguments), stdout=out, stderr=err, **options)
    except CommandError as error:
        error.printed = (out.getvalue(), err.getvalue())  # type: ignore[attr-defined]
        raise
    return out.getvalue(), err.getvalue()


@pytest.fixture
def one(tmp_path):
    path = tmp_path / "one.json"
    path.write_text(json.dumps({"order": "7"}))
    return path


def test_a_file_starts_a_run_and_prints_its_id(one):
    out, _ = start("--input", one, "--priority", 2, "--reason", "by hand")
    run = Run.objects.get()
    assert out == f"{run.pk} started\n"
    assert (run.subject, run.priority, run.started_by_name) == ("order 7", 2, "command line")


def test_a_start_key_starts_one_run_however_often(one):
    start("--input", one, "--key", "k")
    out, _ = start("--input", one, "--key", "k")
    assert "before" in out and Run.objects.count() == 1


def test_a_user_acts_with_their_own_permissions(one):
    factories.support("sam")
    factories.stranger("eve")
    start("--input", one, "--as", "sam")
    assert Run.objects.get().started_by_name == "sam"
    with pytest.raises(CommandError, match="permission"):
        start("--input", one, "--as", "eve")
    with pytest.raises(CommandError, match="no user"):
        start("--input", one, "--as", "nobody")


def test_an_input_that_does_not_fit_is_one_sentence(tmp_path):
    path = tmp_path / "bad.json"
    path.write_text('{"amount": 1}')
    with pytest.raises(CommandError, match="order"):
        start("--input", path)
    path.write_text("{")
    with pytest.raises(CommandError, match="not valid JSON"):
        start("--input", path)
    with pytest.raises(CommandError, match="cannot be read"):
        start("--input", tmp_path / "missing.json")


def test_each_line_starts_a_run_and_refused_lines_are_reported(tmp_path):
    path = tmp_path / "many.jsonl"
    path.write_bytes(b'{"order": "1"}\n\n{"amount": 1}\n{"order": "\xff"}\n{"order": "2"}\n')
    with pytest.raises(CommandError, match="2 lines") as refusal:
        start("--jsonl", path)
    out, err = refusal.value.printed  # type: ignore[attr-defined]
    assert refusal.value.returncode == 3
    assert out.startswith("2 started, 0 had been started before, 2 refused")
    assert "line 3: " in err and "line 4: " in err
    assert Run.objects.count() == 2


def test_a_file_with_a_key_can_be_started_again_after_an_interruption(tmp_path):
    path = tmp_path / "many.jsonl"
    path.write_text("".join(f'{{"order": "{n}"}}\n' for n in range(1200)))
    start("--jsonl", path, "--key", "import")
    out, _ = start("--jsonl", path, "--key", "import")
    assert out.startswith("0 started, 1200 had been started before, 0 refused")
    assert Run.objects.count() == 1200
