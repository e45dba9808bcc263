"""System checks of the installation: each names one thing that is missing or unsafe, and says what to do."""

import base64
from collections.abc import Sequence
from typing import Any

from django.apps import AppConfig
from django.conf import settings
from django.core.checks import CheckMessage, Error, Tags, Warning, register
from django.core.exceptions import ImproperlyConfigured
from django.db import connections

OLDEST_POSTGRESQL = 15
LOCAL_HOSTS = frozenset({"localhost", "127.0.0.1", "[::1]", "::1", "testserver"})


@register(Tags.security)
def secret_key_is_set(app_configs: Sequence[AppConfig] | None = None, **kwargs: Any) -> list[CheckMessage]:
    """E001: sessions, forms and digests are signed with the key."""
    try:
        key = settings.SECRET_KEY
    except ImproperlyConfigured:
        key = ""
    if key:
        return []
    return [
        Error(
            "The secret key is missing.",
            hint="Set AGENTOPS_SECRET_KEY, or AGENTOPS_SECRET_KEY_FILE, to 50 or more random characters.",
            id="agentops.E001",
        )
    ]


@register(Tags.security)
def hosts_are_named(app_configs: Sequence[AppConfig] | None = None, **kwargs: Any) -> list[CheckMessage]:
    """E002: without host names every request is refused. E003: with a star any site may pose as this one."""
    messages: list[CheckMessage] = []
    if not settings.ALLOWED_HOSTS:
        messages.append(
            Error(
                "No host name is allowed, so that every request is refused.",
                hint="Set AGENTOPS_ALLOWED_HOSTS to the names that people type, separated by commas.",
                id="agentops.E002",
            )
        )
    if "*" in settings.ALLOWED_HOSTS:
        messages.append(
            Error(
                "Every host name is allowed.",
                hint="Replace the star in AGENTOPS_ALLOWED_HOSTS by the names that people type.",
                id="agentops.E003",
            )
        )
    return messages


@register(Tags.security)
def debug_stays_local(app_configs: Sequence[AppConfig] | None = None, **kwargs: Any) -> list[CheckMessage]:
    """W001: debug mode sends cookies over plain HTTP and lets failpoints be switched on."""
    if not settings.AGENTOPS_DEBUG:
        return []
    public = sorted(set(settings.ALLOWED_HOSTS) - LOCAL_HOSTS)
    if not public:
        return []
    return [
        Warning(
            f"AGENTOPS_DEBUG is on while the console answers to {', '.join(public)}.",
            hint="Turn AGENTOPS_DEBUG off where others can reach the console.",
            id="agentops.W001",
        )
    ]


@register(Tags.security)
def webhooks_are_signed(app_configs: Sequence[AppConfig] | None = None, **kwargs: Any) -> list[CheckMessage]:
    """W002: without a secret the signal endpoint refuses every caller."""
    if settings.AGENTOPS_WEBHOOK_SECRET or settings.AGENTOPS_DEBUG:
        return []
    return [
        Warning(
            "The webhook secret is missing, so that no signal from outside is accepted.",
            hint="Set AGENTOPS_WEBHOOK_SECRET, or AGENTOPS_WEBHOOK_SECRET_FILE, to the secret shared with the senders.",
            id="agentops.W002",
        )
    ]


@register(Tags.security)
def webhook_secret_is_one(
    app_configs: Sequence[AppConfig] | None = None, **kwargs: Any
) -> list[CheckMessage]:
    """E006: with a secret that is not base64 every webhook would fail; a short one can be guessed (24 bytes: the standard's)."""
    secret = settings.AGENTOPS_WEBHOOK_SECRET.removeprefix("whsec_")
    try:
        known = not secret or len(base64.b64decode(secret + "==")) >= 24
    except ValueError:
        known = False
    if known:
        return []
    return [
        Error(
            "The webhook secret is not the base64 text of 24 bytes or more.",
            hint="Make one as docs/deployment.md shows, and give it to the senders.",
            id="agentops.E006",
        )
    ]


@register(Tags.security)
def proxies_are_counted(app_configs: Sequence[AppConfig] | None = None, **kwargs: Any) -> list[CheckMessage]:
    """W004: behind a proxy all visitors have its address, so that one guesser stops sign-in in new browsers for all."""
    if settings.AGENTOPS_PROXIES or settings.SECURE_PROXY_SSL_HEADER is None:
        return []
    return [
        Warning(
            "A proxy is trusted, but the addresses of its clients are not known.",
            hint="Set AGENTOPS_PROXIES to the number of proxies that append to X-Forwarded-For.",
            id="agentops.W004",
        )
    ]


@register(Tags.security)
def embedded_server_is_for_one_machine(
    app_configs: Sequence[AppConfig] | None = None, **kwargs: Any
) -> list[CheckMessage]:
    """W003: the embedded server has no backups, no replicas and no access from other hosts."""
    if settings.AGENTOPS_DATABASE_URL or settings.AGENTOPS_DEBUG:
        return []
    return [
        Warning(
            "DATABASE_URL is not set: the embedded PostgreSQL server is used, which nobody backs up.",
            hint="Set DATABASE_URL, or DATABASE_URL_FILE, to a PostgreSQL server of your own.",
            id="agentops.W003",
        )
    ]


@register(Tags.database)
def postgresql_is_recent(
    app_configs: Sequence[AppConfig] | None = None,
    databases: Sequence[str] | None = None,
    **kwargs: Any,
) -> list[CheckMessage]:
    """E004 and E005: needs a connection, so it runs where Django runs database checks (migrate, check --database)."""
    messages: list[CheckMessage] = []
    for alias in databases or ():
        connection = connections[alias]
        if connection.vendor != "postgresql":
            messages.append(
                Error(
                    f"Database {alias} is {connection.vendor}.",
                    hint="Use PostgreSQL: locks, triggers and queries are written for it.",
                    id="agentops.E004",
                )
            )
            continue
        with connection.cursor() as cursor:
            cursor.execute("SELECT current_setting('server_version_num')::int / 10000")
            row = cursor.fetchone()
        major = int(row[0]) if row else 0
        if major < OLDEST_POSTGRESQL:
            messages.append(
                Error(
                    f"Database {alias} is PostgreSQL {major}.",
                    hint=f"Use PostgreSQL {OLDEST_POSTGRESQL} or newer.",
                    id="agentops.E005",
                )
            )
    return messages
