"""Guessing passwords is slowed down by counting failed sign-ins, in the database, so that all web processes count together.

A browser in which the person has signed in before carries a signed cookie and is counted by itself. Whoever floods an account
with wrong passwords therefore stops other guessers, and for WINDOW_S seconds people in a new browser, but never somebody who
uses the browser that they always use: nobody can lock an account for ever.
https://owasp.org/www-community/Slow_Down_Online_Guessing_Attacks_with_Device_Cookies
"""

import secrets
from dataclasses import dataclass

from django.conf import settings
from django.core import signing
from django.db import connection
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.utils.crypto import constant_time_compare, salted_hmac

from agentops.addresses import client_address

WINDOW_S = 300
"""Seconds for which failures are remembered, counted from the first."""
PER_ADDRESS = 50
"""Failures from one address within the window, whatever the account."""
PER_ACCOUNT = 5
"""Failures of one account from one address, or from one known browser, within the window."""
PER_ACCOUNT_EVERYWHERE = 20
"""Failures of one account from all addresses within the window, known browsers not counted."""
KNOWN_S = 90 * 24 * 3600
"""Seconds for which a browser is known after a sign-in."""

_SALT = "agentops.guesses"

_COUNT = """
INSERT INTO agentops_guess (key, count, until) VALUES (%s, 1, agentops_now() + %s * interval '1 second')
ON CONFLICT (key) DO UPDATE SET
    count = CASE WHEN agentops_guess.until <= agentops_now() THEN 1 ELSE least(agentops_guess.count + 1, 1000000) END,
    until = CASE WHEN agentops_guess.until <= agentops_now() THEN EXCLUDED.until ELSE agentops_guess.until END
RETURNING count
"""
# Each try that adds at most three rows removes up to ten that are over; SKIP LOCKED, so that tries do not wait for each other.
_SWEEP = """
DELETE FROM agentops_guess WHERE key IN (
    SELECT key FROM agentops_guess WHERE until <= agentops_now() ORDER BY until LIMIT 10 FOR UPDATE SKIP LOCKED)
"""


@dataclass(frozen=True)
class _Counter:
    """One key and how many failures it may have; `own`: of the account, so that a right password ends it."""

    key: str
    limit: int
    own: bool


class Guesses:
    """The counters that one try to sign in belongs to."""

    def __init__(self, username: str, address: str, known_browser: str = "") -> None:
        """`known_browser` is its id, "" for a browser that is not known for this account."""
        account = username.casefold()
        if known_browser:
            self.counters = [_Counter(_hashed("browser", account, known_browser), PER_ACCOUNT, own=True)]
            return
        # The address comes first: once it is over, no rows are made for the names that it tries.
        self.counters = [
            _Counter(_hashed("address", address), PER_ADDRESS, own=False),
            _Counter(_hashed("account", account, address), PER_ACCOUNT, own=True),
            _Counter(_hashed("everywhere", account), PER_ACCOUNT_EVERYWHERE, own=False),
        ]

    @classmethod
    def of(cls, request: HttpRequest, username: str) -> "Guesses":
        return cls(username, client_address(request), _known_browser(request, username))

    def count(self) -> bool:
        """Count one try; return whether it is still allowed. Each statement commits by itself: parallel tries see it."""
        with connection.cursor() as cursor:
            cursor.execute(_SWEEP)
            for counter in self.counters:
                cursor.execute(_COUNT, [counter.key, WINDOW_S])
                if cursor.fetchone()[0] > counter.limit:
                    return False
        return True

    def forget(self) -> None:
        """Take the try back, and the failures of this account from here: the password was right."""
        own = [counter.key for counter in self.counters if counter.own]
        shared = [counter.key for counter in self.counters if not counter.own]
        with connection.cursor() as cursor:
            cursor.execute("DELETE FROM agentops_guess WHERE key = ANY (%s)", [own])
            cursor.execute(
                "UPDATE agentops_guess SET count = greatest(count - 1, 0) WHERE key = ANY (%s)", [shared]
            )


def count_failure(of: str) -> int:
    """Count a failed sign-in for the audit; its number within the window. `of` is a person's name, "" for nobody's."""
    with connection.cursor() as cursor:
        cursor.execute(_COUNT, [_hashed("audit", of), WINDOW_S])
        number: int = cursor.fetchone()[0]
    return number


def _hashed(*parts: str) -> str:
    """Keyed: people type their password into the field for the name, and no dump of the table may tell it."""
    return salted_hmac(_SALT, "\n".join(parts).encode(errors="replace"), algorithm="sha256").hexdigest()


# --- known browsers --------------------------------------------------------------------------------------------------


def remember(request: HttpRequest, response: HttpResponseBase, username: str) -> None:
    """Make this browser known for the account: its next wrong passwords are counted apart from everybody else's."""
    browser = _known_browser(request, username) or secrets.token_urlsafe(12)
    response.set_cookie(
        settings.AGENTOPS_KNOWN_COOKIE,
        signing.dumps([_hashed("known", username.casefold()), browser], salt=_SALT),
        max_age=KNOWN_S,
        secure=settings.SESSION_COOKIE_SECURE,
        httponly=True,
        samesite="Lax",
    )


def _known_browser(request: HttpRequest, username: str) -> str:
    """Id of this browser if the account was signed in to in it, else ""."""
    cookie = request.COOKIES.get(settings.AGENTOPS_KNOWN_COOKIE, "")
    try:
        account, browser = signing.loads(cookie, salt=_SALT, max_age=KNOWN_S)
    except (signing.BadSignature, ValueError):
        return ""
    return browser if constant_time_compare(account, _hashed("known", username.casefold())) else ""
