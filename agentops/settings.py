"""Settings of the project, all read from the environment (see agentops/env.py; secrets also from NAME_FILE).

`AGENTOPS_DEBUG` marks a machine of a developer, a demo or a test: sample apps, failpoints and printed passwords need
it. It leaves Django's own DEBUG off, so that demo and tests see the error pages and the query speed of production;
`AGENTOPS_DJANGO_DEBUG` adds Django's.
"""

from pathlib import Path
from typing import Any

from django.utils.csp import CSP
from psycopg import IsolationLevel

from agentops import embedded, env, logs
from agentops.secret_key import development_key

BASE_DIR = Path(__file__).resolve().parent.parent

AGENTOPS_DEBUG = env.flag("AGENTOPS_DEBUG")
AGENTOPS_DEMO = env.flag("AGENTOPS_DEMO")
AGENTOPS_DATA_DIR = Path(env.text("AGENTOPS_DATA_DIR", str(BASE_DIR / ".data"))).expanduser().absolute()

DEBUG = AGENTOPS_DEBUG and env.flag("AGENTOPS_DJANGO_DEBUG")

# An empty key is reported by a system check, and by Django at the first use.
SECRET_KEY = env.secret("AGENTOPS_SECRET_KEY")
if not SECRET_KEY and AGENTOPS_DEBUG:
    SECRET_KEY = development_key(AGENTOPS_DATA_DIR)
# Earlier keys still verify what they signed, so that a key can be changed without signing everybody out.
SECRET_KEY_FALLBACKS = env.items("AGENTOPS_SECRET_KEY_FALLBACKS")

# --- the outside world -------------------------------------------------------------------------------------------

AGENTOPS_SANDBOX_URL = env.text("AGENTOPS_SANDBOX_URL", "http://127.0.0.1:8025")
AGENTOPS_WEBHOOK_SECRET = env.secret("AGENTOPS_WEBHOOK_SECRET")
AGENTOPS_MODEL_BASE_URL = env.text("AGENTOPS_MODEL_BASE_URL")
AGENTOPS_MODEL_API_KEY = env.secret("AGENTOPS_MODEL_API_KEY")
AGENTOPS_MODEL_NAME = env.text("AGENTOPS_MODEL_NAME")

# --- engine: in seconds ------------------------------------------------------------------------------------------

AGENTOPS_LEASE_SECONDS = env.number("AGENTOPS_LEASE_SECONDS", 10.0, minimum=0.5)
AGENTOPS_BEAT_SECONDS = env.number("AGENTOPS_BEAT_SECONDS", 2.0, minimum=0.05)
# An effect is started only while so much of the lease remains.
AGENTOPS_SEND_MARGIN_SECONDS = env.number("AGENTOPS_SEND_MARGIN_SECONDS", 3.0, minimum=0.05)
AGENTOPS_POLL_SECONDS = env.number("AGENTOPS_POLL_SECONDS", 0.5, minimum=0.01)
# Off only behind a pooler in transaction mode that loses them (PgBouncer before 1.21): steps then cost more.
AGENTOPS_PREPARED_STATEMENTS = env.flag("AGENTOPS_PREPARED_STATEMENTS", True)
# Bytes of JSON that one recorded value may have.
AGENTOPS_PAYLOAD_LIMIT = env.integer("AGENTOPS_PAYLOAD_LIMIT", 5_000_000, minimum=1)
# Child runs: how many one operation may start, and how many may stand below one another.
AGENTOPS_CHILDREN = env.integer("AGENTOPS_CHILDREN", 50_000, minimum=1)
AGENTOPS_CHILD_DEPTH = env.integer("AGENTOPS_CHILD_DEPTH", 10, minimum=1)
# Days after which finished runs are deleted with all that is theirs, where their workflow says nothing else; 0: never.
AGENTOPS_RETENTION_DAYS = env.integer("AGENTOPS_RETENTION_DAYS", 90, minimum=0)
# Other limits for kinds of payloads (runs.sizes.KINDS), such as "state=2000000,message=100000".
AGENTOPS_PAYLOAD_LIMITS = {"log": 100_000} | env.integers("AGENTOPS_PAYLOAD_LIMITS", minimum=1)
# Payloads from so many bytes on are stored apart from their row, once by content.
AGENTOPS_SPILL_BYTES = env.integer("AGENTOPS_SPILL_BYTES", 32_768, minimum=1024)
# States from so many bytes on are recorded as what changed in them.
AGENTOPS_PATCH_BYTES = env.integer("AGENTOPS_PATCH_BYTES", 4096, minimum=256)

# --- apps --------------------------------------------------------------------------------------------------------

# Apps of the team's own: their workflows.py is found like that of every installed app.
AGENTOPS_APPS = env.apps("AGENTOPS_APPS")

