"""What this installation keeps secret stands in no log, no traceback, no error page and no report."""

import io
import json
import logging
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import structlog
from django.conf import settings as project
from django.core.management import call_command
from django.test import Client, RequestFactory
from django.views.debug import ExceptionReporter, get_exception_reporter_filter
from pytest_django import Settings

from agentops import logs
from tests.security.production import SECRETS, run
from tests.security.world import world

KEY = "sk-canary-0123456789"


def logged(action: str, *, as_json: bool, secrets: tuple[str, ...] = (KEY,)) -> str:
    """What a formatter of this project makes of one line with a traceback."""
    configuration = logs.configuration(level="INFO", as_json=as_json, secrets=secrets)
    made = dict(configuration["formatters"]["structlog"])
    formatter = made.pop("()")(**made)
    out = io.StringIO()
    handler = logging.StreamHandler(out)
    handler.setFormatter(formatter)
    logger = logging.getLogger(f"agentops.secret_test.{as_json}.{action}")
    logger.handlers, logger.propagate = [handler], False
    logger.setLevel("INFO")
    match action:
        case "value":
            logger.info("calling with %s", KEY)
        case "traceback":
            try:
                raise ValueError(f"401 for Bearer {KEY}")
            except ValueError:
                logger.exception("failed")
        case "name":
            structlog.stdlib.get_logger(logger.name).info(
                "asked", password="p1", api_key="p2", headers={"Authorization": "p3"}, max_tokens=7
            )
    return out.getvalue()


@pytest.fixture(autouse=True)
def _logging_as_before() -> Iterator[None]:
    yield
    logs.configuration(level=project.AGENTOPS_LOG_LEVEL, as_json=project.AGENTOPS_LOG_JSON)


@pytest.mark.parametrize("as_json", [True, False])
@pytest.mark.parametrize("action", ["value", "traceback"])
def test_a_secret_of_the_settings_stands_in_no_line_however_it_came_there(action: str, as_json: bool) -> None:
    line = logged(action, as_json=as_json)
    assert KEY not in line and logs.HIDDEN in line


@pytest.mark.parametrize("as_json", [True, False])
def test_what_is_called_a_secret_is_hidden_and_what_counts_tokens_is_not(as_json: bool) -> None:
    line = logged("name", as_json=as_json)
    assert "p1" not in line and "p2" not in line and "p3" not in line
    assert "7" in line


def test_a_secret_that_json_escapes_is_found_as_well() -> None:
    hidden = logs._HideValues(['quote"and\\slash'])
    assert hidden(None, "", json.dumps({"event": 'quote"and\\slash'})) == f'{{"event": "{logs.HIDDEN}"}}'


def test_a_short_word_is_not_looked_for_in_every_line() -> None:
    assert logs._HideValues(["agentops"])(None, "", "agentops starts") == "agentops starts"


def test_production_hides_all_of_its_own_secrets() -> None:
    done = run(
        "import django; django.setup()\n"
        "import logging, os\n"
        "from django.conf import settings\n"
        "given = [settings.SECRET_KEY, settings.AGENTOPS_WEBHOOK_SECRET, settings.AGENTOPS_MODEL_API_KEY,"
        " settings.AGENTOPS_SMTP_PASSWORD, settings.DATABASES['default']['PASSWORD'], os.environ['DATABASE_URL']]\n"
        "logging.getLogger('agentops').warning('all: %s', ' '.join(given))\n"
        "try:\n"
        "    raise RuntimeError(' '.join(given))\n"
        "except RuntimeError:\n"
        "    logging.getLogger('django.request').exception('failed')\n"
    )
    assert done.returncode == 0
    assert done.stderr.count("[hidden]") >= 12
    assert [secret for secret in SECRETS if secret in done.stdout + done.stderr] == []


def test_a_database_that_does_not_answer_and_a_bad_setting_tell_no_secret() -> None:
    commands = ("check --database default", "doctor", "check --deploy")
    for command in commands:
        done = run(
            f"from django.core.management import execute_from_command_line as c; c(['manage.py'] + {command.split()!r})"
        )
        assert [secret for secret in SECRETS if secret in done.stdout + done.stderr] == [], command
    wrong = run(
        "from django.conf import settings; settings.DEBUG", DATABASE_URL="mysql://ops:canary-password@db/ops"
    )
    assert wrong.returncode != 0 and "canary-password" not in wrong.stderr


@pytest.mark.django_db
def test_an_error_page_tells_nothing_of_what_went_wrong(
    monkeypatch: pytest.MonkeyPatch, console: Client
) -> None:
    def broken(*args: object, **more: object) -> None:
        raise RuntimeError(f"the key is {KEY}")

    monkeypatch.setattr("runs.selectors.overview", broken)
    console.raise_request_exception = False
    response = console.get("/runs/")
    assert response.status_code == 500
    assert KEY not in response.content.decode() and "RuntimeError" not in response.content.decode()


@pytest.mark.django_db
def test_djangos_own_debug_page_hides_keys_urls_and_passwords_that_people_type(settings: Settings) -> None:
    settings.DEBUG = True
    settings.AGENTOPS_MODEL_API_KEY = settings.AGENTOPS_WEBHOOK_SECRET = KEY
    settings.AGENTOPS_DATABASE_URL = f"postgresql://ops:{KEY}@db/ops"
    request = RequestFactory().post("/sign-in/", {"username": "mara", "password": "x"})
    request.META |= {
        "DATABASE_URL": settings.AGENTOPS_DATABASE_URL,
        "AGENTOPS_SECRET_KEY": KEY,
        "HTTP_COOKIE": KEY,
    }
    try:
        raise RuntimeError("shown on purpose")
    except RuntimeError as error:
        html = ExceptionReporter(request, RuntimeError, error, error.__traceback__).get_traceback_html()
    assert "shown on purpose" in html
    shown = html.replace("KEY = ", "")
    assert f"postgresql://ops:{KEY}" not in shown
    for name in ("AGENTOPS_MODEL_API_KEY", "AGENTOPS_WEBHOOK_SECRET", "AGENTOPS_DATABASE_URL"):
        filtered = get_exception_reporter_filter(request).get_safe_settings()
        assert KEY not in str(filtered[name]), name


@pytest.mark.django_db(transaction=True)
def test_doctor_tells_no_payload_and_no_secret(settings: Settings, tmp_path: Path) -> None:
    settings.AGENTOPS_MODEL_API_KEY = KEY
    world(payload="canary-7c1e")
    out, report = io.StringIO(), tmp_path / "report.json"
    with suppress(SystemExit):
        call_command("doctor", "--json", str(report), stdout=out)
    told = out.getvalue() + report.read_text()
    assert "advice" in told
    for secret in (KEY, "canary-7c1e", settings.SECRET_KEY, settings.AGENTOPS_WEBHOOK_SECRET):
        assert secret not in told
