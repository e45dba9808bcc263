"""What an error of a tool means: did it happen, and can trying again help?

An effect's error that nothing here knows leaves the effect in doubt: that is the safe reading.
"""

import smtplib
from dataclasses import dataclass
from datetime import datetime, timedelta
from email.utils import parsedate_to_datetime
from enum import Enum

import httpx
from django.utils import timezone

from runs.errors import NotRetryable, OutcomeUnknown, Retryable, UnlabelledParallel
from runs.policies import Limits


class Verdict(Enum):
    RETRY = "it certainly did not happen; try again"
    FINAL = "it certainly did not happen; trying again cannot help"
    UNKNOWN = "it may have happened"


@dataclass(frozen=True)
class Classified:
    verdict: Verdict
    retry_after: float | None = None


#: Answers that say "not now" before any work is done (RFC 9110 §15.5.9, §15.5.21, RFC 6585 §4, RFC 8470).
_NOT_NOW = {408, 425, 429}
#: The request never left, or was never read.
_NOT_SENT = (
    httpx.ConnectError,
    httpx.ConnectTimeout,
    httpx.PoolTimeout,
    ConnectionRefusedError,
    smtplib.SMTPConnectError,
)


def classify(error: Exception, *, effect: bool) -> Classified:
    """Decide what `error`, raised by a tool, means."""
    match error:
        case Retryable():
            return Classified(Verdict.RETRY, error.retry_after)
        case NotRetryable() | UnlabelledParallel():
            return Classified(Verdict.FINAL)
        case OutcomeUnknown():
            return Classified(Verdict.UNKNOWN if effect else Verdict.RETRY)
        case httpx.HTTPStatusError():
            return _of_answer(error.response, effect)
        case _ if isinstance(error, _NOT_SENT):
            return Classified(Verdict.RETRY)
        case smtplib.SMTPRecipientsRefused():
            codes = [code for code, _ in error.recipients.values()]
            return Classified(Verdict.FINAL if codes and all(c >= 500 for c in codes) else Verdict.RETRY)
        case smtplib.SMTPResponseException():
            return Classified(Verdict.FINAL if error.smtp_code >= 500 else Verdict.RETRY)
    return Classified(Verdict.UNKNOWN if effect else Verdict.RETRY)


def pause(verdict: Classified, limits: Limits, tries: int) -> timedelta:
    """How long to wait after the try number `tries`: the back-off, or what the provider said if that is longer."""
    length = limits.backoff(tries)
    if verdict.retry_after is not None:
        length = max(length, timedelta(seconds=verdict.retry_after))
    return length


def _of_answer(response: httpx.Response, effect: bool) -> Classified:
    status = response.status_code
    if status in _NOT_NOW:
        return Classified(Verdict.RETRY, _retry_after(response))
    if status >= 500:
        # A gateway answers 502 to 504 also after the work was done.
        return Classified(Verdict.UNKNOWN if effect else Verdict.RETRY, _retry_after(response))
    return Classified(Verdict.FINAL)


def _retry_after(response: httpx.Response) -> float | None:
    """Seconds of a Retry-After header in either form (RFC 9110 §10.2.3), at most an hour; None without a usable one."""
    value = response.headers.get("retry-after", "").strip()
    if not value:
        return None
    if value.isdigit():
        return min(float(value), 3600.0)
    at = _date(value)
    if at is None:
        return None
    # A moment of the provider's clock is compared with that clock, where the answer tells it: this host's may differ.
    now = _date(response.headers.get("date", "")) or timezone.now()
    return min(max((at - now).total_seconds(), 0.0), 3600.0)


def _date(value: str) -> datetime | None:
    """A date of HTTP; None for anything else."""
    try:
        at = parsedate_to_datetime(value)
    except ValueError:
        return None
    return None if at.tzinfo is None else at
