import pytest
from django.core.checks import CheckMessage, run_checks
from pytest_django import Settings

from agentops import checks


def ids(messages: list[CheckMessage]) -> set[str | None]:
    return {message.id for message in messages}


def test_the_settings_of_a_demo_pass_all_checks() -> None:
    assert not {found for found in ids(run_checks()) if found and found.startswith("agentops.")}


def test_a_missing_secret_key_is_named(settings: Settings) -> None:
    settings.SECRET_KEY = ""
    [message] = checks.secret_key_is_set()
    assert message.id == "agentops.E001"
    assert message.hint is not None and "AGENTOPS_SECRET_KEY" in message.hint


def test_missing_and_starred_host_names_are_errors(settings: Settings) -> None:
    settings.ALLOWED_HOSTS = []
    assert ids(checks.hosts_are_named()) == {"agentops.E002"}
    settings.ALLOWED_HOSTS = ["*"]
    assert ids(checks.hosts_are_named()) == {"agentops.E003"}


def test_debug_mode_on_a_public_host_is_a_warning(settings: Settings) -> None:
    settings.ALLOWED_HOSTS = ["localhost", "ops.example"]
    [message] = checks.debug_stays_local()
    assert "ops.example" in message.msg
    settings.AGENTOPS_DEBUG = False
    assert checks.debug_stays_local() == []


def test_production_without_webhook_secret_or_database_is_a_warning(settings: Settings) -> None:
    settings.AGENTOPS_DEBUG = False
    settings.AGENTOPS_WEBHOOK_SECRET = ""
    settings.AGENTOPS_DATABASE_URL = ""
    assert ids(checks.webhooks_are_signed()) == {"agentops.W002"}
    assert ids(checks.embedded_server_is_for_one_machine()) == {"agentops.W003"}


@pytest.mark.parametrize("secret", ["whsec_dG9vIHNob3J0", "whsec_%%%", "dG9v", "whsec_a"])
def test_a_webhook_secret_that_is_no_base64_or_short_is_an_error(secret: str, settings: Settings) -> None:
    settings.AGENTOPS_WEBHOOK_SECRET = secret
    assert ids(checks.webhook_secret_is_one()) == {"agentops.E006"}


def test_a_trusted_proxy_whose_clients_are_not_known_is_a_warning(settings: Settings) -> None:
    settings.SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https")
    assert ids(checks.proxies_are_counted()) == {"agentops.W004"}
    settings.AGENTOPS_PROXIES = 1
    assert checks.proxies_are_counted() == []


@pytest.mark.django_db
def test_an_old_postgresql_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    assert checks.postgresql_is_recent(databases=["default"]) == []
    monkeypatch.setattr(checks, "OLDEST_POSTGRESQL", 99)
    [message] = checks.postgresql_is_recent(databases=["default"])
    assert message.id == "agentops.E005"