INSTALLED_APPS = [
    "agentops",
    "runs",
    "approvals",
    *(["agentops.demo", "agentops.sandbox"] if AGENTOPS_DEBUG or AGENTOPS_DEMO else []),
    *AGENTOPS_APPS,
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "django.contrib.postgres",
    "django_q",
    "django_htmx",
]

# The first three see every answer, also a refusal by those below them, such as that of an unknown host name.
MIDDLEWARE = [
    "agentops.middleware.PageHeaders",
    "django.middleware.csp.ContentSecurityPolicyMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "django.middleware.security.SecurityMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "agentops.middleware.SignInRequired",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django_htmx.middleware.HtmxMiddleware",
    "agentops.middleware.Refusals",
]

ROOT_URLCONF = "agentops.urls"
WSGI_APPLICATION = "agentops.wsgi.application"

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
                "agentops.context.console",
            ],
        },
    },
]

# --- database ----------------------------------------------------------------------------------------------------

AGENTOPS_DATABASE_URL = env.secret("DATABASE_URL")
# The role that web and workers assume after connecting; migrations run as the owner, without it.
AGENTOPS_DB_ROLE = env.text("AGENTOPS_DB_ROLE")


def _default_database() -> dict[str, Any]:
    """The database of DATABASE_URL, else the embedded server (started by the first connection, not by settings)."""
    url = AGENTOPS_DATABASE_URL
    config = (
        {**env.database(url), "ENGINE": "agentops.postgresql"}
        if url
        else embedded.database(AGENTOPS_DATA_DIR)
    )
    if AGENTOPS_DB_ROLE:
        config["OPTIONS"]["assume_role"] = AGENTOPS_DB_ROLE
    # What the verbs read after a lock was awaited must be what is there then, whatever the database's default is.
    config["OPTIONS"]["isolation_level"] = IsolationLevel.READ_COMMITTED
    return {
        "CONN_MAX_AGE": 600,
        "CONN_HEALTH_CHECKS": True,
        # Such a cursor lives in a session, which a pooler in transaction mode does not keep.
        "DISABLE_SERVER_SIDE_CURSORS": not AGENTOPS_PREPARED_STATEMENTS,
        **config,
    }


DATABASES = {"default": _default_database()}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

# Of this process only: nothing that must hold across processes may live here.
CACHES = {"default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}}

# --- workers -----------------------------------------------------------------------------------------------------

# Defaults of `manage.py worker`.
AGENTOPS_WORKER_QUEUES = env.items("AGENTOPS_WORKER_QUEUES", ("default",))
AGENTOPS_WORKER_PROCESSES = env.integer("AGENTOPS_WORKER_PROCESSES", 2, minimum=1)
AGENTOPS_WORKER_SLOTS = env.integer("AGENTOPS_WORKER_SLOTS", 16, minimum=1)
# What workers say of the code that they execute; unset: the versions of what is installed.
AGENTOPS_CODE_VERSION = env.text("AGENTOPS_CODE_VERSION")
# Seconds that running steps and tasks get to finish when workers are stopped.
AGENTOPS_GRACE_SECONDS = env.integer("AGENTOPS_GRACE_SECONDS", 30, minimum=0)

# --- ordinary tasks (django-q2) ----------------------------------------------------------------------------------

# poll 0: the cluster waits in select() on its own. save_limit 0: django-q2 would lock 250 rows for each task it saves.
Q_CLUSTER = {
    "name": "agentops",
    "orm": "default",
    "poll": 0,
    "bulk": 1,
    "timeout": 300,
    "retry": 360,
    "max_attempts": 5,
    "ack_failures": True,
    "save_limit": 0,
    "catch_up": False,
    "recycle": 10_000,
    "workers": AGENTOPS_WORKER_PROCESSES,
    "label": "Tasks",
}

# --- web and security --------------------------------------------------------------------------------------------

ALLOWED_HOSTS = env.items(
    "AGENTOPS_ALLOWED_HOSTS", ("localhost", "127.0.0.1", "[::1]") if AGENTOPS_DEBUG else ()
)
CSRF_TRUSTED_ORIGINS = env.items("AGENTOPS_TRUSTED_ORIGINS")

SECURE_CSP = {
    "default-src": [CSP.NONE],
    "script-src": [CSP.SELF],
    "style-src": [CSP.SELF],
    "img-src": [CSP.SELF],
    "font-src": [CSP.SELF],
    "connect-src": [CSP.SELF],
    "form-action": [CSP.SELF],
    "base-uri": [CSP.NONE],
    "frame-ancestors": [CSP.NONE],
}
X_FRAME_OPTIONS = "DENY"
SECURE_REFERRER_POLICY = "same-origin"

# Plain HTTP is served on machines of developers only.
SESSION_COOKIE_SECURE = not AGENTOPS_DEBUG
CSRF_COOKIE_SECURE = not AGENTOPS_DEBUG
CSRF_COOKIE_HTTPONLY = True
CSRF_FAILURE_VIEW = "agentops.views.csrf_failure"
SECURE_SSL_REDIRECT = env.flag("AGENTOPS_SSL_REDIRECT", not AGENTOPS_DEBUG)
SECURE_HSTS_SECONDS = env.integer("AGENTOPS_HSTS_SECONDS", 0 if AGENTOPS_DEBUG else 31_536_000, minimum=0)
SECURE_HSTS_INCLUDE_SUBDOMAINS = env.flag("AGENTOPS_HSTS_SUBDOMAINS")
# Subdomains and the browsers' preload list are for the owner of the domain to decide.
SILENCED_SYSTEM_CHECKS = ["security.W005", "security.W021"]
# Only behind a proxy that sets this header itself on every request: otherwise a client could claim to use HTTPS.
if env.flag("AGENTOPS_TRUST_PROXY"):
    SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https")
# Proxies in front that each append the address of their caller to X-Forwarded-For; 0: the caller's address counts.
AGENTOPS_PROXIES = env.integer("AGENTOPS_PROXIES", 0, minimum=0)

# Seconds from sign-in to the next one. Pages that poll do not prolong it: a forgotten tab would stay signed in for ever.
SESSION_COOKIE_AGE = env.integer("AGENTOPS_SESSION_SECONDS", 12 * 3600, minimum=60)
if not AGENTOPS_DEBUG:
    # Browsers take such a cookie over HTTPS from this host alone: a neighbour in the domain cannot plant a session.
    SESSION_COOKIE_NAME = "__Host-session"
    CSRF_COOKIE_NAME = "__Host-csrf"
AGENTOPS_KNOWN_COOKIE = "known" if AGENTOPS_DEBUG else "__Host-known"

FILE_UPLOAD_HANDLERS = ["agentops.uploads.SmallFile"]

LOGIN_URL = "login"
AUTHENTICATION_BACKENDS = ["agentops.backend.Backend"]
LOGIN_REDIRECT_URL = "home"
LOGOUT_REDIRECT_URL = "login"

DEFAULT_EXCEPTION_REPORTER_FILTER = "agentops.debug_pages.Filter"

AUTH_PASSWORD_VALIDATORS = [
    {"NAME": "django.contrib.auth.password_validation.UserAttributeSimilarityValidator"},
    {
        "NAME": "django.contrib.auth.password_validation.MinimumLengthValidator",
        "OPTIONS": {"min_length": 12},
    },
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
]

STATIC_URL = "/static/"
STATIC_ROOT = Path(env.text("AGENTOPS_STATIC_ROOT", str(BASE_DIR / "staticfiles")))
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
    "staticfiles": {
        "BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"
        if AGENTOPS_DEBUG
        else "whitenoise.storage.CompressedManifestStaticFilesStorage"
    },
}
WHITENOISE_USE_FINDERS = AGENTOPS_DEBUG
WHITENOISE_AUTOREFRESH = AGENTOPS_DEBUG

