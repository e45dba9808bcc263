"""Timestamps and durations in words. `console.js` renews them with the same rules; the tests hold both together."""

from datetime import datetime, timedelta

from django.utils import timezone

NEAR = timedelta(hours=1)
"""Within an hour a distance says more than a clock time."""


def moment(at: datetime, now: datetime) -> str:
    """Say when `at` is, seen from `now`: a distance when near, a clock time within a day, a date beyond."""
    local, here = timezone.localtime(at), timezone.localtime(now)
    if abs(at - now) < NEAR:
        return distance(at - now)
    clock = f"{local:%H:%M}"
    match (local.date() - here.date()).days:
        case 0:
            return f"today {clock}"
        case -1:
            return f"yesterday {clock}"
        case 1:
            return f"tomorrow {clock}"
    if local.year == here.year:
        return f"{local.day} {local:%b} {clock}"
    return f"{local.day} {local:%b %Y}"


def clock(at: datetime, now: datetime) -> str:
    """Say when `at` is to the second; with the date unless it is the day of `now`."""
    local = timezone.localtime(at)
    if local.date() == timezone.localtime(now).date():
        return f"{local:%H:%M:%S}"
    return f"{local.day} {local:%b} {local:%H:%M:%S}"


def distance(delta: timedelta) -> str:
    """Say how far away a moment is: "4 min ago", "in 38 min", "now" within a second."""
    seconds = int(abs(delta.total_seconds()))
    if seconds < 1:
        return "now"
    size = f"{seconds} s" if seconds < 60 else f"{seconds // 60} min"
    return f"{size} ago" if delta < timedelta(0) else f"in {size}"


def full(at: datetime) -> str:
    """Say everything about `at`: "Sun 29 Nov 2026, 15:46:10.123 UTC"."""
    local = timezone.localtime(at)
    return f"{local:%a} {local.day} {local:%b %Y, %H:%M:%S}.{local.microsecond // 1000:03d} {local:%Z}"


def duration(seconds: float) -> str:
    """Say how long something took, with at most two units: "0.8 s", "38 min", "1 h 48 min", "2 d 3 h"."""
    if seconds < 0.0005:
        return "< 1 ms"
    if seconds < 0.0995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"{minutes} min"
    if minutes < 24 * 60:
        return f"{minutes // 60} h {minutes % 60} min" if minutes % 60 else f"{minutes // 60} h"
    hours = round(seconds / 3600)
    return f"{hours // 24} d {hours % 24} h" if hours % 24 else f"{hours // 24} d"