LANGUAGE_CODE = "en-gb"
USE_I18N = False
TIME_ZONE = "UTC"
USE_TZ = True

# --- mail and logs -----------------------------------------------------------------------------------------------

AGENTOPS_SMTP_HOST = env.text("AGENTOPS_SMTP_HOST", "127.0.0.1")
# In debug mode, the sandbox's port.
AGENTOPS_SMTP_PORT = env.integer("AGENTOPS_SMTP_PORT", 8026 if AGENTOPS_DEBUG else 25, minimum=1)
AGENTOPS_SMTP_PASSWORD = env.secret("AGENTOPS_SMTP_PASSWORD")
MAILERS = {
    "default": {
        "BACKEND": "django.core.mail.backends.smtp.EmailBackend",
        "OPTIONS": {
            "host": AGENTOPS_SMTP_HOST,
            "port": AGENTOPS_SMTP_PORT,
            "username": env.text("AGENTOPS_SMTP_USER"),
            "password": AGENTOPS_SMTP_PASSWORD,
            "use_tls": env.flag("AGENTOPS_SMTP_TLS"),
            "timeout": 10,
        },
    },
}
DEFAULT_FROM_EMAIL = env.text("AGENTOPS_MAIL_FROM", "agentops@localhost")

AGENTOPS_LOG_LEVEL = env.text("AGENTOPS_LOG_LEVEL", "INFO").upper()
# JSON for machines, or lines for people: the default of machines is JSON.
AGENTOPS_LOG_JSON = env.flag("AGENTOPS_LOG_JSON", not AGENTOPS_DEBUG)
LOGGING = logs.configuration(
    level=AGENTOPS_LOG_LEVEL,
    as_json=AGENTOPS_LOG_JSON,
    secrets=[
        SECRET_KEY,
        *SECRET_KEY_FALLBACKS,
        AGENTOPS_WEBHOOK_SECRET,
        AGENTOPS_MODEL_API_KEY,
        AGENTOPS_DATABASE_URL,
        DATABASES["default"].get("PASSWORD", ""),
        AGENTOPS_SMTP_PASSWORD,
    ],
)
